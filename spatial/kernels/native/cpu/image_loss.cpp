// Fused L1 + SSIM. The window is separable: columns are filtered first, from a block that fits in the second-level cache,
// then each line of the result, where shifted loads cross cache lines. Channels stay interleaved, since a shift by one pixel is a shift by `channels` numbers.
#include "image_loss.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "lanes.h"
#include "pool.h"
#include "spatial/ssim.h"

namespace spatial {
namespace {

constexpr int kHalo = kSsimTaps - 1;
constexpr int kBlockRows = 32, kBlockColumns = 256;  // of results; columns count numbers, not pixels

template <class Real>
struct Blocks {
    int64_t rows, row_numbers;  // of the valid map
    int64_t down, across, count;

    explicit Blocks(const ImageLossInputs<Real>& in, int64_t map_rows, int64_t map_row_numbers)
        : rows(map_rows), row_numbers(map_row_numbers), down((rows + kBlockRows - 1) / kBlockRows),
          across((row_numbers + kBlockColumns - 1) / kBlockColumns), count(in.num_images * down * across) {}
};

struct Block {
    int64_t image, row, column;
    int rows, columns;

    template <class Real>
    Block(const Blocks<Real>& blocks, int64_t index)
        : image(index / (blocks.down * blocks.across)), row(index / blocks.across % blocks.down * kBlockRows),
          column(index % blocks.across * kBlockColumns), rows(int(std::min<int64_t>(kBlockRows, blocks.rows - row))),
          columns(int(std::min<int64_t>(kBlockColumns, blocks.row_numbers - column))) {}
};

// Windowed sum of `stride`-spaced numbers.
template <class Real, int W = kWidth<Real>>
SPATIAL_HD Lanes<Real, W> windowed(const Real* first, int64_t stride) {
    using L = Lanes<Real, W>;
    L sum = L(Real(kSsimWindow[0])) * L::load(first);
    for (int k = 1; k < kSsimTaps; ++k) sum += L(Real(kSsimWindow[k])) * L::load(first + k * stride);
    return sum;
}

// Memory of a thread's own that begins on a cache line, so that registers load from one line each.
template <class Real>
Real* scratch(int which, size_t size) {
    constexpr size_t kLine = 64;
    thread_local std::vector<Real> buffers[2];
    if (buffers[which].size() < size + kLine / sizeof(Real)) buffers[which].resize(size + kLine / sizeof(Real));
    const uintptr_t address = reinterpret_cast<uintptr_t>(buffers[which].data());
    return reinterpret_cast<Real*>((address + kLine - 1) / kLine * kLine);
}

template <class Real>
int whole_registers(int count) {
    return (count + kWidth<Real> - 1) / kWidth<Real> * kWidth<Real>;
}

// Copies part of a row; where the mask is off, the image's numbers are the target's.
template <class Real>
void copy_row(const ImageLossInputs<Real>& in, int64_t pixel_row, int64_t begin, int64_t count, Real* x, Real* y) {
    const int64_t at = pixel_row * in.width * in.channels + begin;
    std::copy_n(in.image + at, count, x);
    std::copy_n(in.target + at, count, y);
    if (!in.mask) return;
    const uint8_t* mask = in.mask + pixel_row * in.width;
    for (int64_t i = 0; i < count; ++i)
        if (!mask[(begin + i) / in.channels]) x[i] = y[i];
}

template <class Real>
struct Counts {
    double pixels, windows;  // numbers that the two means are over

    explicit Counts(const ImageLossInputs<Real>& in) {
        const int64_t plane = int64_t(in.height) * in.width;
        pixels = double(in.num_images * plane * in.channels);
        windows = double(in.num_images) * (in.height - kHalo) * (in.width - kHalo) * in.channels;
        if (!in.mask) return;
        int64_t kept = 0, centres = 0;
        for (int64_t b = 0; b < in.num_images; ++b)
            for (int r = 0; r < in.height; ++r)
                for (int c = 0; c < in.width; ++c) {
                    if (!in.mask[(b * in.height + r) * in.width + c]) continue;
                    ++kept;
                    centres += r >= kHalo / 2 && r < in.height - kHalo / 2 && c >= kHalo / 2 && c < in.width - kHalo / 2;
                }
        pixels = double(std::max<int64_t>(1, kept)) * in.channels;
        windows = double(std::max<int64_t>(1, centres)) * in.channels;
    }
};

template <class Real>
bool is_kept(const ImageLossInputs<Real>& in, int64_t image, int64_t map_row, int64_t map_number) {
    const int64_t row = map_row + kHalo / 2, column = map_number / in.channels + kHalo / 2;
    return !in.mask || in.mask[(image * in.height + row) * in.width + column];
}

// Sum of SSIM over one block of the valid map.
template <class Real>
double ssim_block(const ImageLossInputs<Real>& in, const Blocks<Real>& blocks, const Block& block, Real* moments) {
    constexpr int W = kWidth<Real>;
    using L = Lanes<Real, W>;
    const int reach = kHalo * in.channels, padded = whole_registers<Real>(block.columns);
    const int row_size = whole_registers<Real>(padded + reach), all_maps = 4 * row_size;
    Real* rows = scratch<Real>(0, size_t(block.rows + kHalo) * all_maps);
    Real *line = scratch<Real>(1, size_t(all_maps) + 4 * padded), *results = line + all_maps;
    for (int r = 0; r < block.rows + kHalo; ++r) {
        Real *x = rows + size_t(r) * all_maps, *y = x + row_size, *squares = y + row_size, *product = squares + row_size;
        copy_row(in, block.image * in.height + block.row + r, block.column, block.columns + reach, x, y);
        for (int i = 0; i < row_size; i += W) {
            const L xs = L::load(x + i), ys = L::load(y + i);
            (xs * xs + ys * ys).store(squares + i);
            (xs * ys).store(product + i);
        }
    }
    double sum = 0;
    const int64_t plane = in.num_images * blocks.rows * blocks.row_numbers;
    for (int r = 0; r < block.rows; ++r) {
        const int64_t at = (block.image * blocks.rows + block.row + r) * blocks.row_numbers + block.column;
        for (int i = 0; i < all_maps; i += W) windowed(rows + size_t(r) * all_maps + i, all_maps).store(line + i);
        for (int i = 0; i < padded; i += W) {
            const L mean_x = windowed(line + i, in.channels), mean_y = windowed(line + row_size + i, in.channels);
            const L squares = windowed(line + 2 * row_size + i, in.channels);
            const Ssim<L> s = ssim_of_moments(mean_x, mean_y, squares, windowed(line + 3 * row_size + i, in.channels));
            s.value.store(results + i);
            s.by_mean_x.store(results + padded + i);
            s.by_squares.store(results + 2 * padded + i);
            s.by_product.store(results + 3 * padded + i);
        }
        if (in.mask)
            for (int i = 0; i < block.columns; ++i)
                if (!is_kept(in, block.image, block.row + r, block.column + i))
                    for (int map = 0; map < 4; ++map) results[map * padded + i] = 0;
        L sums(0);
        int i = 0;
        for (; i + W <= block.columns; i += W) sums += L::load(results + i);
        Real row_sum = sum_of(sums);
        for (; i < block.columns; ++i) row_sum += results[i];
        if (moments)
            for (int map = 0; map < 3; ++map)
                std::copy_n(results + (map + 1) * padded, block.columns, moments + map * plane + at);
        sum += row_sum;
    }
    return sum;
}

// out[i] = windowed sum over the rows row - 10 … row of a map's numbers first + i; zero beyond the map.
template <class Real, int W = kWidth<Real>>
void filter_columns(const Real* map, int64_t row, int64_t rows, int64_t row_numbers, int64_t first, Real* out, int64_t count) {
    using L = Lanes<Real, W>;
    const int begin = int(std::max<int64_t>(0, row - rows + 1)), end = int(std::min<int64_t>(kSsimTaps, row + 1));
    const int64_t low = std::max<int64_t>(0, -first), high = std::min<int64_t>(count, row_numbers - first);
    std::fill_n(out, low, Real(0));
    const Real* newest = map + row * row_numbers + first;
    int64_t i = low;
    for (; i + W <= high; i += W) {
        L sum(0);
        for (int k = begin; k < end; ++k) sum += L(kSsimWindow[k]) * L::load(newest + i - k * row_numbers);
        sum.store(out + i);
    }
    for (; i < high; ++i) {
        out[i] = 0;
        for (int k = begin; k < end; ++k) out[i] += Real(kSsimWindow[k]) * newest[i - k * row_numbers];
    }
    std::fill(out + std::max(low, high), out + count, Real(0));
}

}  // namespace

template <class Real>
double l1_ssim(const ImageLossInputs<Real>& in, Real* moments) {
    constexpr int W = kWidth<Real>;
    const Blocks<Real> blocks(in, in.height - kHalo, int64_t(in.width - kHalo) * in.channels);
    std::vector<double> ssim_sums(blocks.count), l1_sums(in.num_images * in.height);
    parallel_for(blocks.count, [&](int64_t i) { ssim_sums[i] = ssim_block(in, blocks, Block(blocks, i), moments); });
    parallel_for(in.num_images * in.height, [&](int64_t row) {
        const int64_t count = int64_t(in.width) * in.channels;
        const Real *x = in.image + row * count, *y = in.target + row * count;
        const uint8_t* mask = in.mask ? in.mask + row * in.width : nullptr;
        Lanes<Real, W> sums(0);
        int64_t i = 0;
        if (!mask)
            for (; i + W <= count; i += W) sums += absolute(Lanes<Real, W>::load(x + i) - Lanes<Real, W>::load(y + i));
        Real sum = sum_of(sums);
        for (; i < count; ++i) sum += mask && !mask[i / in.channels] ? Real(0) : std::abs(x[i] - y[i]);
        l1_sums[row] = sum;
    });
    double ssim = 0, l1 = 0;
    for (double sum : ssim_sums) ssim += sum;
    for (double sum : l1_sums) l1 += sum;
    const Counts<Real> counts(in);
    return (1 - in.ssim_weight) * l1 / counts.pixels + in.ssim_weight * (1 - ssim / counts.windows);
}

template <class Real>
void l1_ssim_vjp(const ImageLossInputs<Real>& in, const Real* moments, Real v_loss, Real* v_image) {
    constexpr int W = kWidth<Real>;
    using L = Lanes<Real, W>;
    const Counts<Real> counts(in);
    const Real l1_scale = Real((1 - in.ssim_weight) * v_loss / counts.pixels);
    const Real ssim_scale = Real(-in.ssim_weight * v_loss / counts.windows);
    const int64_t map_rows = in.height - kHalo, map_numbers = int64_t(in.width - kHalo) * in.channels;
    const int64_t plane = in.num_images * map_rows * map_numbers;
    const Blocks<Real> blocks(in, in.height, int64_t(in.width) * in.channels);
    parallel_for(blocks.count, [&](int64_t index) {
        const Block block(blocks, index);
        const int reach = kHalo * in.channels, row_size = whole_registers<Real>(block.columns + reach) + W;
        const int64_t first = block.column - reach;  // of the numbers of the map that reach this block
        Real* rows = scratch<Real>(0, 5 * size_t(row_size));
        Real *x = rows + 3 * row_size, *y = x + row_size;
        for (int r = 0; r < block.rows; ++r) {
            const int64_t row = block.row + r;
            for (int map = 0; map < 3; ++map)
                filter_columns(moments + map * plane + block.image * map_rows * map_numbers, row, map_rows, map_numbers, first,
                               rows + map * row_size, row_size);
            copy_row(in, block.image * in.height + row, block.column, block.columns, x, y);
            Real* out = v_image + (block.image * in.height + row) * in.width * in.channels + block.column;
            const uint8_t* mask = in.mask ? in.mask + (block.image * in.height + row) * in.width : nullptr;
            for (int i = 0; i < block.columns; i += W) {
                const L by_mean = windowed(rows + i, in.channels), by_squares = windowed(rows + row_size + i, in.channels);
                const L by_product = windowed(rows + 2 * row_size + i, in.channels);
                const L xs = L::load(x + i), ys = L::load(y + i), difference = xs - ys;
                const L sign = select(difference > L(0), L(l1_scale), select(difference < L(0), L(-l1_scale), L(0)));
                const L gradient = sign + L(ssim_scale) * (by_mean + L(2) * xs * by_squares + ys * by_product);
                gradient.store(x + i);  // the row is read once
            }
            std::copy_n(x, block.columns, out);
            if (mask)
                for (int i = 0; i < block.columns; ++i)
                    if (!mask[(block.column + i) / in.channels]) out[i] = 0;
        }
    });
}

template double l1_ssim(const ImageLossInputs<float>&, float*);
template double l1_ssim(const ImageLossInputs<double>&, double*);
template void l1_ssim_vjp(const ImageLossInputs<float>&, const float*, float, float*);
template void l1_ssim_vjp(const ImageLossInputs<double>&, const double*, double, double*);

}  // namespace spatial
