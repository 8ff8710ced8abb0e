// One 16×16 tile as SIMD groups: a register holds a block of 4×2 pixels (AVX2) or 4×4 (AVX-512), since small Gaussians
// fill compact blocks better than rows. A Gaussian visits only the groups that its ellipse reaches and whose rays still
// run; both are bit masks over groups.
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
    static constexpr int kGroupColumns = W < 4 ? W : 4, kGroupRows = W / kGroupColumns;  // pixels of a group
    static constexpr int kStrips = kTileSize / kGroupColumns;                            // columns of groups
    static constexpr int kGroups = kTileSize * kStrips;  // group = strip · 16 + its first row; some numbers stay unused
    static constexpr int kPixels = kTileSize * kTileSize;
    static constexpr uint32_t kAllLanes = (1u << W) - 1u;
    static_assert(kGroups <= 128);

    static int strip(int group) { return group / kTileSize; }
    static int row(int group) { return group % kTileSize; }
    static int group_of(int x, int y) { return x / kGroupColumns * kTileSize + y / kGroupRows * kGroupRows; }
    // Pixels of a group lie together, so that they load as one register.
    static int offset(int group) { return group * kGroupColumns; }
    static int offset(int x, int y) { return (x / kGroupColumns * kTileSize + y) * kGroupColumns + x % kGroupColumns; }
};

// A set of groups.
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

// Falloffs of all Gaussians that lists mention, computed once and not once a tile.
template <class Real>
struct alignas(8 * sizeof(Real)) PackedGaussian {  // never across a cache line
    Falloff<Real> falloff;
    Real mean_x, mean_y;
    Real inverse;  // -1 / (2 xx)
};

template <class Real>
constexpr Real kRows[kTileSize] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// A Gaussian as a tile sees it.
template <class Real>
struct TileGaussian {
    using Layout = TileLayout<Real>;
    static constexpr int W = Layout::W;
    using L = Lanes<Real, W>;

    Falloff<L> falloff;
    L dx[Layout::kStrips];  // mean.x - pixel centre, by strip
    L dy_first;             // mean.y - pixel centre in the group whose first row is 0

    SPATIAL_HD TileGaussian(const PackedGaussian<Real>& g, Real x0, Real y0)
        : falloff{L(g.falloff.xx), L(g.falloff.xy), L(g.falloff.yy), L(g.falloff.log2_opacity)} {
        Real lane_x[W], lane_y[W];
        for (int i = 0; i < W; ++i) {
            lane_x[i] = Real(i % Layout::kGroupColumns) + Real(0.5);
            lane_y[i] = Real(i / Layout::kGroupColumns) + Real(0.5);
        }
        for (int s = 0; s < Layout::kStrips; ++s)
            dx[s] = L(g.mean_x - x0 - Real(s * Layout::kGroupColumns)) - L::load(lane_x);
        dy_first = L(g.mean_y - y0) - L::load(lane_y);
    }

    SPATIAL_HD L x(int group) const { return dx[Layout::strip(group)]; }
    SPATIAL_HD L y(int group) const { return dy_first - L(kRows<Real>[Layout::row(group)]); }
};

// The groups of a tile that hold a pixel row's point of the Gaussian's visible ellipse.
template <class Real>
SPATIAL_HD GroupSet<TileLayout<Real>::kGroups> reached_groups(const PackedGaussian<Real>& g, Real x0, Real y0) {
    using Layout = TileLayout<Real>;
    constexpr int W = Layout::W;
    constexpr uint32_t kFirstRows = Layout::kGroupRows == 1 ? 0xffff : Layout::kGroupRows == 2 ? 0x5555 : 0x1111;
    using L = Lanes<Real, W>;
    const Falloff<L> falloff{L(g.falloff.xx), L(g.falloff.xy), L(g.falloff.yy), L(g.falloff.log2_opacity)};
    const L half(Real(0.5)), margin(Real(1e-3));
    GroupSet<Layout::kGroups> reached;
    for (int r = 0; r < kTileSize; r += W) {  // here a lane is a row of the tile
        const Span<L> span = visible_span(falloff, L(g.inverse), L(g.mean_y - y0 - Real(r)) - half - L::iota());
        const L centre = span.centre + L(g.mean_x - x0) - half;  // in units of the tile's pixel index
        const L low = centre - span.reach - margin, high = centre + span.reach + margin;
        const auto real = span.reach >= L(0);
        for (int s = 0; s < Layout::kStrips; ++s) {
            const Real first = Real(s * Layout::kGroupColumns), last = first + Real(Layout::kGroupColumns - 1);
            const uint32_t touched = bits_of(real & (high >= L(first)) & (low <= L(last)));
            uint32_t merged = touched;  // a group is marked by its first row
            for (int k = 1; k < Layout::kGroupRows; ++k) merged |= touched >> k;
            reached.put16(s * kTileSize + r, merged & kFirstRows);
        }
    }
    return reached;
}

// Reached groups of the next Gaussians of a list, found ahead: their square roots overlap, whereas between two visits
// each would wait for its own behind a mispredicted branch.
template <class Real>
class ReachedAhead {
  public:
    using Set = GroupSet<TileLayout<Real>::kGroups>;
    static constexpr int kAhead = 32;

    ReachedAhead(const RasterizationInputs<Real>& in, const PackedGaussian<Real>* packed, int32_t begin, int32_t end, Real x0, Real y0)
        : in_(in), packed_(packed), filled_(begin), end_(end), x0_(x0), y0_(y0) {}

    // Must be asked for ascending positions.
    SPATIAL_HD const Set& operator[](int32_t position) {
        if (position >= filled_) fill();
        return sets_[position % kAhead];
    }

  private:
    void fill() {
        const int32_t stop = std::min(end_, filled_ + kAhead);
        for (; filled_ < stop; ++filled_) {
            if (filled_ + 8 < end_) {
                __builtin_prefetch(packed_ + in_.flatten_ids[filled_ + 8]);
                __builtin_prefetch(in_.colors + int64_t(in_.flatten_ids[filled_ + 8]) * in_.channels);
            }
            sets_[filled_ % kAhead] = reached_groups(packed_[in_.flatten_ids[filled_]], x0_, y0_);
        }
    }

    const RasterizationInputs<Real>& in_;
    const PackedGaussian<Real>* packed_;
    int32_t filled_, end_;
    Real x0_, y0_;
    Set sets_[kAhead];
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

    // Calls visit(offset in the tile's storage, pixel index in the images) for every pixel inside the image.
    template <class Visit>
    void for_each_pixel(const RasterizationInputs<Real>& in, Visit&& visit) const {
        for (int y = 0; y < rows; ++y) {
            const int64_t image_row = (camera * in.height + y0 + y) * in.width + x0;
            for (int x = 0; x < columns; ++x) visit(Layout::offset(x, y), image_row + x);
        }
    }
    void start_rays(Real* transmittance, GroupSet<Layout::kGroups>& running) const {
        std::fill_n(transmittance, Layout::kPixels, Real(-1));  // outside the image: finished before it begins
        for (int y = 0; y < rows; ++y)
            for (int x = 0; x < columns; ++x) {
                transmittance[Layout::offset(x, y)] = Real(1);
                running.set(Layout::group_of(x, y));
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

}  // namespace spatial
