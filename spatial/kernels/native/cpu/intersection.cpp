#include "intersection.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
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
    const TileRange rows = ellipse.rows(in.tile_rows);
    for (int row = rows.begin; row < rows.end; ++row) {
        const TileRange columns = ellipse.columns(row, in.tile_columns);
        for (int column = columns.begin; column < columns.end; ++column) visit(row * in.tile_columns + column);
    }
}

// An intersection on its way into a tile's list. Ascending order of positive floats is that of their bits.
template <class Real>
struct Entry {
    std::conditional_t<sizeof(Real) == 4, uint32_t, uint64_t> key;  // depth
    int32_t id, intersection;  // number of the Gaussian, and of the intersection in the order of Gaussians
};

// Orders one tile's list by depth, equal depths as they came: a radix sort by bytes, from the least significant one. Lists
// are short enough for the first-level cache. `other` has room for as many; returns which of the two holds the result.
template <class Real>
Entry<Real>* sort_by_depth(Entry<Real>* entries, Entry<Real>* other, int64_t count) {
    constexpr int kBytes = sizeof(Real), kFew = 128;
    if (count <= kFew) {  // the place of each is the number of those before it: comparisons without branches
        using Key = decltype(entries->key);
        Key above[kFew] = {}, before[kFew] = {};  // an equal key counts where it came earlier
        for (int64_t k = 0; k < count; ++k) above[k] = entries[k].key + 1;
        const int64_t whole = (count + 15) / 16 * 16;
        for (int64_t k = 0; k < count; ++k) {
            const Key key = --above[k];
            for (int64_t j = 0; j < whole; ++j) before[j] += key < above[j];
        }
        for (int64_t k = 0; k < count; ++k) other[before[k]] = entries[k];
        return other;
    }
    int32_t counts[kBytes][256] = {};
    for (int64_t k = 0; k < count; ++k)
        for (int byte = 0; byte < kBytes; ++byte) ++counts[byte][entries[k].key >> (8 * byte) & 255];
    for (int byte = 0; byte < kBytes; ++byte) {
        if (counts[byte][entries[0].key >> (8 * byte) & 255] == count) continue;  // the same in all
        int32_t sum = 0;
        for (int32_t& place : counts[byte]) sum += std::exchange(place, sum);
        for (int64_t k = 0; k < count; ++k) other[counts[byte][entries[k].key >> (8 * byte) & 255]++] = entries[k];
        std::swap(entries, other);
    }
    return entries;
}

}  // namespace

template <class Real>
Intersections<Real>::Intersections(const IntersectionInputs<Real>& in)
    : in_(in), gaussian_offsets_(in.num_cameras * in.num_gaussians + 1) {
    const int64_t total = in.num_cameras * in.num_gaussians, ranges = (total + kGrain - 1) / kGrain;
    std::vector<std::vector<int32_t>> found(ranges);  // a range's tiles, joined in order
    parallel_ranges(total, kGrain, [&](int64_t begin, int64_t end) {
        std::vector<int32_t>& tiles = found[begin / kGrain];
        tiles.reserve(4 * kGrain);
        for (int64_t i = begin; i < end; ++i) {
            const size_t before = tiles.size();
            if (is_visible(in, i)) for_each_tile(in, i, [&](int tile) { tiles.push_back(tile); });
            gaussian_offsets_[i + 1] = int32_t(tiles.size() - before);
        }
    });
    for (int64_t i = 0; i < total; ++i) gaussian_offsets_[i + 1] += gaussian_offsets_[i];
    size_t size = 0;
    for (const auto& tiles : found) size += tiles.size();
    tiles_.reserve(size);
    for (const auto& tiles : found) tiles_.insert(tiles_.end(), tiles.begin(), tiles.end());
}

template <class Real>
void Intersections<Real>::fill(int32_t* gaussian_offsets_out, int32_t* tile_offsets, int32_t* flatten_ids, int32_t* places) const {
    const IntersectionInputs<Real>& in = in_;
    const int64_t total = in.num_cameras * in.num_gaussians, tiles = int64_t(in.tile_columns) * in.tile_rows;
    const int64_t lists = in.num_cameras * tiles;
    std::copy(gaussian_offsets_.begin(), gaussian_offsets_.end(), gaussian_offsets_out);

    // A counting sort by tile that keeps the order of Gaussians: chunks count, the sums give each its place, chunks scatter.
    const int64_t chunks = std::max<int64_t>(1, std::min<int64_t>(num_threads(), total / kGrain));
    const int64_t chunk_size = (total + chunks - 1) / chunks;
    std::vector<int32_t> starts(chunks * lists);
    const auto for_chunk = [&](int64_t chunk, auto&& visit) {
        const int64_t end = std::min(total, (chunk + 1) * chunk_size);
        for (int64_t i = chunk * chunk_size; i < end; ++i) {
            int32_t* first = starts.data() + chunk * lists + i / in.num_gaussians * tiles;
            for (int32_t n = gaussian_offsets_[i]; n < gaussian_offsets_[i + 1]; ++n) visit(i, n, first[tiles_[n]]);
        }
    };
    parallel_for(chunks, [&](int64_t chunk) {
        for_chunk(chunk, [](int64_t, int32_t, int32_t& place) { ++place; });
    });
    int32_t sum = 0, longest = 0;
    for (int64_t list = 0; list < lists; ++list) {
        tile_offsets[list] = sum;
        for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += std::exchange(starts[chunk * lists + list], sum);
        longest = std::max(longest, sum - tile_offsets[list]);
    }
    tile_offsets[lists] = sum;
    const std::unique_ptr<Entry<Real>[]> entries(new Entry<Real>[sum]);
    parallel_for(chunks, [&](int64_t chunk) {
        for_chunk(chunk, [&](int64_t i, int32_t n, int32_t& place) {
            Entry<Real>& entry = entries[place++];
            std::memcpy(&entry.key, in.depths + i, sizeof(entry.key));
            entry.id = int32_t(i);
            entry.intersection = n;
        });
    });

    parallel_for(lists, [&](int64_t list) {
        const int32_t begin = tile_offsets[list], count = tile_offsets[list + 1] - begin;
        if (count == 0) return;
        thread_local std::vector<Entry<Real>> other;
        if (other.size() < size_t(longest)) other.resize(longest);
        const Entry<Real>* sorted = sort_by_depth(entries.get() + begin, other.data(), count);
        for (int32_t k = 0; k < count; ++k) {
            flatten_ids[begin + k] = sorted[k].id;
            places[sorted[k].intersection] = begin + k;
        }
    });
}

template class Intersections<float>;
template class Intersections<double>;

}  // namespace spatial
