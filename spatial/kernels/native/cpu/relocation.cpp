#include "relocation.h"

#include <cmath>

#include "pool.h"
#include "spatial/relocation.h"

namespace spatial {

template <class Real>
void relocate_gaussians(const RelocationInputs<Real>& in, Real* new_opacities, Real* new_scales) {
    parallel_ranges(in.num, 256, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const Relocation<Real> r = relocate(in.opacities[i], in.ratios[i]);
            new_opacities[i] = r.opacity;
            for (int k = 0; k < 3; ++k) new_scales[3 * i + k] = in.scales[3 * i + k] * r.scale_factor;
        }
    });
}

template void relocate_gaussians(const RelocationInputs<float>&, float*, float*);
template void relocate_gaussians(const RelocationInputs<double>&, double*, double*);

}  // namespace spatial
