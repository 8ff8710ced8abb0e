// Python bindings: every function takes addresses (torch's data_ptr()) and sizes. Checks are done in spatial/kernels/*.py.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>

#include "adam.h"
#include "image_loss.h"
#include "intersection.h"
#include "nearest.h"
#include "pool.h"
#include "projection.h"
#include "rasterization.h"
#include "relocation.h"
#include "spherical_harmonics.h"

namespace nb = nanobind;
using Address = uintptr_t;

namespace {

template <class T>
T* at(Address address) {
    return reinterpret_cast<T*>(address);
}

bool supports(const std::string& instruction_set) {
    if (instruction_set == "baseline") return true;
#if defined(__x86_64__)
    if (instruction_set == "avx2") return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    if (instruction_set == "avx512")
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512bw");
#endif
    return false;
}

template <class Real>
spatial::ProjectionInputs<Real> projection_inputs(int64_t C, int64_t N, Address means, Address quats, Address scales,
                                                  Address opacities, Address viewmats, Address Ks, int width, int height,
                                                  double eps2d, double near_plane, double far_plane, double radius_clip,
                                                  bool antialiased) {
    return {C, N, at<Real>(means), at<Real>(quats), at<Real>(scales), at<Real>(opacities), at<Real>(viewmats), at<Real>(Ks),
            width, height, Real(eps2d), Real(near_plane), Real(far_plane), Real(radius_clip), antialiased};
}

template <class Real>
void bind(nb::module_& m, const std::string& suffix) {
    const auto define = [&](const char* name, auto&& function) {
        m.def((name + suffix).c_str(), function, nb::call_guard<nb::gil_scoped_release>());
    };

    define("project_gaussians", [](int64_t C, int64_t N, Address means, Address quats, Address scales, Address opacities,
                                   Address viewmats, Address Ks, int width, int height, double eps2d, double near_plane,
                                   double far_plane, double radius_clip, bool antialiased, Address radii, Address means2d,
                                   Address depths, Address conics, Address compensations) {
        spatial::project_gaussians<Real>(
            projection_inputs<Real>(C, N, means, quats, scales, opacities, viewmats, Ks, width, height, eps2d, near_plane,
                                    far_plane, radius_clip, antialiased),
            {at<int32_t>(radii), at<Real>(means2d), at<Real>(depths), at<Real>(conics), at<Real>(compensations)});
    });
    define("project_gaussians_vjp", [](int64_t C, int64_t N, Address means, Address quats, Address scales, Address viewmats,
                                       Address Ks, int width, int height, double eps2d, Address radii, Address v_means2d,
                                       Address v_depths, Address v_conics, Address v_compensations, Address v_means,
                                       Address v_quats, Address v_scales, Address v_viewmats) {
        spatial::project_gaussians_vjp<Real>(
            projection_inputs<Real>(C, N, means, quats, scales, 0, viewmats, Ks, width, height, eps2d, 0, 0, 0, false),
            {at<int32_t>(radii), at<Real>(v_means2d), at<Real>(v_depths), at<Real>(v_conics), at<Real>(v_compensations),
             at<Real>(v_means), at<Real>(v_quats), at<Real>(v_scales), at<Real>(v_viewmats)});
    });

    define("spherical_harmonics", [](int64_t N, int degree, int num_bases, Address dirs, Address coeffs, Address masks,
                                     Address colors) {
        spatial::spherical_harmonics<Real>({N, degree, num_bases, at<Real>(dirs), at<Real>(coeffs), at<uint8_t>(masks)},
                                           at<Real>(colors));
    });
    define("spherical_harmonics_vjp", [](int64_t N, int degree, int num_bases, Address dirs, Address coeffs, Address masks,
                                         Address v_colors, Address v_coeffs, Address v_dirs) {
        spatial::spherical_harmonics_vjp<Real>({N, degree, num_bases, at<Real>(dirs), at<Real>(coeffs), at<uint8_t>(masks)},
                                               at<Real>(v_colors), at<Real>(v_coeffs), at<Real>(v_dirs));
    });

    using Intersections = spatial::Intersections<Real>;
    nb::class_<Intersections>(m, ("Intersections" + suffix).c_str())
        .def("__len__", &Intersections::size)
        .def("fill", [](const Intersections& self, Address gaussian_offsets, Address tile_offsets, Address flatten_ids, Address places) {
            self.fill(at<int32_t>(gaussian_offsets), at<int32_t>(tile_offsets), at<int32_t>(flatten_ids), at<int32_t>(places));
        }, nb::call_guard<nb::gil_scoped_release>());
    define("intersect_tiles", [](int64_t C, int64_t N, Address means2d, Address conics, Address opacities, Address depths,
                                 Address radii, int tile_columns, int tile_rows) {
        return Intersections({C, N, at<Real>(means2d), at<Real>(conics), at<Real>(opacities), at<Real>(depths),
                              at<int32_t>(radii), tile_columns, tile_rows});
    });

    define("rasterize", [](int64_t C, int64_t N, int channels, int width, int height, Address means2d, Address conics,
                           Address colors, Address opacities, Address backgrounds, Address tile_offsets, Address flatten_ids,
                           double max_alpha, Address render_colors, Address render_alphas) {
        spatial::rasterize<Real>({C, N, channels, width, height, at<Real>(means2d), at<Real>(conics), at<Real>(colors),
                                  at<Real>(opacities), at<Real>(backgrounds), at<int32_t>(tile_offsets),
                                  at<int32_t>(flatten_ids), Real(max_alpha)},
                                 at<Real>(render_colors), at<Real>(render_alphas));
    });
    define("rasterize_vjp", [](int64_t C, int64_t N, int channels, int width, int height, Address means2d, Address conics,
                               Address colors, Address opacities, Address tile_offsets, Address flatten_ids, double max_alpha,
                               Address gaussian_offsets, Address places, Address render_colors, Address render_alphas,
                               Address v_render_colors, Address v_render_alphas, Address v_means2d, Address v_conics,
                               Address v_colors, Address v_opacities, Address v_means2d_abs) {
        spatial::rasterize_vjp<Real>({C, N, channels, width, height, at<Real>(means2d), at<Real>(conics), at<Real>(colors),
                                      at<Real>(opacities), nullptr, at<int32_t>(tile_offsets), at<int32_t>(flatten_ids),
                                      Real(max_alpha)},
                                     {at<int32_t>(gaussian_offsets), at<int32_t>(places), at<Real>(render_colors),
                                      at<Real>(render_alphas), at<Real>(v_render_colors), at<Real>(v_render_alphas),
                                      at<Real>(v_means2d), at<Real>(v_conics), at<Real>(v_colors), at<Real>(v_opacities),
                                      at<Real>(v_means2d_abs)});
    });

    define("l1_ssim", [](int64_t B, int height, int width, int channels, Address image, Address target, Address mask,
                         double ssim_weight, Address moments) {
        return spatial::l1_ssim<Real>({B, height, width, channels, at<Real>(image), at<Real>(target), at<uint8_t>(mask),
                                       Real(ssim_weight)}, at<Real>(moments));
    });
    define("l1_ssim_vjp", [](int64_t B, int height, int width, int channels, Address image, Address target, Address mask,
                             double ssim_weight, Address moments, double v_loss, Address v_image) {
        spatial::l1_ssim_vjp<Real>({B, height, width, channels, at<Real>(image), at<Real>(target), at<uint8_t>(mask),
                                    Real(ssim_weight)}, at<Real>(moments), Real(v_loss), at<Real>(v_image));
    });

    define("adam", [](int64_t N, int64_t row_size, Address visible, Address parameter, Address gradient, Address exp_avg,
                      Address exp_avg_sq, double lr, double beta1, double beta2, double eps, double bias1, double bias2,
                      int64_t columns, Address lr_scales) {
        spatial::adam<Real>({N, row_size, at<uint8_t>(visible), at<Real>(parameter), at<Real>(gradient), at<Real>(exp_avg),
                             at<Real>(exp_avg_sq), Real(lr), Real(beta1), Real(beta2), Real(eps), Real(bias1), Real(bias2),
                             columns, at<Real>(lr_scales)});
    });

    define("nearest_distances", [](int64_t N, int64_t k, Address points, Address distances) {
        spatial::nearest_distances<Real>(N, k, at<Real>(points), at<Real>(distances));
    });
    define("relocate_gaussians", [](int64_t N, Address opacities, Address scales, Address ratios, Address new_opacities,
                                    Address new_scales) {
        spatial::relocate_gaussians<Real>({N, at<Real>(opacities), at<Real>(scales), at<int32_t>(ratios)},
                                          at<Real>(new_opacities), at<Real>(new_scales));
    });
}

}  // namespace

NB_MODULE(SPATIAL_MODULE, m) {
    m.doc() = "Fused operations on the CPU, over addresses and sizes; use them through spatial.kernels.";
    m.def("supports", &supports, "Whether this processor runs the kernels built for 'baseline', 'avx2' or 'avx512'.");
    m.def("set_num_threads", &spatial::set_num_threads);
    m.attr("tile_size") = spatial::kTileSize;
    bind<float>(m, "_f32");
    bind<double>(m, "_f64");
}
