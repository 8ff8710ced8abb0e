"""Colour from spherical harmonics of degree 0–4 (Sloan 2013), the basis of every Gaussian-splat file."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from spatial.kernels import native, reference
from spatial.kernels.registration import register, require_same_dtype

MAX_DEGREE = 4


def spherical_harmonics(
    degree: int,
    dirs: Float[Tensor, "*batch 3"],
    coeffs: Float[Tensor, "*batch K 3"],
    masks: Bool[Tensor, "*batch"] | None = None,
) -> Float[Tensor, "*batch 3"]:
    """Σ basis(dirs)·coeffs over the first (degree + 1)² bases: the caller adds 0.5 and clamps at 0.

    Args:
        degree: 0–4; may be less than the coefficients hold.
        dirs: from the camera to the Gaussian, of any length.
        masks: False gives 0 and no gradient.

    Raises:
        ValueError: on a degree beyond 4 or beyond the coefficients.
    """
    if not 0 <= degree <= MAX_DEGREE or (degree + 1) ** 2 > coeffs.shape[-2]:
        raise ValueError(
            f"degree must be 0–{MAX_DEGREE} and (degree + 1)² ≤ {coeffs.shape[-2]} coefficients, got {degree}"
        )
    require_same_dtype(dirs, coeffs=coeffs)
    batch, bases = dirs.shape[:-1], coeffs.shape[-2]
    flat_masks = None if masks is None else masks.reshape(-1).contiguous()
    call = _evaluate if native.compiled() else reference.spherical_harmonics.spherical_harmonics
    colors = call(degree, dirs.reshape(-1, 3).contiguous(), coeffs.reshape(-1, bases, 3).contiguous(), flat_masks)
    return colors.reshape(*batch, 3)


def _evaluate_cpu(degree, dirs, coeffs, masks):
    colors = torch.empty_like(dirs)
    native.function("spherical_harmonics", dirs)(
        dirs.shape[0], degree, coeffs.shape[1], *map(native.address, (dirs, coeffs, masks, colors))
    )
    return colors


def _vjp_cpu(degree, dirs, coeffs, masks, v_colors, need_dirs):
    v_coeffs = torch.empty_like(coeffs)
    v_dirs = torch.empty_like(dirs) if need_dirs else dirs.new_zeros((0, 3))
    native.function("spherical_harmonics_vjp", dirs)(
        dirs.shape[0], degree, coeffs.shape[1],
        *map(native.address, (dirs, coeffs, masks, v_colors, v_coeffs, v_dirs if need_dirs else None)),
    )  # fmt: skip
    return v_coeffs, v_dirs


def _setup_context(ctx, inputs, output):
    ctx.degree, dirs, coeffs, masks = inputs
    ctx.save_for_backward(dirs, coeffs, masks)


def _backward(ctx, v_colors):
    dirs, coeffs, masks = ctx.saved_tensors
    need_dirs = ctx.needs_input_grad[1]
    v_coeffs, v_dirs = _evaluate_vjp(ctx.degree, dirs, coeffs, masks, v_colors.contiguous(), need_dirs)
    return None, v_dirs if need_dirs else None, v_coeffs, None


_evaluate_vjp = register(
    "spherical_harmonics_vjp(int degree, Tensor dirs, Tensor coeffs, Tensor? masks, Tensor v_colors, bool need_dirs)"
    " -> (Tensor, Tensor)",
    cpu=_vjp_cpu,
    fake=lambda degree, dirs, coeffs, masks, v_colors, need_dirs: (
        torch.empty_like(coeffs),
        torch.empty_like(dirs) if need_dirs else dirs.new_empty((0, 3)),
    ),
)
_evaluate = register(
    "spherical_harmonics(int degree, Tensor dirs, Tensor coeffs, Tensor? masks) -> Tensor",
    cpu=_evaluate_cpu,
    fake=lambda degree, dirs, coeffs, masks: torch.empty_like(dirs),
    setup_context=_setup_context,
    backward=_backward,
)
