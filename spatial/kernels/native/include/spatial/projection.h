// Projection of one 3D Gaussian to an image: EWA splatting (Zwicker 2001; Kerbl 2023, eq. 5) and its vector-Jacobian
// product to every parameter and to the camera pose. T is a scalar or SIMD lanes.
#pragma once

#include "spatial/maths.h"

namespace spatial {

template <class T>
struct PinholeCamera {
    T rotation[9];     // camera_from_world, row major
    T translation[3];  // camera_from_world
    T fx, fy, cx, cy;  // pixels, centres at +0.5
    T width, height;
};

// What projection computes from a Gaussian before culling, and what its backward pass needs again.
template <class T>
struct ProjectedGaussian {
    T mean[2];       // pixels
    T depth;         // z in the camera
    T conic[3];      // inverse of the blurred 2D covariance: xx, xy, yy
    T covariance[3]; // of the blurred 2D Gaussian, pixels²
    T compensation;  // sqrt(det before blur / det after): Mip-Splatting's opacity factor
    T determinant;   // of the blurred covariance
};

template <class T>
struct ProjectionGradients {
    T mean[3] = {}, quat[4] = {}, scale[3] = {}, rotation[9] = {}, translation[3] = {};
};

template <class T>
SPATIAL_HD void rotation_from_quat(const T q[4], T R[9]) {  // q: unit, wxyz
    const T w = q[0], x = q[1], y = q[2], z = q[3];
    const T two(2);
    R[0] = T(1) - two * (y * y + z * z); R[1] = two * (x * y - w * z); R[2] = two * (x * z + w * y);
    R[3] = two * (x * y + w * z); R[4] = T(1) - two * (x * x + z * z); R[5] = two * (y * z - w * x);
    R[6] = two * (x * z - w * y); R[7] = two * (y * z + w * x); R[8] = T(1) - two * (x * x + y * y);
}

template <class T>
SPATIAL_HD void rotation_from_quat_vjp(const T q[4], const T v_R[9], T v_q[4]) {
    const T w = q[0], x = q[1], y = q[2], z = q[3];
    const T two(2);
    v_q[0] = two * (x * (v_R[7] - v_R[5]) + y * (v_R[2] - v_R[6]) + z * (v_R[3] - v_R[1]));
    v_q[1] = two * (w * (v_R[7] - v_R[5]) + y * (v_R[1] + v_R[3]) + z * (v_R[2] + v_R[6]) - two * x * (v_R[4] + v_R[8]));
    v_q[2] = two * (w * (v_R[2] - v_R[6]) + x * (v_R[1] + v_R[3]) + z * (v_R[5] + v_R[7]) - two * y * (v_R[0] + v_R[8]));
    v_q[3] = two * (w * (v_R[3] - v_R[1]) + x * (v_R[2] + v_R[6]) + y * (v_R[5] + v_R[7]) - two * z * (v_R[0] + v_R[4]));
}

// A quaternion of zero norm stands for no rotation.
template <class T>
SPATIAL_HD T inverse_norm(const T q[4]) {
    const T squared = q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3];
    const T tiny(Scalar<T>(1e-30));
    return select(squared > tiny, T(1) / square_root(maximum(squared, tiny)), T(0));
}

// Everything on the way from the parameters to the 2D covariance; forward and backward both run it.
template <class T>
struct ProjectionStages {
    T point[3];         // mean in the camera
    T inverse_depth;
    T tx, ty;           // x and y in the camera, clamped for the Jacobian
    T gate_x, gate_y;   // 1 where not clamped
    T unit_quat[4], inverse_quat_norm;
    T rotation[9];      // of the Gaussian
    T jacobian_w[6];    // J · camera rotation, [2, 3]
    T half[6];          // J · camera rotation · rotation · scale, [2, 3]: covariance = half · halfᵀ

    SPATIAL_HD ProjectionStages(const PinholeCamera<T>& camera, const T mean[3], const T quat[4], const T scale[3]) {
        const T* W = camera.rotation;
        for (int i = 0; i < 3; ++i)
            point[i] = W[3 * i] * mean[0] + W[3 * i + 1] * mean[1] + W[3 * i + 2] * mean[2] + camera.translation[i];
        inverse_depth = T(1) / point[2];
        // The Jacobian is clamped at 30 % beyond each image border, so that Gaussians far outside do not blow up.
        clamp(point[0], camera.width, camera.fx, camera.cx, tx, gate_x);
        clamp(point[1], camera.height, camera.fy, camera.cy, ty, gate_y);
        inverse_quat_norm = inverse_norm(quat);
        for (int i = 0; i < 4; ++i) unit_quat[i] = quat[i] * inverse_quat_norm;
        rotation_from_quat(unit_quat, rotation);
        const T jx = camera.fx * inverse_depth, jy = camera.fy * inverse_depth;
        const T jxz = -jx * tx * inverse_depth, jyz = -jy * ty * inverse_depth;
        for (int k = 0; k < 3; ++k) {
            jacobian_w[k] = jx * W[k] + jxz * W[6 + k];
            jacobian_w[3 + k] = jy * W[3 + k] + jyz * W[6 + k];
        }
        for (int r = 0; r < 2; ++r)
            for (int k = 0; k < 3; ++k)
                half[3 * r + k] = scale[k] * (jacobian_w[3 * r] * rotation[k] + jacobian_w[3 * r + 1] * rotation[3 + k] +
                                              jacobian_w[3 * r + 2] * rotation[6 + k]);
    }

    SPATIAL_HD void clamp(T x, T size, T focal, T centre, T& clamped, T& gate) const {
        const Scalar<T> margin(0.15);  // 0.3 · tan, with tan = 0.5 · size / focal
        const T low = -(centre / focal + T(margin) * size / focal);
        const T high = (size - centre) / focal + T(margin) * size / focal;
        const T ratio = x * inverse_depth;
        clamped = point[2] * minimum(maximum(ratio, low), high);
        gate = select(ratio < low, T(0), select(ratio > high, T(0), T(1)));
    }
};

template <class T>
SPATIAL_HD ProjectedGaussian<T> project(const PinholeCamera<T>& camera, const T mean[3], const T quat[4],
                                        const T scale[3], T eps2d) {
    const ProjectionStages<T> s(camera, mean, quat, scale);
    const T* P = s.half;
    const T xx = P[0] * P[0] + P[1] * P[1] + P[2] * P[2];
    const T xy = P[0] * P[3] + P[1] * P[4] + P[2] * P[5];
    const T yy = P[3] * P[3] + P[4] * P[4] + P[5] * P[5];
    ProjectedGaussian<T> out;
    out.mean[0] = camera.fx * s.point[0] * s.inverse_depth + camera.cx;
    out.mean[1] = camera.fy * s.point[1] * s.inverse_depth + camera.cy;
    out.depth = s.point[2];
    out.covariance[0] = xx + eps2d;
    out.covariance[1] = xy;
    out.covariance[2] = yy + eps2d;
    out.determinant = out.covariance[0] * out.covariance[2] - xy * xy;
    const T inverse = T(1) / out.determinant;
    out.conic[0] = out.covariance[2] * inverse;
    out.conic[1] = -xy * inverse;
    out.conic[2] = out.covariance[0] * inverse;
    out.compensation = square_root(maximum(T(0), (xx * yy - xy * xy) * inverse));
    return out;
}

template <class T>
SPATIAL_HD ProjectionGradients<T> project_vjp(const PinholeCamera<T>& camera, const T mean[3], const T quat[4],
                                              const T scale[3], T eps2d, const T v_mean2d[2], T v_depth,
                                              const T v_conic[3], T v_compensation) {
    const ProjectionStages<T> s(camera, mean, quat, scale);
    const T* P = s.half;
    const T* W = camera.rotation;
    const T xx = P[0] * P[0] + P[1] * P[1] + P[2] * P[2], xy = P[0] * P[3] + P[1] * P[4] + P[2] * P[5];
    const T yy = P[3] * P[3] + P[4] * P[4] + P[5] * P[5];
    const T bxx = xx + eps2d, byy = yy + eps2d;
    const T inverse = T(1) / (bxx * byy - xy * xy);
    const T A = byy * inverse, B = -xy * inverse, C = bxx * inverse;

    // conic = covariance⁻¹, hence v_covariance = -conic · v_conic · conic (symmetric; xy appears twice in v_conic).
    const T half_b = T(Scalar<T>(0.5)) * v_conic[1];
    const T gxx = v_conic[0] * A + half_b * B, gxy = v_conic[0] * B + half_b * C;
    const T gyx = half_b * A + v_conic[2] * B, gyy = half_b * B + v_conic[2] * C;
    T v_xx = -(A * gxx + B * gyx), v_xy = -(A * gxy + B * gyy), v_yy = -(B * gxy + C * gyy);

    // compensation² = det(before) / det(after); zero where the Gaussian has no area to begin with.
    const T det = xx * yy - xy * xy;
    const T ratio = maximum(T(0), det * inverse);
    const T floor_(Scalar<T>(1e-12));
    const T v_ratio = select(ratio > floor_, T(Scalar<T>(0.5)) * v_compensation / square_root(maximum(ratio, floor_)), T(0));
    const T k = v_ratio * inverse;
    v_xx += k * (yy - ratio * byy);
    v_yy += k * (xx - ratio * bxx);
    v_xy += k * (ratio * xy - xy);  // half of the derivative by xy, which stands for two entries

    // covariance = P Pᵀ
    T v_P[6];
    for (int i = 0; i < 3; ++i) {
        v_P[i] = T(2) * (v_xx * P[i] + v_xy * P[3 + i]);
        v_P[3 + i] = T(2) * (v_xy * P[i] + v_yy * P[3 + i]);
    }
    ProjectionGradients<T> g;
    // P = (J W) R diag(scale)
    T v_R[9], v_JW[6];
    for (int i = 0; i < 3; ++i) {
        T column(0);
        for (int j = 0; j < 3; ++j) {
            v_R[3 * j + i] = scale[i] * (s.jacobian_w[j] * v_P[i] + s.jacobian_w[3 + j] * v_P[3 + i]);
            column += s.rotation[3 * j + i] * (s.jacobian_w[j] * v_P[i] + s.jacobian_w[3 + j] * v_P[3 + i]);
        }
        g.scale[i] = column;
    }
    for (int r = 0; r < 2; ++r)
        for (int j = 0; j < 3; ++j)
            v_JW[3 * r + j] = s.rotation[3 * j] * scale[0] * v_P[3 * r] + s.rotation[3 * j + 1] * scale[1] * v_P[3 * r + 1] +
                              s.rotation[3 * j + 2] * scale[2] * v_P[3 * r + 2];
    T v_unit[4];
    rotation_from_quat_vjp(s.unit_quat, v_R, v_unit);
    const T along = s.unit_quat[0] * v_unit[0] + s.unit_quat[1] * v_unit[1] + s.unit_quat[2] * v_unit[2] + s.unit_quat[3] * v_unit[3];
    for (int i = 0; i < 4; ++i) g.quat[i] = s.inverse_quat_norm * (v_unit[i] - s.unit_quat[i] * along);

    // J = [[jx, 0, jxz], [0, jy, jyz]] and mean2d = (fx x/z + cx, fy y/z + cy)
    const T iz = s.inverse_depth;
    const T jx = camera.fx * iz, jy = camera.fy * iz, jxz = -jx * s.tx * iz, jyz = -jy * s.ty * iz;
    const T v_jx = v_JW[0] * W[0] + v_JW[1] * W[1] + v_JW[2] * W[2];
    const T v_jxz = v_JW[0] * W[6] + v_JW[1] * W[7] + v_JW[2] * W[8];
    const T v_jy = v_JW[3] * W[3] + v_JW[4] * W[4] + v_JW[5] * W[5];
    const T v_jyz = v_JW[3] * W[6] + v_JW[4] * W[7] + v_JW[5] * W[8];
    T v_point[3];
    // Where clamped, tx = z · limit: the Jacobian's last column goes as 1/z instead of x/z².
    v_point[0] = jx * v_mean2d[0] - s.gate_x * jx * iz * v_jxz;
    v_point[1] = jy * v_mean2d[1] - s.gate_y * jy * iz * v_jyz;
    v_point[2] = v_depth - jx * s.point[0] * iz * v_mean2d[0] - jy * s.point[1] * iz * v_mean2d[1] - jx * iz * v_jx -
                 jy * iz * v_jy - (T(1) + s.gate_x) * jxz * iz * v_jxz - (T(1) + s.gate_y) * jyz * iz * v_jyz;
    for (int j = 0; j < 3; ++j) {
        g.mean[j] = W[j] * v_point[0] + W[3 + j] * v_point[1] + W[6 + j] * v_point[2];
        g.translation[j] = v_point[j];
        g.rotation[j] = v_point[0] * mean[j] + jx * v_JW[j];
        g.rotation[3 + j] = v_point[1] * mean[j] + jy * v_JW[3 + j];
        g.rotation[6 + j] = v_point[2] * mean[j] + jxz * v_JW[j] + jyz * v_JW[3 + j];
    }
    return g;
}

}  // namespace spatial
