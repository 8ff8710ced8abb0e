"""Projection of 3D Gaussians to images: EWA splatting (Zwicker 2001; Kerbl 2023, eq. 5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from spatial.kernels import native, reference
from spatial.kernels.registration import register, require_same_dtype, require_shape


class Projection(NamedTuple):
    """Gaussians in images. Where ``radii`` is 0 the Gaussian is culled and its other entries are 0."""

    radii: Int[Tensor, "C N 2"]
    means2d: Float[Tensor, "C N 2"]
    depths: Float[Tensor, "C N"]
    conics: Float[Tensor, "C N 3"]
    compensations: Float[Tensor, "C N"]


def project_gaussians(
    means: Float[Tensor, "N 3"],
    quats: Float[Tensor, "N 4"],
    scales: Float[Tensor, "N 3"],
    opacities: Float[Tensor, "N"],
    viewmats: Float[Tensor, "C 4 4"],
    Ks: Float[Tensor, "C 3 3"],
    width: int,
    height: int,
    *,
    eps2d: float = 0.3,
    near_plane: float = 0.01,
    far_plane: float = 1e10,
    radius_clip: float = 0.0,
    antialiased: bool = False,
) -> Projection:
    """Projects Gaussians into pinhole images.

    Args:
        quats: wxyz, of any length. scales: standard deviations. opacities: in [0, 1]; below 1/255 a Gaussian is culled.
        viewmats: camera_from_world. Ks: pixels, centres at +0.5, principal point anywhere.
        eps2d: low-pass added to the 2D covariance's diagonal, pixels².
        radius_clip: Gaussians of at most this radius in pixels are culled.
        antialiased: culling counts the compensation as part of the opacity (the caller multiplies it in).

    Returns:
        radii: half extent in x and y of what is visible (alpha ≥ 1/255), whole pixels.
        means2d: pixels. depths: z in the camera. conics: inverse 2D covariance (xx, xy, yy).
        compensations: sqrt(det before / det after the low-pass), Mip-Splatting's opacity factor (Yu 2024, eq. 9).

    Differentiable by means, quats, scales and viewmats; radii carry no gradient.
    """
    _check(means, quats, scales, opacities, viewmats, Ks)
    call: Callable = _project if native.compiled() else reference.projection.project_gaussians_flat
    return Projection(
        *call(
            means.contiguous(), quats.contiguous(), scales.contiguous(), opacities.contiguous(), viewmats.contiguous(),
            Ks.contiguous(), width, height, eps2d, near_plane, far_plane, radius_clip, antialiased,
        )
    )  # fmt: skip


def _check(means: Tensor, quats: Tensor, scales: Tensor, opacities: Tensor, viewmats: Tensor, Ks: Tensor) -> None:
    num = means.shape[0]
    require_shape("means", means, None, 3)
    require_shape("quats", quats, num, 4)
    require_shape("scales", scales, num, 3)
    require_shape("opacities", opacities, num)
    require_shape("viewmats", viewmats, None, 4, 4)
    require_shape("Ks", Ks, viewmats.shape[0], 3, 3)
    require_same_dtype(means, quats=quats, scales=scales, opacities=opacities, viewmats=viewmats, Ks=Ks)


def _project_cpu(
    means, quats, scales, opacities, viewmats, Ks, width, height, eps2d, near_plane, far_plane, radius_clip, antialiased
):
    out = _empty_outputs(means, viewmats)
    native.function("project_gaussians", means)(
        viewmats.shape[0], means.shape[0],
        *map(native.address, (means, quats, scales, opacities, viewmats, Ks)),
        width, height, eps2d, near_plane, far_plane, radius_clip, antialiased,
        *map(native.address, out),
    )  # fmt: skip
    return out


def _empty_outputs(means: Tensor, viewmats: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    C, N = viewmats.shape[0], means.shape[0]
    return (
        means.new_empty((C, N, 2), dtype=torch.int32),
        means.new_empty((C, N, 2)),
        means.new_empty((C, N)),
        means.new_empty((C, N, 3)),
        means.new_empty((C, N)),
    )


def _project_fake(means, quats, scales, opacities, viewmats, *_):
    return _empty_outputs(means, viewmats)


def _vjp_cpu(
    means, quats, scales, viewmats, Ks, width, height, eps2d, radii, v_means2d, v_depths, v_conics, v_compensations
):
    v_means, v_quats, v_scales = torch.empty_like(means), torch.empty_like(quats), torch.empty_like(scales)
    v_viewmats = torch.empty_like(viewmats)
    native.function("project_gaussians_vjp", means)(
        viewmats.shape[0], means.shape[0], *map(native.address, (means, quats, scales, viewmats, Ks)),
        width, height, eps2d,
        *map(native.address, (radii, v_means2d, v_depths, v_conics, v_compensations)),
        *map(native.address, (v_means, v_quats, v_scales, v_viewmats)),
    )  # fmt: skip
    return v_means, v_quats, v_scales, v_viewmats


def _vjp_fake(means, quats, scales, viewmats, *_):
    return torch.empty_like(means), torch.empty_like(quats), torch.empty_like(scales), torch.empty_like(viewmats)


def _setup_context(ctx, inputs, output):
    means, quats, scales, _, viewmats, Ks, ctx.width, ctx.height, ctx.eps2d, *_ = inputs
    ctx.mark_non_differentiable(output[0])
    ctx.save_for_backward(means, quats, scales, viewmats, Ks, output[0])


def _backward(ctx, _v_radii, v_means2d, v_depths, v_conics, v_compensations):
    means, quats, scales, viewmats, Ks, radii = ctx.saved_tensors
    cotangents = [v.contiguous() for v in (v_means2d, v_depths, v_conics, v_compensations)]
    v_means, v_quats, v_scales, v_viewmats = _project_vjp(
        means, quats, scales, viewmats, Ks, ctx.width, ctx.height, ctx.eps2d, radii, *cotangents
    )
    return (v_means, v_quats, v_scales, None, v_viewmats, *[None] * 8)


_project_vjp = register(
    "project_gaussians_vjp(Tensor means, Tensor quats, Tensor scales, Tensor viewmats, Tensor Ks, int width, int height, "
    "float eps2d, Tensor radii, Tensor v_means2d, Tensor v_depths, Tensor v_conics, Tensor v_compensations)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    cpu=_vjp_cpu,
    fake=_vjp_fake,
)
_project = register(
    "project_gaussians(Tensor means, Tensor quats, Tensor scales, Tensor opacities, Tensor viewmats, Tensor Ks, "
    "int width, int height, float eps2d, float near_plane, float far_plane, float radius_clip, bool antialiased)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    cpu=_project_cpu,
    fake=_project_fake,
    setup_context=_setup_context,
    backward=_backward,
)
