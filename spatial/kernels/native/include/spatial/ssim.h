// Structural similarity (Wang 2004, eq. 13) at one pixel from filtered moments, and its derivatives by them.
#pragma once

#include "spatial/maths.h"

namespace spatial {

constexpr int kSsimTaps = 11;  // Gaussian window, sigma 1.5
constexpr double kSsimWindow[kSsimTaps] = {
    0.00102838008447911, 0.00759875813523919, 0.03600077212843083, 0.10936068950970002, 0.21300553771125370,
    0.26601172486179436, 0.21300553771125370, 0.10936068950970002, 0.03600077212843083, 0.00759875813523919,
    0.00102838008447911};

template <class T>
struct Ssim {
    T value;
    T by_mean_x, by_squares, by_product;  // derivatives by E[x], E[x² + y²] and E[xy]
};

// For images in [0, 1]: C1 = 0.01², C2 = 0.03².
template <class T>
SPATIAL_HD Ssim<T> ssim_of_moments(T mean_x, T mean_y, T squares, T product) {
    using S = Scalar<T>;
    const T c1(S(1e-4)), c2(S(9e-4)), two(2);
    const T cross = mean_x * mean_y, means = mean_x * mean_x + mean_y * mean_y;
    const T a1 = two * cross + c1, a2 = two * (product - cross) + c2;
    const T b1 = means + c1, b2 = squares - means + c2;
    const T inverse1 = reciprocal(b1), inverse2 = reciprocal(b2);
    const T value = a1 * a2 * inverse1 * inverse2;
    return {value, two * (mean_y * (a2 - a1) * inverse1 * inverse2 - value * mean_x * (inverse1 - inverse2)),
            -value * inverse2, two * a1 * inverse1 * inverse2};
}

}  // namespace spatial
