#pragma once

#include <cstdint>

namespace spatial {

template <class Real>
struct RelocationInputs {
    int64_t num;
    const Real *opacities, *scales;  // [N], [N, 3]
    const int32_t* ratios;           // [N] copies that each Gaussian becomes, itself included
};

template <class Real>
void relocate_gaussians(const RelocationInputs<Real>& in, Real* new_opacities, Real* new_scales);

}  // namespace spatial
