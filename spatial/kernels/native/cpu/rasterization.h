#pragma once

#include <cstdint>

#include "spatial/intersection.h"

namespace spatial {

template <class Real>
struct RasterizationInputs {
    int64_t num_cameras, num_gaussians;
    int channels, width, height;
    const Real *means2d, *conics, *colors, *opacities;  // [C, N, 2], [C, N, 3], [C, N, D], [C, N]
    const Real* backgrounds;                            // [C, D] or null
    const int32_t *tile_offsets, *flatten_ids;          // as Intersections::fill gives them
    Real max_alpha;
};

template <class Real>
void rasterize(const RasterizationInputs<Real>& in, Real* render_colors /* [C, H, W, D] */, Real* render_alphas /* [C, H, W] */);

template <class Real>
struct RasterizationCotangents {
    const int32_t *gaussian_offsets, *places;  // as Intersections::fill gives them
    const Real *render_colors, *render_alphas, *v_render_colors;
    const Real* v_render_alphas;  // or null: zero
    Real *v_means2d, *v_conics, *v_colors, *v_opacities;
    Real* v_means2d_abs;  // [C, N, 2] or null: Σ |gradient at a pixel| (AbsGS)
};

template <class Real>
void rasterize_vjp(const RasterizationInputs<Real>& in, const RasterizationCotangents<Real>& cotangents);

}  // namespace spatial
