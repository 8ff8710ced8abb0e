#pragma once

#include <cstdint>

namespace spatial {

template <class Real>
struct SphericalHarmonicsInputs {
    int64_t num;
    int degree, num_bases;  // bases in memory, at least (degree + 1)²
    const Real *dirs, *coeffs;  // [N, 3] of any length, [N, num_bases, 3]
    const uint8_t* masks;       // [N] or null: false gives zeros
};

template <class Real>
void spherical_harmonics(const SphericalHarmonicsInputs<Real>& in, Real* colors);

// v_dirs may be null. Writes every entry of v_coeffs.
template <class Real>
void spherical_harmonics_vjp(const SphericalHarmonicsInputs<Real>& in, const Real* v_colors, Real* v_coeffs, Real* v_dirs);

}  // namespace spatial
