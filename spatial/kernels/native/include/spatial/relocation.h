// What opacity and scale n copies of a Gaussian at one place need to look like the one they replace (Kheradmand 2024,
// "3D Gaussian Splatting as Markov Chain Monte Carlo", eq. 9).
#pragma once

#include "spatial/maths.h"

namespace spatial {

constexpr int kMaxCopies = 51;  // as the paper's own code: more copies count as 51

template <class T>
struct Relocation {
    T opacity, scale_factor;
};

// The paper's Σᵢ Σₖ C(i-1, k) (-1)ᵏ pᵏ⁺¹ / √(k + 1) is Σⱼ C(n, j) (-1)ʲ⁻¹ pʲ / √j (hockey stick), whose terms grow as
// (1 + p)ⁿ and cancel. With 1/√j = 2/√π ∫₀^∞ exp(-j x²) dx it is 2/√π ∫₀^∞ 1 - (1 - p exp(-x²))ⁿ dx: a line through n
// copies, which the trapezoidal rule integrates to 1e-9 (its error falls exponentially for analytic integrands).
template <class T>
SPATIAL_HD T opacity_integral(T p, T copies) {
    constexpr int kSteps = 120;
    const T step(0.05), two_over_root_pi(1.1283791670955126);
    T sum = T(0.5) * -expm1(copies * log1p(-p));
    for (int i = 1; i <= kSteps; ++i) {
        const T x = step * T(i);
        sum += -expm1(copies * log1p(-p * exp(-x * x)));
    }
    return two_over_root_pi * step * sum;
}

template <class T>
SPATIAL_HD Relocation<T> relocate(T opacity, int copies) {
    const T n(copies < 1 ? 1 : copies > kMaxCopies ? kMaxCopies : copies);
    const T shared = -expm1(log1p(-opacity) / n);  // 1 - (1 - opacity)^(1/n) without cancellation
    const T integral = opacity_integral(shared, n);
    return {shared, integral > 0 ? opacity / integral : T(1)};
}

}  // namespace spatial
