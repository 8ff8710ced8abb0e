// Alpha of one Gaussian at one pixel, front-to-back blending and its vector-Jacobian product (Kerbl 2023, eq. 2–3).
// T is a scalar or SIMD lanes; a mask is what comparing two T gives.
#pragma once

#include "spatial/maths.h"

namespace spatial {

constexpr double kMinAlpha = 1.0 / 255.0;        // a fainter contribution is skipped
constexpr double kMinTransmittance = 1e-4;       // a ray ends before its transmittance falls to this
constexpr double kLog2MinAlpha = -7.994353436858858;
constexpr double kLog2E = 1.4426950408889634;

// A Gaussian's falloff in base 2: log2(alpha) = log2_opacity + xx·dx² + xy·dx·dy + yy·dy², (dx, dy) = mean - pixel.
template <class T>
struct Falloff {
    T xx, xy, yy, log2_opacity;

    SPATIAL_HD T log2_alpha(T dx, T dy) const { return dx * (xx * dx + xy * dy) + (yy * dy * dy + log2_opacity); }
};

template <class T>
SPATIAL_HD Falloff<T> falloff_from_conic(const T conic[3], T log2_opacity) {
    const T half(Scalar<T>(-0.5 * kLog2E)), full(Scalar<T>(-kLog2E));
    return {half * conic[0], full * conic[1], half * conic[2], log2_opacity};
}

// The interval of x - mean.x in which alpha ≥ 1/255 on the line at distance dy: centre ± reach; reach < 0 where none.
template <class T>
struct Span {
    T centre, reach;
};

// `inverse` is -1 / (2 xx): lines of one ellipse share the division.
template <class T>
SPATIAL_HD Span<T> visible_span(const Falloff<T>& f, T inverse, T dy) {
    // xx·dx² + xy·dy·dx + c = 0 with xx < 0 and c = log2_opacity - log2(1/255) + yy·dy²
    const T c = f.log2_opacity - T(Scalar<T>(kLog2MinAlpha)) + f.yy * dy * dy;
    const T b = f.xy * dy;
    const T discriminant = b * b - T(4) * f.xx * c;
    const T reach = select(discriminant < T(0), T(-1), square_root(maximum(discriminant, T(0))) * inverse);
    return {-b * inverse, reach};  // x - mean.x = -dx
}

// One Gaussian over one pixel whose ray still runs where transmittance > 0 (a finished ray stores it negated).
template <class T>
struct Contribution {
    MaskOf<T> counts;  // visible, and the ray goes on behind it
    T raw_alpha;       // before the clamp
    T alpha;           // 0 where not visible
    T weight;          // alpha · transmittance where it counts, else 0
};

template <class T>
SPATIAL_HD Contribution<T> blend(T log2_alpha, T max_alpha, T& transmittance) {
    Contribution<T> c;
    const MaskOf<T> visible = log2_alpha >= T(Scalar<T>(kLog2MinAlpha));
    c.raw_alpha = power_of_two(log2_alpha);
    c.alpha = keep_where(visible, minimum(c.raw_alpha, max_alpha));
    const T absorbed = c.alpha * transmittance;
    const T next = transmittance - absorbed;
    const MaskOf<T> running = next > T(Scalar<T>(kMinTransmittance));  // false on a finished ray: next is negative
    c.counts = visible & running;
    c.weight = keep_where(running, absorbed);
    transmittance = select(running, next, minus_absolute(transmittance));
    return c;
}

// d loss / d log(alpha) at the pixel, where `color_gradient` is Σ color·v_color of this Gaussian, `before` the
// transmittance in front of it and `behind` what everything behind it (background and alpha too) adds to the loss.
template <class T>
SPATIAL_HD T blend_vjp(const Contribution<T>& c, T max_alpha, T before, T color_gradient, T behind) {
    const T v_alpha = before * color_gradient - behind * reciprocal(T(1) - c.alpha);
    return keep_where(c.counts & (c.raw_alpha <= max_alpha), c.raw_alpha * v_alpha);
}

}  // namespace spatial
