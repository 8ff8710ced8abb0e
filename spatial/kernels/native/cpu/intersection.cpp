#include "intersection.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "pool.h"
#include "spatial/intersection.h"

namespace spatial {
namespace {

constexpr int64_t kGrain = 4096;

template <class Real>
VisibleEllipse<Real> ellipse_of(const IntersectionInputs<Real>& in, int64_t i) {
    return {in.means2d[2 * i], in.means2d[2 * i + 1], in.conics + 3 * i, in.opacities[i]};
}

template <class Real>
bool is_visible(const IntersectionInputs<Real>& in, int64_t i) {
    return in.radii[2 * i] > 0 && in.opacities[i] >= Real(kMinAlpha);
}

// Calls visit(tile) for every tile of the image that Gaussian i touches.
template <class Real, class Visit>
void for_each_tile(const IntersectionInputs<Real>& in, int64_t i, Visit&& visit) {
    const VisibleEllipse<Real> ellipse = ellipse_of(in, i);
    const TileRange rows = ellipse.rows(in.tile_size, in.tile_rows);
    for (int row = rows.begin; row < rows.end; ++row) {
        const TileRange columns = ellipse.columns(row, in.tile_size, in.tile_columns);
        for (int column = columns.begin; column < columns.end; ++column) visit(row * in.tile_columns + column);
    }
}

// Ascending order of positive floats is that of their bits. Least-significant-digit radix sort, stable.
template <class Real>
void sort_by_depth(const Real* depths, std::vector<int32_t>& ids, int64_t first) {
    constexpr int kDigit = 11, kBuckets = 1 << kDigit;
    using Key = std::conditional_t<sizeof(Real) == 4, uint32_t, uint64_t>;
    const int passes = (8 * int(sizeof(Key)) + kDigit - 1) / kDigit;
    struct Entry {
        Key key;
        int32_t id;
    };
    std::vector<Entry> from(ids.size()), to(ids.size());
    std::vector<std::vector<int32_t>> counts(passes, std::vector<int32_t>(kBuckets));
    for (size_t k = 0; k < ids.size(); ++k) {
        std::memcpy(&from[k].key, depths + ids[k] - first, sizeof(Key));
        from[k].id = ids[k];
        for (int pass = 0; pass < passes; ++pass) ++counts[pass][(from[k].key >> (kDigit * pass)) & (kBuckets - 1)];
    }
    for (int pass = 0; pass < passes; ++pass) {
        int32_t sum = 0;
        for (int32_t& count : counts[pass]) sum += std::exchange(count, sum);
        for (const Entry& entry : from) to[counts[pass][(entry.key >> (kDigit * pass)) & (kBuckets - 1)]++] = entry;
        from.swap(to);
    }
    for (size_t k = 0; k < ids.size(); ++k) ids[k] = from[k].id;
}

}  // namespace

template <class Real>
Intersections<Real>::Intersections(const IntersectionInputs<Real>& in)
    : in_(in), slot_offsets_(in.num_cameras * in.num_gaussians + 1) {
    const int64_t total = in.num_cameras * in.num_gaussians, ranges = (total + kGrain - 1) / kGrain;
    std::vector<std::vector<int32_t>> found(ranges);  // a range's tiles, joined in order
    parallel_ranges(total, kGrain, [&](int64_t begin, int64_t end) {
        std::vector<int32_t>& tiles = found[begin / kGrain];
        tiles.reserve(4 * kGrain);
        for (int64_t i = begin; i < end; ++i) {
            const size_t before = tiles.size();
            if (is_visible(in, i)) for_each_tile(in, i, [&](int tile) { tiles.push_back(tile); });
            slot_offsets_[i + 1] = int32_t(tiles.size() - before);
        }
    });
    for (int64_t i = 0; i < total; ++i) slot_offsets_[i + 1] += slot_offsets_[i];
    size_t size = 0;
    for (const auto& tiles : found) size += tiles.size();
    tile_of_slot_.reserve(size);
    for (const auto& tiles : found) tile_of_slot_.insert(tile_of_slot_.end(), tiles.begin(), tiles.end());
}

template <class Real>
void Intersections<Real>::fill(int32_t* slot_offsets_out, int32_t* tile_offsets, int32_t* flatten_ids, int32_t* slots) const {
    const IntersectionInputs<Real>& in = in_;
    const std::vector<int32_t>&slot_offsets = slot_offsets_, &tile_of_slot = tile_of_slot_;
    const int64_t N = in.num_gaussians, tiles = int64_t(in.tile_columns) * in.tile_rows;
    std::copy(slot_offsets.begin(), slot_offsets.end(), slot_offsets_out);
    int32_t base = 0;
    for (int64_t c = 0; c < in.num_cameras; ++c) {
        std::vector<int32_t> order;
        order.reserve(N);
        for (int64_t i = c * N; i < (c + 1) * N; ++i)
            if (slot_offsets[i + 1] > slot_offsets[i]) order.push_back(int32_t(i));
        sort_by_depth(in.depths + c * N, order, c * N);

        // A counting sort by tile that keeps the order of depth: chunks count, the sums give each its place, chunks scatter.
        const int64_t chunks = std::max<int64_t>(1, std::min<int64_t>(num_threads(), int64_t(order.size()) / kGrain));
        const int64_t chunk_size = (int64_t(order.size()) + chunks - 1) / chunks;
        std::vector<int32_t> places(chunks * tiles);
        const auto for_chunk = [&](int64_t chunk, auto&& visit) {
            const int64_t end = std::min<int64_t>(order.size(), (chunk + 1) * chunk_size);
            for (int64_t k = chunk * chunk_size; k < end; ++k)
                for (int32_t slot = slot_offsets[order[k]]; slot < slot_offsets[order[k] + 1]; ++slot)
                    visit(order[k], slot, places[chunk * tiles + tile_of_slot[slot]]);
        };
        parallel_for(chunks, [&](int64_t chunk) {
            for_chunk(chunk, [](int32_t, int32_t, int32_t& place) { ++place; });
        });
        for (int64_t tile = 0; tile < tiles; ++tile) {
            tile_offsets[c * tiles + tile] = base;
            for (int64_t chunk = 0; chunk < chunks; ++chunk) base += std::exchange(places[chunk * tiles + tile], base);
        }
        parallel_for(chunks, [&](int64_t chunk) {
            for_chunk(chunk, [&](int32_t id, int32_t slot, int32_t& place) {
                flatten_ids[place] = id;
                slots[place++] = slot;
            });
        });
    }
    tile_offsets[in.num_cameras * tiles] = base;
}

template class Intersections<float>;
template class Intersections<double>;

}  // namespace spatial
