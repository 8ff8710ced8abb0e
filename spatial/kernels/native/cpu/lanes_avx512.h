// Lanes of whole AVX-512 registers, where the compiler's vector types fall short of the machine: comparisons live in mask
// registers, and a dozen horizontal sums share their shuffles. Included by lanes.h; results are the same to the bit but for
// reciprocal.
#pragma once

namespace spatial {

template <>
struct Mask<float, 16> {
    __mmask16 raw;
    SPATIAL_HD static Mask less(__m512 a, __m512 b) { return {_mm512_cmp_ps_mask(a, b, _CMP_LT_OS)}; }
    SPATIAL_HD static Mask at_most(__m512 a, __m512 b) { return {_mm512_cmp_ps_mask(a, b, _CMP_LE_OS)}; }
    SPATIAL_HD friend Mask operator&(Mask a, Mask b) { return {__mmask16(a.raw & b.raw)}; }
};
template <>
struct Mask<double, 8> {
    __mmask8 raw;
    SPATIAL_HD static Mask less(__m512d a, __m512d b) { return {_mm512_cmp_pd_mask(a, b, _CMP_LT_OS)}; }
    SPATIAL_HD static Mask at_most(__m512d a, __m512d b) { return {_mm512_cmp_pd_mask(a, b, _CMP_LE_OS)}; }
    SPATIAL_HD friend Mask operator&(Mask a, Mask b) { return {__mmask8(a.raw & b.raw)}; }
};

using Floats = Lanes<float, 16>;
using Doubles = Lanes<double, 8>;

SPATIAL_HD uint32_t bits_of(Mask<float, 16> mask) { return mask.raw; }
SPATIAL_HD uint32_t bits_of(Mask<double, 8> mask) { return mask.raw; }
SPATIAL_HD bool any_of(Mask<float, 16> mask) { return mask.raw != 0; }
SPATIAL_HD bool any_of(Mask<double, 8> mask) { return mask.raw != 0; }
SPATIAL_HD Floats select(Mask<float, 16> condition, Floats a, Floats b) {
    return Floats::Raw(_mm512_mask_blend_ps(condition.raw, b.raw, a.raw));
}
SPATIAL_HD Doubles select(Mask<double, 8> condition, Doubles a, Doubles b) {
    return Doubles::Raw(_mm512_mask_blend_pd(condition.raw, b.raw, a.raw));
}
SPATIAL_HD Floats keep_where(Mask<float, 16> condition, Floats a) {
    return Floats::Raw(_mm512_maskz_mov_ps(condition.raw, a.raw));
}
SPATIAL_HD Doubles keep_where(Mask<double, 8> condition, Doubles a) {
    return Doubles::Raw(_mm512_maskz_mov_pd(condition.raw, a.raw));
}
SPATIAL_HD uint32_t signs_of(Floats a) { return _mm512_movepi32_mask(_mm512_castps_si512(a.raw)); }
SPATIAL_HD uint32_t signs_of(Doubles a) { return _mm512_movepi64_mask(_mm512_castpd_si512(a.raw)); }
SPATIAL_HD Floats minimum(Floats a, Floats b) { return Floats::Raw(_mm512_min_ps(a.raw, b.raw)); }
SPATIAL_HD Doubles minimum(Doubles a, Doubles b) { return Doubles::Raw(_mm512_min_pd(a.raw, b.raw)); }
SPATIAL_HD Floats maximum(Floats a, Floats b) { return Floats::Raw(_mm512_max_ps(a.raw, b.raw)); }
SPATIAL_HD Doubles maximum(Doubles a, Doubles b) { return Doubles::Raw(_mm512_max_pd(a.raw, b.raw)); }
SPATIAL_HD Floats square_root(Floats a) { return Floats::Raw(_mm512_sqrt_ps(a.raw)); }
SPATIAL_HD Doubles square_root(Doubles a) { return Doubles::Raw(_mm512_sqrt_pd(a.raw)); }

// Within 2e-7 of 1/a: an estimate of 14 bits and a step of Newton's, since the divider serves 16 floats in 16 cycles.
SPATIAL_HD Floats reciprocal(Floats a) {
    const Floats guess(Floats::Raw(_mm512_rcp14_ps(a.raw)));
    return guess * (Floats(2) - a * guess);
}

// Up to sixteen sums at once, in the order of sum_of: halves of a register are added until one number is left.
template <int N>
SPATIAL_HD void store_sums(const Floats* values, float* out) {
    static_assert(N <= 16);
    const auto value = [&](int i) { return i < N ? __m512(values[i].raw) : _mm512_setzero_ps(); };
    __m512 quarters[4];  // quarter q of quarters[i] is what is left of value i + 4 q
    for (int i = 0; i < 4; ++i) {
        const auto halves = [](__m512 a, __m512 b) {
            return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
        };
        const __m512 low = halves(value(i), value(i + 4)), high = halves(value(i + 8), value(i + 12));
        quarters[i] = _mm512_add_ps(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xdd));
    }
    const auto pairs = [](__m512 a, __m512 b) { return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)); };
    const __m512d even = _mm512_castps_pd(pairs(quarters[0], quarters[1])), odd = _mm512_castps_pd(pairs(quarters[2], quarters[3]));
    const __m512 sums = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(even, odd)), _mm512_castpd_ps(_mm512_unpackhi_pd(even, odd)));
    _mm512_mask_storeu_ps(out, __mmask16((1u << N) - 1), sums);
}

}  // namespace spatial
