// One 16×16 tile as SIMD groups: W pixels of a row are one register. A Gaussian visits only the groups that its ellipse
// reaches and whose rays still run; both are bit masks over groups.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lanes.h"
#include "rasterization.h"
#include "spatial/blending.h"

namespace spatial {

template <class Real>
struct TileLayout {
    static constexpr int W = kWidth<Real>;
    static constexpr int kColumns = kTileSize / W;            // groups in a row
    static constexpr int kGroups = kTileSize * kColumns;      // group = column · 16 + row
    static constexpr int kPixels = kTileSize * kTileSize;
    static_assert(kGroups <= 128);

    static int column(int group) { return group / kTileSize; }
    static int row(int group) { return group % kTileSize; }
    static int pixel(int group, int lane) { return row(group) * kTileSize + column(group) * W + lane; }
};

// A set of groups. 32 of them for AVX2 floats; 128 for SSE2 doubles.
template <int N>
struct GroupSet {
    static constexpr int kWords = (N + 63) / 64;
    uint64_t words[kWords] = {};

    void set(int i) { words[i / 64] |= uint64_t(1) << (i % 64); }
    void clear(int i, bool when) { words[i / 64] &= ~(uint64_t(when) << (i % 64)); }
    bool any() const {
        uint64_t merged = 0;
        for (uint64_t word : words) merged |= word;
        return merged != 0;
    }
    void put16(int position, uint64_t bits) { words[position / 64] |= bits << (position % 64); }
    template <class Visit>
    SPATIAL_HD void for_each_common(const GroupSet& other, Visit&& visit) const {
        for (int k = 0; k < kWords; ++k)
            for (uint64_t word = words[k] & other.words[k]; word; word &= word - 1) visit(64 * k + __builtin_ctzll(word));
    }
};

// A Gaussian as a tile sees it: what depends on the row, for all 16 rows at once.
template <class Real>
struct TileGaussian {
    using Layout = TileLayout<Real>;
    static constexpr int W = Layout::W;
    using L = Lanes<Real, W>;

    Falloff<L> falloff;
    L dx[Layout::kColumns];             // mean.x - pixel centre of each column of groups
    alignas(64) Real dy[kTileSize];     // mean.y - pixel centre of each row
    alignas(64) Real linear[kTileSize]; // xy · dy
    alignas(64) Real constant[kTileSize];  // log2 opacity + yy · dy²
    GroupSet<Layout::kGroups> reached;

    SPATIAL_HD TileGaussian(const Falloff<Real>& f, Real mean_x, Real mean_y, Real x0, Real y0)
        : falloff{L(f.xx), L(f.xy), L(f.yy), L(f.log2_opacity)} {
        const L half(Real(0.5)), margin(Real(1e-3));
        for (int c = 0; c < Layout::kColumns; ++c) dx[c] = L(mean_x - x0 - Real(c * W)) - half - L::iota();
        for (int r = 0; r < kTileSize; r += W) {
            const L d = L(mean_y - y0 - Real(r)) - half - L::iota();
            const Span<L> span = visible_span(falloff, d);
            d.store(dy + r);
            (falloff.xy * d).store(linear + r);
            (falloff.log2_opacity + falloff.yy * d * d).store(constant + r);
            const L centre = span.centre + L(mean_x - x0) - half;  // in units of the tile's pixel index
            const L low = centre - span.reach - margin, high = centre + span.reach + margin;
            const auto real = span.reach >= L(0);
            for (int c = 0; c < Layout::kColumns; ++c) {
                const auto touched = real & (high >= L(Real(c * W))) & (low <= L(Real(c * W + W - 1)));
                reached.put16(c * kTileSize + r, bits_of(touched));
            }
        }
    }

    SPATIAL_HD L log2_alpha(int group) const {
        const int row = Layout::row(group);
        const L x = dx[Layout::column(group)];
        return L(constant[row]) + x * (falloff.xx * x + L(linear[row]));
    }
};

// Where a tile lies, which of its pixels exist, and the list of Gaussians that touch it.
template <class Real>
struct Tile {
    using Layout = TileLayout<Real>;
    int64_t camera;
    int x0, y0, columns, rows;  // columns, rows: pixels inside the image
    int32_t begin, end;

    Tile(const RasterizationInputs<Real>& in, int64_t index) {
        const int across = (in.width + kTileSize - 1) / kTileSize, down = (in.height + kTileSize - 1) / kTileSize;
        camera = index / (int64_t(across) * down);
        const int within = int(index % (int64_t(across) * down));
        x0 = within % across * kTileSize;
        y0 = within / across * kTileSize;
        columns = std::min(kTileSize, in.width - x0);
        rows = std::min(kTileSize, in.height - y0);
        begin = in.tile_offsets[index];
        end = in.tile_offsets[index + 1];
    }

    // Calls visit(pixel index in the tile's group-major order, pixel index in the images) for every pixel inside the image.
    template <class Visit>
    void for_each_pixel(const RasterizationInputs<Real>& in, Visit&& visit) const {
        for (int row = 0; row < rows; ++row) {
            const int64_t image_row = (camera * in.height + y0 + row) * in.width + x0;
            for (int x = 0; x < columns; ++x)
                visit((x / Layout::W * kTileSize + row) * Layout::W + x % Layout::W, image_row + x);
        }
    }
    void start_rays(Real* transmittance, GroupSet<Layout::kGroups>& running) const {
        std::fill_n(transmittance, Layout::kPixels, Real(-1));  // outside the image: finished before it begins
        for (int row = 0; row < rows; ++row)
            for (int x = 0; x < columns; ++x) {
                const int group = x / Layout::W * kTileSize + row;
                transmittance[group * Layout::W + x % Layout::W] = Real(1);
                running.set(group);
            }
    }
};

inline int64_t num_tiles(int64_t cameras, int width, int height) {
    return cameras * ((width + kTileSize - 1) / kTileSize) * ((height + kTileSize - 1) / kTileSize);
}

// Number of channels, known to the compiler for the usual cases.
template <int D>
struct Channels {
    static constexpr int kCapacity = D;
    explicit Channels(int) {}
    constexpr int count() const { return D; }
};
template <>
struct Channels<0> {
    static constexpr int kCapacity = 32;  // wider feature maps are rendered in chunks by the caller
    int value;
    explicit Channels(int channels) : value(channels) {}
    int count() const { return value; }
};

// Falloffs of all Gaussians that lists mention, computed once and not once a tile.
template <class Real>
struct PackedGaussian {
    Falloff<Real> falloff;
    Real mean_x, mean_y;
};

}  // namespace spatial
