// Rasterisation, tile by tile: a thread owns a tile, Gaussians are the outer loop, registers of pixels the inner one.
// The backward pass replays the same loop front to back, so that nothing is stored per pixel but the final image.
#include "rasterization.h"

#include <cmath>
#include <memory>
#include <vector>

#include "pool.h"
#include "tile.h"

namespace spatial {
namespace {

template <class Real>
std::unique_ptr<PackedGaussian<Real>[]> pack(const RasterizationInputs<Real>& in) {
    const int64_t total = in.num_cameras * in.num_gaussians;
    std::unique_ptr<PackedGaussian<Real>[]> packed(new PackedGaussian<Real>[total]);  // no list mentions what is left out
    parallel_ranges(total, 4096, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const Real* conic = in.conics + 3 * i;
            if (!(conic[0] > 0)) continue;  // culled
            const Falloff<Real> falloff = falloff_from_conic(conic, Real(std::log2(in.opacities[i])));
            packed[i] = {falloff, in.means2d[2 * i], in.means2d[2 * i + 1], Real(-0.5) / falloff.xx};
        }
    });
    return packed;
}

template <class Real, int D>
struct ForwardTile {
    using Layout = TileLayout<Real>;
    using L = Lanes<Real, Layout::W>;
    alignas(64) Real transmittance[Layout::kPixels];
    alignas(64) Real color[Channels<D>::kCapacity][Layout::kPixels];
};

template <class Real, int D>
void rasterize_tile(const RasterizationInputs<Real>& in, const PackedGaussian<Real>* packed, int64_t index,
                    Real* render_colors, Real* render_alphas) {
    using Layout = TileLayout<Real>;
    using L = Lanes<Real, Layout::W>;
    const Channels<D> channels(in.channels);
    const Tile<Real> tile(in, index);
    ForwardTile<Real, D> state;
    GroupSet<Layout::kGroups> running;
    tile.start_rays(state.transmittance, running);
    for (int d = 0; d < channels.count(); ++d) std::fill_n(state.color[d], Layout::kPixels, Real(0));
    const L max_alpha(in.max_alpha);
    ReachedAhead<Real> reached(in, packed, tile.begin, tile.end, Real(tile.x0), Real(tile.y0));

    for (int32_t k = tile.begin; k < tile.end && running.any(); ++k) {
        const int32_t id = in.flatten_ids[k];
        const TileGaussian<Real> gaussian(packed[id], Real(tile.x0), Real(tile.y0));
        const Real* color = in.colors + int64_t(id) * in.channels;
        reached[k].for_each_common(running, [&](int group) {
            const int at = Layout::offset(group);
            L transmittance = L::load(state.transmittance + at);
            const Contribution<L> c = blend(gaussian.falloff.log2_alpha(gaussian.x(group), gaussian.y(group)), max_alpha, transmittance);
            transmittance.store(state.transmittance + at);
            for (int d = 0; d < channels.count(); ++d) {
                Real* sum = state.color[d] + at;
                (L::load(sum) + c.weight * L(color[d])).store(sum);
            }
            running.clear(group, signs_of(transmittance) == Layout::kAllLanes);
        });
    }

    const Real* background = in.backgrounds ? in.backgrounds + tile.camera * in.channels : nullptr;
    tile.for_each_pixel(in, [&](int from, int64_t to) {
        const Real left = std::abs(state.transmittance[from]);
        render_alphas[to] = 1 - left;
        for (int d = 0; d < channels.count(); ++d)
            render_colors[to * channels.count() + d] = state.color[d][from] + (background ? left * background[d] : Real(0));
    });
}

// Gradients of one Gaussian summed over a tile. Moments of p = d loss / d log alpha give those of mean, conic, opacity.
enum Moment { kOne, kX, kY, kXX, kXY, kYY, kAbsX, kAbsY, kNumMoments };

template <class Real, int D, bool kAbsolute>
void rasterize_tile_vjp(const RasterizationInputs<Real>& in, const RasterizationCotangents<Real>& ct,
                        const PackedGaussian<Real>* packed, int64_t index, Real* gradients) {
    using Layout = TileLayout<Real>;
    using L = Lanes<Real, Layout::W>;
    const Channels<D> channels(in.channels);
    const int size = kNumMoments + in.channels;
    const Tile<Real> tile(in, index);
    alignas(64) Real transmittance[Layout::kPixels];
    alignas(64) Real behind[Layout::kPixels] = {};  // what the Gaussians behind, background and alpha add to the loss
    alignas(64) Real v_color[Channels<D>::kCapacity][Layout::kPixels];
    for (int d = 0; d < channels.count(); ++d) std::fill_n(v_color[d], Layout::kPixels, Real(0));
    GroupSet<Layout::kGroups> running;
    tile.start_rays(transmittance, running);
    tile.for_each_pixel(in, [&](int to, int64_t from) {
        Real total = ct.v_render_alphas ? -(1 - ct.render_alphas[from]) * ct.v_render_alphas[from] : Real(0);
        for (int d = 0; d < channels.count(); ++d) {
            v_color[d][to] = ct.v_render_colors[from * channels.count() + d];
            total += ct.render_colors[from * channels.count() + d] * v_color[d][to];
        }
        behind[to] = total;
    });
    const L max_alpha(in.max_alpha);
    ReachedAhead<Real> reached(in, packed, tile.begin, tile.end, Real(tile.x0), Real(tile.y0));

    int32_t k = tile.begin;
    for (; k < tile.end && running.any(); ++k) {
        const int32_t id = in.flatten_ids[k];
        const TileGaussian<Real> gaussian(packed[id], Real(tile.x0), Real(tile.y0));
        const Real* color = in.colors + int64_t(id) * in.channels;
        const L conic_xx = gaussian.falloff.xx * L(Real(-2 / kLog2E)), conic_xy = gaussian.falloff.xy * L(Real(-1 / kLog2E));
        const L conic_yy = gaussian.falloff.yy * L(Real(-2 / kLog2E));
        L moments[kNumMoments + Channels<D>::kCapacity], *color_sums = moments + kNumMoments;
        for (int m = 0; m < size; ++m) moments[m] = L(Real(0));
        reached[k].for_each_common(running, [&](int group) {
            const int at = Layout::offset(group);
            const L x = gaussian.x(group), y = gaussian.y(group);
            const L before = L::load(transmittance + at);
            L after = before;
            const Contribution<L> c = blend(gaussian.falloff.log2_alpha(x, y), max_alpha, after);
            after.store(transmittance + at);
            L color_gradient(Real(0));
            for (int d = 0; d < channels.count(); ++d) {
                const L v = L::load(v_color[d] + at);
                color_gradient += v * L(color[d]);
                color_sums[d] += c.weight * v;
            }
            const L remaining = L::load(behind + at) - c.weight * color_gradient;
            remaining.store(behind + at);
            const L p_ = blend_vjp(c, max_alpha, before, color_gradient, remaining);
            const L px = p_ * x, py = p_ * y;
            moments[kOne] += p_;
            moments[kX] += px;
            moments[kY] += py;
            moments[kXX] += px * x;
            moments[kXY] += px * y;
            moments[kYY] += py * y;
            if constexpr (kAbsolute) {
                moments[kAbsX] += absolute(conic_xx * px + conic_xy * py);
                moments[kAbsY] += absolute(conic_xy * px + conic_yy * py);
            }
            running.clear(group, signs_of(after) == Layout::kAllLanes);
        });
        Real* out = gradients + int64_t(k) * size;
        if constexpr (D > 0)
            store_sums<kNumMoments + D>(moments, out);
        else
            for (int m = 0; m < size; ++m) out[m] = sum_of(moments[m]);
    }
    std::fill_n(gradients + int64_t(k) * size, int64_t(tile.end - k) * size, Real(0));
}

// Sums each Gaussian's gradients in the order of its intersections (no racing atomics) and turns moments into gradients.
template <class Real, int D>
void reduce(const RasterizationInputs<Real>& in, const RasterizationCotangents<Real>& ct, const Real* gradients) {
    const Channels<D> channels(in.channels);
    const int size = kNumMoments + channels.count();
    const int64_t total = in.num_cameras * in.num_gaussians, last = int64_t(ct.gaussian_offsets[total]) - 1;
    constexpr int kAhead = 16;  // gradients lie far apart, in the order of tiles
    parallel_ranges(total, 2048, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            Real m[kNumMoments + Channels<D>::kCapacity] = {};
            for (int64_t n = ct.gaussian_offsets[i]; n < ct.gaussian_offsets[i + 1]; ++n) {
                const Real* addend = gradients + int64_t(ct.places[n]) * size;
                const Real* later = gradients + int64_t(ct.places[std::min(n + kAhead, last)]) * size;
                __builtin_prefetch(later);
                __builtin_prefetch(later + size - 1);
                for (int j = 0; j < size; ++j) m[j] += addend[j];
            }
            const Real *conic = in.conics + 3 * i, opacity = in.opacities[i];
            const Real half(0.5);
            ct.v_means2d[2 * i] = -(conic[0] * m[kX] + conic[1] * m[kY]);
            ct.v_means2d[2 * i + 1] = -(conic[1] * m[kX] + conic[2] * m[kY]);
            ct.v_conics[3 * i] = -half * m[kXX];
            ct.v_conics[3 * i + 1] = -m[kXY];
            ct.v_conics[3 * i + 2] = -half * m[kYY];
            ct.v_opacities[i] = opacity > 0 ? m[kOne] / opacity : Real(0);
            std::copy_n(m + kNumMoments, channels.count(), ct.v_colors + i * channels.count());
            if (ct.v_means2d_abs) std::copy_n(m + kAbsX, 2, ct.v_means2d_abs + 2 * i);
        }
    });
}

template <class Function>
void with_channels(int channels, Function&& function) {
    if (channels == 3) return function(std::integral_constant<int, 3>());
    if (channels == 4) return function(std::integral_constant<int, 4>());
    function(std::integral_constant<int, 0>());
}

}  // namespace

template <class Real>
void rasterize(const RasterizationInputs<Real>& in, Real* render_colors, Real* render_alphas) {
    const auto packed = pack(in);
    with_channels(in.channels, [&](auto channels) {
        parallel_for(num_tiles(in.num_cameras, in.width, in.height), [&](int64_t tile) {
            rasterize_tile<Real, decltype(channels)::value>(in, packed.get(), tile, render_colors, render_alphas);
        });
    });
}

template <class Real>
void rasterize_vjp(const RasterizationInputs<Real>& in, const RasterizationCotangents<Real>& ct) {
    const auto packed = pack(in);
    const int64_t num_intersections = ct.gaussian_offsets[in.num_cameras * in.num_gaussians];
    const std::unique_ptr<Real[]> gradients(new Real[num_intersections * (kNumMoments + in.channels)]);
    with_channels(in.channels, [&](auto channels) {
        constexpr int D = decltype(channels)::value;
        parallel_for(num_tiles(in.num_cameras, in.width, in.height), [&](int64_t tile) {
            if (ct.v_means2d_abs)
                rasterize_tile_vjp<Real, D, true>(in, ct, packed.get(), tile, gradients.get());
            else
                rasterize_tile_vjp<Real, D, false>(in, ct, packed.get(), tile, gradients.get());
        });
        reduce<Real, D>(in, ct, gradients.get());
    });
}

template void rasterize(const RasterizationInputs<float>&, float*, float*);
template void rasterize(const RasterizationInputs<double>&, double*, double*);
template void rasterize_vjp(const RasterizationInputs<float>&, const RasterizationCotangents<float>&);
template void rasterize_vjp(const RasterizationInputs<double>&, const RasterizationCotangents<double>&);

}  // namespace spatial
