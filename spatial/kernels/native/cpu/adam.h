#pragma once

#include <cstdint>

namespace spatial {

template <class Real>
struct AdamInputs {
    int64_t num_rows, row_size;
    const uint8_t* visible;  // [N] or null: rows whose gradient counts; the others and their moments stay as they are
    Real* parameter;         // [N, row_size]
    const Real* gradient;
    Real *exp_avg, *exp_avg_sq;
    Real lr, beta1, beta2, eps, bias1, bias2;  // bias: 1 - beta^step
    int64_t columns;       // leading numbers of a row that change
    const Real* lr_scales; // [columns] factors of lr, or null
};

// One step of Adam (Kingma 2015, algorithm 1) on the visible rows.
template <class Real>
void adam(const AdamInputs<Real>& in);

}  // namespace spatial
