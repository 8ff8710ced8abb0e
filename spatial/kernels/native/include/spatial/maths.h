// Scalar versions of the few functions that kernels need by name. cpu/lanes.h overloads each for SIMD lanes, so that a
// header written with them serves a double in gradcheck, a vector register on the CPU and a float on CUDA alike.
#pragma once

#include <math.h>

#include "spatial/macros.h"

namespace spatial {

template <class T>
struct ScalarOf {
    using type = T;
};
template <class T>
using Scalar = typename ScalarOf<T>::type;

// What comparing two T gives.
template <class T>
struct MaskType {
    using type = bool;
};
template <class T>
using MaskOf = typename MaskType<T>::type;

SPATIAL_HD float select(bool condition, float a, float b) { return condition ? a : b; }
SPATIAL_HD double select(bool condition, double a, double b) { return condition ? a : b; }
SPATIAL_HD bool select(bool condition, bool a, bool b) { return condition ? a : b; }
SPATIAL_HD float square_root(float x) { return sqrtf(x); }
SPATIAL_HD double square_root(double x) { return ::sqrt(x); }
SPATIAL_HD float power_of_two(float x) { return exp2f(x); }
SPATIAL_HD double power_of_two(double x) { return ::exp2(x); }
SPATIAL_HD bool any_of(bool condition) { return condition; }

template <class T>
SPATIAL_HD T reciprocal(T a) {
    return T(1) / a;
}
template <class T>
SPATIAL_HD T minimum(T a, T b) {
    return select(b < a, b, a);
}
template <class T>
SPATIAL_HD T maximum(T a, T b) {
    return select(a < b, b, a);
}
template <class T>
SPATIAL_HD T absolute(T a) {
    return maximum(a, -a);
}
template <class T>
SPATIAL_HD T minus_absolute(T a) {
    return -absolute(a);
}
template <class T>
SPATIAL_HD T keep_where(MaskOf<T> condition, T a) {
    return select(condition, a, T(0));
}

}  // namespace spatial
