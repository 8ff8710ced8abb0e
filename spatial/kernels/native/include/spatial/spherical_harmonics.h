// Real spherical harmonics up to degree 4 with the Condon-Shortley phase (Sloan 2013, "Efficient Spherical Harmonic
// Evaluation"), the basis of every Gaussian-splat file: degree 1 is (-y, z, -x) · 0.4886.
#pragma once

#include "spatial/maths.h"

namespace spatial {

constexpr int sh_bases(int degree) { return (degree + 1) * (degree + 1); }

// Values of the first (degree + 1)² bases at a unit direction.
template <class T>
SPATIAL_HD void sh_basis(int degree, T x, T y, T z, T* basis) {
    using S = Scalar<T>;
    basis[0] = T(S(0.28209479177387814));
    if (degree < 1) return;
    const T c1(S(0.4886025119029199));
    basis[1] = -c1 * y;
    basis[2] = c1 * z;
    basis[3] = -c1 * x;
    if (degree < 2) return;
    const T zz = z * z, c = x * x - y * y, s = T(2) * x * y;
    const T a(S(1.0925484305920792)), b(S(0.5462742152960396));
    basis[4] = b * s;
    basis[5] = -a * y * z;
    basis[6] = T(S(0.9461746957575601)) * zz - T(S(0.31539156525252005));
    basis[7] = -a * x * z;
    basis[8] = b * c;
    if (degree < 3) return;
    const T c3 = x * c - y * s, s3 = x * s + y * c;
    const T p31 = T(S(0.4570457994644658)) - T(S(2.285228997322329)) * zz;
    const T p32 = T(S(1.4453057213202770)) * z;
    basis[9] = T(S(-0.5900435899266435)) * s3;
    basis[10] = p32 * s;
    basis[11] = p31 * y;
    basis[12] = z * (T(S(1.865881662950577)) * zz - T(S(1.119528997770346)));
    basis[13] = p31 * x;
    basis[14] = p32 * c;
    basis[15] = T(S(-0.5900435899266435)) * c3;
    if (degree < 4) return;
    const T c4 = x * c3 - y * s3, s4 = x * s3 + y * c3;
    const T p41 = z * (T(S(2.007139630671868)) - T(S(4.683325804901025)) * zz);
    const T p42 = T(S(3.311611435151460)) * zz - T(S(0.4730873478787800));
    const T p43 = T(S(-1.770130769779930)) * z;
    basis[16] = T(S(0.6258357354491761)) * s4;
    basis[17] = p43 * s3;
    basis[18] = p42 * s;
    basis[19] = p41 * y;
    basis[20] = T(S(1.984313483298443)) * zz * (T(S(1.865881662950577)) * zz - T(S(1.119528997770346))) +
                T(S(-1.006230589874905)) * (T(S(0.9461746957575601)) * zz - T(S(0.31539156525252005)));
    basis[21] = p41 * x;
    basis[22] = p42 * c;
    basis[23] = p43 * c3;
    basis[24] = T(S(0.6258357354491761)) * c4;
}

// Derivative of Σ v[k]·basis[k] by the direction, taken as three independent numbers (the caller projects it onto the
// sphere). Written from the polynomials above.
template <class T>
SPATIAL_HD void sh_basis_vjp(int degree, T x, T y, T z, const T* v, T gradient[3]) {
    using S = Scalar<T>;
    T gx(0), gy(0), gz(0);
    if (degree >= 1) {
        const T c1(S(0.4886025119029199));
        gx -= c1 * v[3];
        gy -= c1 * v[1];
        gz += c1 * v[2];
    }
    const T two(2), zz = z * z, c = x * x - y * y, s = two * x * y;
    if (degree >= 2) {
        const T a(S(1.0925484305920792)), b(S(0.5462742152960396));
        gx += two * b * (y * v[4] + x * v[8]) - a * z * v[7];
        gy += two * b * (x * v[4] - y * v[8]) - a * z * v[5];
        gz += two * T(S(0.9461746957575601)) * z * v[6] - a * (y * v[5] + x * v[7]);
    }
    // d/dx of c_m is m·c_(m-1), of s_m is m·s_(m-1); d/dy of c_m is -m·s_(m-1), of s_m is m·c_(m-1)
    const T c3 = x * c - y * s, s3 = x * s + y * c;
    if (degree >= 3) {
        const T k33(S(-0.5900435899266435)), three(3);
        const T p31 = T(S(0.4570457994644658)) - T(S(2.285228997322329)) * zz;
        const T d31 = T(S(-4.570457994644658)) * z;
        const T k32(S(1.4453057213202770));
        gx += three * k33 * (s * v[9] + c * v[15]) + two * k32 * z * (y * v[10] + x * v[14]) + p31 * v[13];
        gy += three * k33 * (c * v[9] - s * v[15]) + two * k32 * z * (x * v[10] - y * v[14]) + p31 * v[11];
        gz += k32 * (s * v[10] + c * v[14]) + d31 * (y * v[11] + x * v[13]) +
              (T(S(5.597644988851731)) * zz - T(S(1.119528997770346))) * v[12];
    }
    if (degree >= 4) {
        const T k44(S(0.6258357354491761)), k43(S(-1.770130769779930)), three(3), four(4);
        const T p41 = z * (T(S(2.007139630671868)) - T(S(4.683325804901025)) * zz);
        const T d41 = T(S(2.007139630671868)) - T(S(14.049977414703075)) * zz;
        const T p42 = T(S(3.311611435151460)) * zz - T(S(0.4730873478787800));
        const T d42 = T(S(6.623222870302920)) * z;
        const T a(S(1.984313483298443 * 1.865881662950577)), b(S(1.984313483298443 * 1.119528997770346));
        const T e(S(1.006230589874905 * 0.9461746957575601));
        gx += four * k44 * (s3 * v[16] + c3 * v[24]) + three * k43 * z * (s * v[17] + c * v[23]) +
              two * p42 * (y * v[18] + x * v[22]) + p41 * v[21];
        gy += four * k44 * (c3 * v[16] - s3 * v[24]) + three * k43 * z * (c * v[17] - s * v[23]) +
              two * p42 * (x * v[18] - y * v[22]) + p41 * v[19];
        gz += k43 * (s3 * v[17] + c3 * v[23]) + d42 * (s * v[18] + c * v[22]) + d41 * (y * v[19] + x * v[21]) +
              (four * a * zz * z - two * (b + e) * z) * v[20];
    }
    gradient[0] = gx;
    gradient[1] = gy;
    gradient[2] = gz;
}

}  // namespace spatial
