#include "adam.h"

#include <algorithm>
#include <cmath>

#include "pool.h"

namespace spatial {

template <class Real>
void adam(const AdamInputs<Real>& in) {
    const Real step = in.lr / in.bias1, correction = 1 / std::sqrt(in.bias2);
    const int64_t grain = std::max<int64_t>(1, 32768 / std::max<int64_t>(1, in.row_size));
    const auto update = [&](int64_t i, Real rate) {
        const Real g = in.gradient[i];
        const Real m = in.exp_avg[i] = in.beta1 * in.exp_avg[i] + (1 - in.beta1) * g;
        const Real v = in.exp_avg_sq[i] = in.beta2 * in.exp_avg_sq[i] + (1 - in.beta2) * g * g;
        in.parameter[i] -= rate * m / (std::sqrt(v) * correction + in.eps);
    };
    const bool whole_rows = in.columns == in.row_size && !in.lr_scales;
    const auto update_rows = [&](int64_t begin, int64_t end) {
        if (whole_rows) {  // runs of visible rows are one loop, so that narrow rows vectorise too
            for (int64_t i = begin * in.row_size; i < end * in.row_size; ++i) update(i, step);
            return;
        }
        for (int64_t row = begin; row < end; ++row)
            for (int64_t k = 0; k < in.columns; ++k)
                update(row * in.row_size + k, in.lr_scales ? step * in.lr_scales[k] : step);
    };
    parallel_ranges(in.num_rows, grain, [&](int64_t begin, int64_t end) {
        if (!in.visible) return update_rows(begin, end);
        for (int64_t row = begin; row < end;) {
            while (row < end && !in.visible[row]) ++row;
            const int64_t first = row;
            while (row < end && in.visible[row]) ++row;
            update_rows(first, row);
        }
    });
}

template void adam(const AdamInputs<float>&);
template void adam(const AdamInputs<double>&);

}  // namespace spatial
