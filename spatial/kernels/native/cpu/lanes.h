// Lanes<Real, W>: W numbers in one SIMD register, on GCC's and Clang's vector types. The same source compiles to AVX-512,
// AVX2, SSE2 and NEON; W is chosen as the native width, since wider types than the machine's spill badly.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "spatial/maths.h"

namespace spatial {

#if defined(SPATIAL_REGISTER_BYTES)  // for tests: the code of a wider instruction set on a machine that lacks it
constexpr int kRegisterBytes = SPATIAL_REGISTER_BYTES;
#elif defined(__AVX512F__) && defined(__AVX512DQ__)
constexpr int kRegisterBytes = 64;
#elif defined(__AVX2__)
constexpr int kRegisterBytes = 32;
#else
constexpr int kRegisterBytes = 16;
#endif

template <class Real>
constexpr int kWidth = kRegisterBytes / int(sizeof(Real));

#if defined(__AVX512F__) && defined(__AVX512DQ__)
#define SPATIAL_AVX512 1
#endif

// What comparing W numbers gives: all bits of a lane, or one bit where the machine has mask registers (lanes_avx512.h).
template <class Real, int W>
struct Mask {
    using Integer = std::conditional_t<sizeof(Real) == 4, int32_t, int64_t>;
    typedef Real Numbers __attribute__((vector_size(W * sizeof(Real))));
    typedef Integer Raw __attribute__((vector_size(W * sizeof(Real))));
    Raw raw;

    SPATIAL_HD static Mask less(Numbers a, Numbers b) { return {Raw(a < b)}; }
    SPATIAL_HD static Mask at_most(Numbers a, Numbers b) { return {Raw(a <= b)}; }
    SPATIAL_HD friend Mask operator&(Mask a, Mask b) { return {a.raw & b.raw}; }
};

template <class Real, int W>
struct Lanes {
    typedef Real Raw __attribute__((vector_size(W * sizeof(Real))));
    using Integer = std::conditional_t<sizeof(Real) == 4, int32_t, int64_t>;
    typedef Integer Bits __attribute__((vector_size(W * sizeof(Real))));
    Raw raw;

    Lanes() = default;
    SPATIAL_HD Lanes(Raw value) : raw(value) {}
    template <class Number, class = std::enable_if_t<std::is_arithmetic_v<Number>>>
    SPATIAL_HD explicit Lanes(Number value) : raw(Real(value) - Raw{}) {}  // minus zeros: a broadcast that keeps -0

    SPATIAL_HD static Lanes load(const Real* p) {
        Lanes result;
        std::memcpy(&result.raw, p, sizeof(Raw));
        return result;
    }
    SPATIAL_HD void store(Real* p) const { std::memcpy(p, &raw, sizeof(Raw)); }
    SPATIAL_HD static Lanes iota() {
        Lanes result;
        for (int i = 0; i < W; ++i) result.raw[i] = Real(i);
        return result;
    }
    SPATIAL_HD Real operator[](int i) const { return raw[i]; }

    SPATIAL_HD friend Lanes operator+(Lanes a, Lanes b) { return a.raw + b.raw; }
    SPATIAL_HD friend Lanes operator-(Lanes a, Lanes b) { return a.raw - b.raw; }
    SPATIAL_HD friend Lanes operator*(Lanes a, Lanes b) { return a.raw * b.raw; }
    SPATIAL_HD friend Lanes operator/(Lanes a, Lanes b) { return a.raw / b.raw; }
    SPATIAL_HD Lanes operator-() const { return -raw; }
    SPATIAL_HD Lanes& operator+=(Lanes b) { raw += b.raw; return *this; }
    SPATIAL_HD Lanes& operator-=(Lanes b) { raw -= b.raw; return *this; }
    SPATIAL_HD Lanes& operator*=(Lanes b) { raw *= b.raw; return *this; }

    SPATIAL_HD friend Mask<Real, W> operator<(Lanes a, Lanes b) { return Mask<Real, W>::less(a.raw, b.raw); }
    SPATIAL_HD friend Mask<Real, W> operator>(Lanes a, Lanes b) { return Mask<Real, W>::less(b.raw, a.raw); }
    SPATIAL_HD friend Mask<Real, W> operator<=(Lanes a, Lanes b) { return Mask<Real, W>::at_most(a.raw, b.raw); }
    SPATIAL_HD friend Mask<Real, W> operator>=(Lanes a, Lanes b) { return Mask<Real, W>::at_most(b.raw, a.raw); }
};

template <class Real, int W>
struct ScalarOf<Lanes<Real, W>> {
    using type = Real;
};

template <class Real, int W>
struct MaskType<Lanes<Real, W>> {
    using type = Mask<Real, W>;
};

template <class Real, int W>
SPATIAL_HD Lanes<Real, W> select(Mask<Real, W> condition, Lanes<Real, W> a, Lanes<Real, W> b) {
    return condition.raw ? a.raw : b.raw;
}

// Bit i is set where lane i's mask is true.
template <class Real, int W>
SPATIAL_HD uint32_t bits_of(Mask<Real, W> mask) {
#if defined(__AVX__)
    if constexpr (sizeof(mask.raw) == 32 && sizeof(Real) == 4) return _mm256_movemask_ps((__m256)mask.raw);
    if constexpr (sizeof(mask.raw) == 32 && sizeof(Real) == 8) return _mm256_movemask_pd((__m256d)mask.raw);
#endif
#if defined(__SSE2__)
    if constexpr (sizeof(mask.raw) == 16 && sizeof(Real) == 4) return _mm_movemask_ps((__m128)mask.raw);
    if constexpr (sizeof(mask.raw) == 16 && sizeof(Real) == 8) return _mm_movemask_pd((__m128d)mask.raw);
#endif
    uint32_t bits = 0;
    for (int i = 0; i < W; ++i) bits |= uint32_t(mask.raw[i] != 0) << i;
    return bits;
}

template <class Real, int W>
SPATIAL_HD bool any_of(Mask<Real, W> mask) {
    return bits_of(mask) != 0;
}

template <class Real, int W>
SPATIAL_HD Real sum_of(Lanes<Real, W> a) {
    if constexpr (W == 1) {
        return a.raw[0];
    } else {
        typename Lanes<Real, W / 2>::Raw low, high;
        std::memcpy(&low, &a.raw, sizeof(low));
        std::memcpy(&high, reinterpret_cast<const char*>(&a.raw) + sizeof(low), sizeof(high));
        return sum_of(Lanes<Real, W / 2>(low + high));
    }
}

// The compiler finds these instructions only now and then by itself.
template <class Real, int W>
SPATIAL_HD Lanes<Real, W> minimum(Lanes<Real, W> a, Lanes<Real, W> b) {
    using Raw = typename Lanes<Real, W>::Raw;
#if defined(__AVX__)
    if constexpr (sizeof(Raw) == 32 && sizeof(Real) == 4) return Raw(_mm256_min_ps((__m256)a.raw, (__m256)b.raw));
#endif
    return a.raw < b.raw ? a.raw : b.raw;
}
template <class Real, int W>
SPATIAL_HD Lanes<Real, W> maximum(Lanes<Real, W> a, Lanes<Real, W> b) {
    using Raw = typename Lanes<Real, W>::Raw;
#if defined(__AVX__)
    if constexpr (sizeof(Raw) == 32 && sizeof(Real) == 4) return Raw(_mm256_max_ps((__m256)a.raw, (__m256)b.raw));
#endif
    return a.raw > b.raw ? a.raw : b.raw;
}
template <class Real, int W>
SPATIAL_HD Lanes<Real, W> absolute(Lanes<Real, W> a) {
    using Bits = typename Lanes<Real, W>::Bits;
    return (typename Lanes<Real, W>::Raw)((Bits)a.raw & ~(Bits)(Lanes<Real, W>(-0.0).raw));
}
template <class Real, int W>
SPATIAL_HD Lanes<Real, W> minus_absolute(Lanes<Real, W> a) {
    using Bits = typename Lanes<Real, W>::Bits;
    return (typename Lanes<Real, W>::Raw)((Bits)a.raw | (Bits)(Lanes<Real, W>(-0.0).raw));
}
template <class Real, int W>
SPATIAL_HD Lanes<Real, W> keep_where(Mask<Real, W> condition, Lanes<Real, W> a) {
    return (typename Lanes<Real, W>::Raw)((typename Lanes<Real, W>::Bits)a.raw & condition.raw);
}
// Bit i is set where lane i is negative.
template <class Real, int W>
SPATIAL_HD uint32_t signs_of(Lanes<Real, W> a) {
    return bits_of(Mask<Real, W>{(typename Lanes<Real, W>::Bits)a.raw < 0});
}
template <class Real, int W>
SPATIAL_HD Lanes<Real, W> reciprocal(Lanes<Real, W> a) {
    return Lanes<Real, W>(Real(1)) / a;
}
// out[i] = sum_of(values[i]).
template <int N, class Real, int W>
SPATIAL_HD void store_sums(const Lanes<Real, W>* values, Real* out) {
    for (int i = 0; i < N; ++i) out[i] = sum_of(values[i]);
}

template <class Real, int W>
SPATIAL_HD Lanes<Real, W> square_root(Lanes<Real, W> a) {
    using Raw = typename Lanes<Real, W>::Raw;
#if defined(__AVX__)
    if constexpr (sizeof(Raw) == 32 && sizeof(Real) == 4) return Raw(_mm256_sqrt_ps((__m256)a.raw));
    if constexpr (sizeof(Raw) == 32 && sizeof(Real) == 8) return Raw(_mm256_sqrt_pd((__m256d)a.raw));
#endif
#if defined(__SSE2__)
    if constexpr (sizeof(Raw) == 16 && sizeof(Real) == 4) return Raw(_mm_sqrt_ps((__m128)a.raw));
    if constexpr (sizeof(Raw) == 16 && sizeof(Real) == 8) return Raw(_mm_sqrt_pd((__m128d)a.raw));
#endif
    Lanes<Real, W> result;
    for (int i = 0; i < W; ++i) result.raw[i] = square_root(Real(a.raw[i]));
    return result;
}

#if defined(SPATIAL_AVX512)
}  // namespace spatial
#include "lanes_avx512.h"
namespace spatial {
#endif

// 2^x. Floats: range reduction by the magic number 1.5·2^23, then a minimax polynomial on [-0.5, 0.5] (relative error
// 1e-7 over [-120, 120]; below, the argument is clamped, since masked lanes
// must stay finite: Inf·0 is NaN).
template <int W>
SPATIAL_HD Lanes<float, W> power_of_two(Lanes<float, W> x) {
    using L = Lanes<float, W>;
    x = maximum(x, L(-120.0f));
    const L magic(12582912.0f);
    const L shifted = x + magic;
    const L f = x - (shifted - magic);
    L p(1.32647e-3f);
    p = p * f + L(9.67151e-3f);
    p = p * f + L(5.550734e-2f);
    p = p * f + L(2.4022242e-1f);
    p = p * f + L(6.9314698e-1f);
    p = p * f + L(1.0f);
    typename L::Bits exponent, mantissa;
    std::memcpy(&exponent, &shifted.raw, sizeof(exponent));
    std::memcpy(&mantissa, &p.raw, sizeof(mantissa));
    mantissa += exponent << 23;
    L result;
    std::memcpy(&result.raw, &mantissa, sizeof(mantissa));
    return result;
}

template <int W>
SPATIAL_HD Lanes<double, W> power_of_two(Lanes<double, W> x) {
    Lanes<double, W> result;
    for (int i = 0; i < W; ++i) result.raw[i] = ::exp2(x.raw[i]);
    return result;
}

}  // namespace spatial
