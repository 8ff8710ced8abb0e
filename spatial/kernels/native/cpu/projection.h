#pragma once

#include <cstdint>

namespace spatial {

template <class Real>
struct ProjectionInputs {
    int64_t num_cameras, num_gaussians;
    const Real *means, *quats, *scales, *opacities;  // [N, 3], [N, 4], [N, 3], [N]
    const Real *viewmats, *Ks;                       // [C, 4, 4], [C, 3, 3]
    int width, height;
    Real eps2d, near_plane, far_plane, radius_clip;
    bool antialiased;  // the opacity that decides on culling is multiplied by the compensation
};

template <class Real>
struct ProjectionOutputs {
    int32_t* radii;                                    // [C, N, 2], 0 where culled
    Real *means2d, *depths, *conics, *compensations;  // [C, N, 2], [C, N], [C, N, 3], [C, N]; 0 where culled
};

template <class Real>
struct ProjectionCotangents {
    const int32_t* radii;
    const Real *v_means2d, *v_depths, *v_conics, *v_compensations;
    Real *v_means, *v_quats, *v_scales;  // [N, 3], [N, 4], [N, 3]
    Real* v_viewmats;                    // [C, 4, 4] or null
};

template <class Real>
void project_gaussians(const ProjectionInputs<Real>& in, const ProjectionOutputs<Real>& out);

template <class Real>
void project_gaussians_vjp(const ProjectionInputs<Real>& in, const ProjectionCotangents<Real>& cotangents);

}  // namespace spatial
