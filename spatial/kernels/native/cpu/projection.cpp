#include "projection.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "lanes.h"
#include "pool.h"
#include "spatial/blending.h"
#include "spatial/projection.h"

namespace spatial {
namespace {

constexpr int64_t kGrain = 1024;  // Gaussians per task; a multiple of every lane width

// W consecutive rows of an [N, stride] array, one column, as lanes; past the end the last row is repeated.
template <class Real, int W = kWidth<Real>>
SPATIAL_HD Lanes<Real, W> gather(const Real* column, int64_t stride, int64_t count) {
    Real values[W];
    for (int i = 0; i < W; ++i) values[i] = column[std::min<int64_t>(i, count - 1) * stride];
    return Lanes<Real, W>::load(values);
}

template <class Real, int W = kWidth<Real>>
SPATIAL_HD void scatter(Lanes<Real, W> lanes, Real* column, int64_t stride, int64_t count) {
    Real values[W];
    lanes.store(values);
    for (int64_t i = 0; i < count; ++i) column[i * stride] = values[i];
}

template <class Real>
struct Parameters {
    using L = Lanes<Real, kWidth<Real>>;
    L mean[3], quat[4], scale[3];

    Parameters(const ProjectionInputs<Real>& in, int64_t first, int64_t count) {
        for (int k = 0; k < 3; ++k) mean[k] = gather(in.means + 3 * first + k, 3, count);
        for (int k = 0; k < 4; ++k) quat[k] = gather(in.quats + 4 * first + k, 4, count);
        for (int k = 0; k < 3; ++k) scale[k] = gather(in.scales + 3 * first + k, 3, count);
    }
};

template <class Real>
PinholeCamera<Lanes<Real, kWidth<Real>>> camera_lanes(const ProjectionInputs<Real>& in, int64_t c) {
    using L = Lanes<Real, kWidth<Real>>;
    PinholeCamera<L> camera;
    const Real *view = in.viewmats + 16 * c, *K = in.Ks + 9 * c;
    for (int i = 0; i < 3; ++i) {
        for (int j = 0; j < 3; ++j) camera.rotation[3 * i + j] = L(view[4 * i + j]);
        camera.translation[i] = L(view[4 * i + 3]);
    }
    camera.fx = L(K[0]);
    camera.cx = L(K[2]);
    camera.fy = L(K[4]);
    camera.cy = L(K[5]);
    camera.width = L(Real(in.width));
    camera.height = L(Real(in.height));
    return camera;
}

// Half the extent of the visible ellipse along an axis, whole pixels; 0 where nothing of it can be seen.
template <class Real>
SPATIAL_HD void radii_of(const ProjectionInputs<Real>& in, Real x, Real y, Real depth, Real determinant, Real xx, Real yy,
                         Real opacity, int32_t radii[2]) {
    radii[0] = radii[1] = 0;
    if (!(depth > in.near_plane && depth < in.far_plane && opacity >= Real(kMinAlpha))) return;
    if (!(determinant > 0 && std::isfinite(determinant))) return;
    const Real sigmas = std::min(Real(3.33), std::sqrt(2 * std::log(opacity * 255)));
    const Real rx = std::ceil(sigmas * std::sqrt(xx)), ry = std::ceil(sigmas * std::sqrt(yy));
    if (rx <= in.radius_clip && ry <= in.radius_clip) return;
    if (!(x + rx > 0 && x - rx < in.width && y + ry > 0 && y - ry < in.height)) return;
    radii[0] = int32_t(std::min<Real>(rx, 1 << 24));
    radii[1] = int32_t(std::min<Real>(ry, 1 << 24));
}

}  // namespace

template <class Real>
void project_gaussians(const ProjectionInputs<Real>& in, const ProjectionOutputs<Real>& out) {
    constexpr int W = kWidth<Real>;
    using L = Lanes<Real, W>;
    parallel_ranges(in.num_gaussians, kGrain, [&](int64_t begin, int64_t end) {
        for (int64_t c = 0; c < in.num_cameras; ++c) {
            const PinholeCamera<L> camera = camera_lanes(in, c);
            for (int64_t first = begin; first < end; first += W) {
                const int64_t count = std::min<int64_t>(W, end - first), at = c * in.num_gaussians + first;
                const Parameters<Real> p(in, first, count);
                const ProjectedGaussian<L> g = project(camera, p.mean, p.quat, p.scale, L(in.eps2d));
                Real visible[W] = {};
                for (int64_t i = 0; i < count; ++i) {
                    const Real opacity = in.opacities[first + i] * (in.antialiased ? g.compensation[i] : Real(1));
                    radii_of(in, g.mean[0][i], g.mean[1][i], g.depth[i], g.determinant[i], g.covariance[0][i],
                             g.covariance[2][i], opacity, out.radii + 2 * (at + i));
                    visible[i] = out.radii[2 * (at + i)] > 0 ? Real(1) : Real(0);
                }
                const auto seen = L::load(visible) > L(0);
                const auto kept = [&](L lanes) { return select(seen, lanes, L(0)); };
                for (int k = 0; k < 2; ++k) scatter(kept(g.mean[k]), out.means2d + 2 * at + k, 2, count);
                for (int k = 0; k < 3; ++k) scatter(kept(g.conic[k]), out.conics + 3 * at + k, 3, count);
                scatter(kept(g.depth), out.depths + at, 1, count);
                scatter(kept(g.compensation), out.compensations + at, 1, count);
            }
        }
    });
}

template <class Real>
void project_gaussians_vjp(const ProjectionInputs<Real>& in, const ProjectionCotangents<Real>& ct) {
    constexpr int W = kWidth<Real>;
    using L = Lanes<Real, W>;
    const int64_t C = in.num_cameras, N = in.num_gaussians, ranges = (N + kGrain - 1) / kGrain;
    std::vector<Real> pose_sums(ct.v_viewmats ? ranges * C * 12 : 0);  // one slot per range, added in order: deterministic
    std::vector<PinholeCamera<L>> cameras;
    for (int64_t c = 0; c < C; ++c) cameras.push_back(camera_lanes(in, c));

    parallel_ranges(N, kGrain, [&](int64_t begin, int64_t end) {
        std::vector<L> poses(ct.v_viewmats ? C * 12 : 0, L(0));
        for (int64_t first = begin; first < end; first += W) {
            const int64_t count = std::min<int64_t>(W, end - first);
            L v_mean[3] = {L(0), L(0), L(0)}, v_quat[4] = {L(0), L(0), L(0), L(0)}, v_scale[3] = {L(0), L(0), L(0)};
            for (int64_t c = 0; c < C; ++c) {
                const int64_t at = c * N + first;
                Real visible[W] = {};
                for (int64_t i = 0; i < count; ++i) visible[i] = ct.radii[2 * (at + i)] > 0 ? Real(1) : Real(0);
                const auto seen = L::load(visible) > L(0);
                if (!any_of(seen)) continue;
                const Parameters<Real> p(in, first, count);
                const L v_mean2d[2] = {gather(ct.v_means2d + 2 * at, 2, count), gather(ct.v_means2d + 2 * at + 1, 2, count)};
                const L v_conic[3] = {gather(ct.v_conics + 3 * at, 3, count), gather(ct.v_conics + 3 * at + 1, 3, count),
                                      gather(ct.v_conics + 3 * at + 2, 3, count)};
                const ProjectionGradients<L> g =
                    project_vjp(cameras[c], p.mean, p.quat, p.scale, L(in.eps2d), v_mean2d,
                                gather(ct.v_depths + at, 1, count), v_conic, gather(ct.v_compensations + at, 1, count));
                for (int k = 0; k < 3; ++k) v_mean[k] += select(seen, g.mean[k], L(0));
                for (int k = 0; k < 4; ++k) v_quat[k] += select(seen, g.quat[k], L(0));
                for (int k = 0; k < 3; ++k) v_scale[k] += select(seen, g.scale[k], L(0));
                if (!ct.v_viewmats) continue;
                for (int k = 0; k < 9; ++k) poses[c * 12 + k] += select(seen, g.rotation[k], L(0));
                for (int k = 0; k < 3; ++k) poses[c * 12 + 9 + k] += select(seen, g.translation[k], L(0));
            }
            for (int k = 0; k < 3; ++k) scatter(v_mean[k], ct.v_means + 3 * first + k, 3, count);
            for (int k = 0; k < 4; ++k) scatter(v_quat[k], ct.v_quats + 4 * first + k, 4, count);
            for (int k = 0; k < 3; ++k) scatter(v_scale[k], ct.v_scales + 3 * first + k, 3, count);
        }
        for (size_t k = 0; k < poses.size(); ++k) pose_sums[begin / kGrain * C * 12 + k] = sum_of(poses[k]);
    });

    if (!ct.v_viewmats) return;
    std::fill_n(ct.v_viewmats, 16 * C, Real(0));
    for (int64_t r = 0; r < ranges; ++r)
        for (int64_t c = 0; c < C; ++c)
            for (int k = 0; k < 12; ++k) {
                const int64_t entry = k < 9 ? 4 * (k / 3) + k % 3 : 4 * (k - 9) + 3;
                ct.v_viewmats[16 * c + entry] += pose_sums[(r * C + c) * 12 + k];
            }
}

template void project_gaussians(const ProjectionInputs<float>&, const ProjectionOutputs<float>&);
template void project_gaussians(const ProjectionInputs<double>&, const ProjectionOutputs<double>&);
template void project_gaussians_vjp(const ProjectionInputs<float>&, const ProjectionCotangents<float>&);
template void project_gaussians_vjp(const ProjectionInputs<double>&, const ProjectionCotangents<double>&);

}  // namespace spatial
