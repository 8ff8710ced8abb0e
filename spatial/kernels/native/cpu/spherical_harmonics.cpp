#include "spherical_harmonics.h"

#include <algorithm>
#include <cmath>

#include "pool.h"
#include "spatial/spherical_harmonics.h"

namespace spatial {
namespace {

constexpr int64_t kGrain = 2048;

template <class Real>
struct Direction {
    Real x, y, z, inverse_length;
    explicit Direction(const Real* d) {
        const Real squared = d[0] * d[0] + d[1] * d[1] + d[2] * d[2];
        inverse_length = squared > 0 ? 1 / std::sqrt(squared) : Real(0);
        x = d[0] * inverse_length;
        y = d[1] * inverse_length;
        z = d[2] * inverse_length;
    }
};

}  // namespace

template <class Real>
void spherical_harmonics(const SphericalHarmonicsInputs<Real>& in, Real* colors) {
    const int used = sh_bases(in.degree);
    parallel_ranges(in.num, kGrain, [&](int64_t begin, int64_t end) {
        Real basis[25];
        for (int64_t i = begin; i < end; ++i) {
            Real sum[3] = {0, 0, 0};
            if (!in.masks || in.masks[i]) {
                const Direction<Real> d(in.dirs + 3 * i);
                sh_basis(in.degree, d.x, d.y, d.z, basis);
                const Real* coeffs = in.coeffs + 3 * in.num_bases * i;
                for (int k = 0; k < used; ++k)
                    for (int ch = 0; ch < 3; ++ch) sum[ch] += basis[k] * coeffs[3 * k + ch];
            }
            std::copy_n(sum, 3, colors + 3 * i);
        }
    });
}

template <class Real>
void spherical_harmonics_vjp(const SphericalHarmonicsInputs<Real>& in, const Real* v_colors, Real* v_coeffs, Real* v_dirs) {
    const int used = sh_bases(in.degree);
    parallel_ranges(in.num, kGrain, [&](int64_t begin, int64_t end) {
        Real basis[25], v_basis[25];
        for (int64_t i = begin; i < end; ++i) {
            Real* out = v_coeffs + 3 * in.num_bases * i;
            const bool active = !in.masks || in.masks[i];
            const int written = active ? used : 0;
            if (active) {
                const Direction<Real> d(in.dirs + 3 * i);
                const Real* v = v_colors + 3 * i;
                sh_basis(in.degree, d.x, d.y, d.z, basis);
                for (int k = 0; k < used; ++k)
                    for (int ch = 0; ch < 3; ++ch) out[3 * k + ch] = basis[k] * v[ch];
                if (v_dirs) {
                    const Real* coeffs = in.coeffs + 3 * in.num_bases * i;
                    for (int k = 0; k < used; ++k)
                        v_basis[k] = coeffs[3 * k] * v[0] + coeffs[3 * k + 1] * v[1] + coeffs[3 * k + 2] * v[2];
                    Real g[3];
                    sh_basis_vjp(in.degree, d.x, d.y, d.z, v_basis, g);
                    const Real along = g[0] * d.x + g[1] * d.y + g[2] * d.z;  // only what turns the direction counts
                    v_dirs[3 * i] = d.inverse_length * (g[0] - along * d.x);
                    v_dirs[3 * i + 1] = d.inverse_length * (g[1] - along * d.y);
                    v_dirs[3 * i + 2] = d.inverse_length * (g[2] - along * d.z);
                }
            } else if (v_dirs) {
                std::fill_n(v_dirs + 3 * i, 3, Real(0));
            }
            std::fill(out + 3 * written, out + 3 * in.num_bases, Real(0));
        }
    });
}

template void spherical_harmonics(const SphericalHarmonicsInputs<float>&, float*);
template void spherical_harmonics(const SphericalHarmonicsInputs<double>&, double*);
template void spherical_harmonics_vjp(const SphericalHarmonicsInputs<float>&, const float*, float*, float*);
template void spherical_harmonics_vjp(const SphericalHarmonicsInputs<double>&, const double*, double*, double*);

}  // namespace spatial
