"""Front-to-back alpha blending of projected Gaussians, tile by tile (Kerbl 2023, eq. 2–3), with N channels."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from spatial.kernels import native, reference
from spatial.kernels.intersection import TileIntersections
from spatial.kernels.registration import register, require_same_dtype, require_shape

MAX_CHANNELS = 32  # in one pass; more are rendered in chunks


class Rasterization(NamedTuple):
    colors: Float[Tensor, "C H W D"]
    alphas: Float[Tensor, "C H W 1"]


def rasterize_gaussians(
    means2d: Float[Tensor, "C N 2"],
    conics: Float[Tensor, "C N 3"],
    colors: Float[Tensor, "C N D"],
    opacities: Float[Tensor, "C N"],
    width: int,
    height: int,
    tiles: TileIntersections,
    *,
    backgrounds: Float[Tensor, "C D"] | None = None,
    max_alpha: float = 0.999,
    absgrad: bool = False,
) -> Rasterization:
    """Blends Gaussians over images: alpha = min(max_alpha, opacity · exp(-½ dᵀ conic d)), skipped below 1/255; a ray
    ends before its transmittance would fall to 1e-4.

    Args:
        tiles: from ``intersect_tiles`` of the same Gaussians.
        max_alpha: 0.999 is gsplat 1.5's; its main branch and INRIA use 0.99. No gradient passes where it clamps.
        absgrad: the backward pass leaves Σ |gradient at a pixel| [C, N, 2] in ``means2d.absgrad`` (Ye 2024, AbsGS).

    Differentiable by means2d, conics, colors, opacities and backgrounds.

    Raises:
        ValueError: on absgrad with more than 32 channels, which are blended in passes of their own: absolute values of
            a pixel's whole gradient cannot be had from its parts.
    """
    C, N = means2d.shape[:2]
    require_shape("means2d", means2d, C, N, 2)
    require_shape("conics", conics, C, N, 3)
    require_shape("opacities", opacities, C, N)
    require_shape("colors", colors, C, N, None)
    require_same_dtype(means2d, conics=conics, colors=colors, opacities=opacities, backgrounds=backgrounds)
    channels = colors.shape[-1]
    if channels > MAX_CHANNELS:
        if absgrad:
            raise ValueError(f"absgrad needs at most {MAX_CHANNELS} channels, got {channels}")
        return _in_chunks(means2d, conics, colors, opacities, width, height, tiles, backgrounds, max_alpha)
    sink = torch.zeros_like(means2d) if absgrad else means2d.new_zeros(0)
    if absgrad:
        means2d.absgrad = sink  # type: ignore[attr-defined]
    if not native.compiled():
        return Rasterization(
            *reference.rasterization.rasterize_gaussians(
                means2d, conics, colors, opacities, width, height, tiles, backgrounds=backgrounds, max_alpha=max_alpha,
                absgrad=sink if absgrad else None,
            )
        )  # fmt: skip
    image, alphas = _rasterize(
        means2d.contiguous(), conics.contiguous(), colors.contiguous(), opacities.contiguous(),
        None if backgrounds is None else backgrounds.contiguous(), width, height, *tiles, max_alpha, sink,
    )  # fmt: skip
    return Rasterization(image, alphas.unsqueeze(-1))


def _in_chunks(means2d, conics, colors, opacities, width, height, tiles, backgrounds, max_alpha):
    parts = [
        rasterize_gaussians(
            means2d, conics, colors[..., i : i + MAX_CHANNELS], opacities, width, height, tiles,
            backgrounds=None if backgrounds is None else backgrounds[..., i : i + MAX_CHANNELS],
            max_alpha=max_alpha,
        )
        for i in range(0, colors.shape[-1], MAX_CHANNELS)
    ]  # fmt: skip
    return Rasterization(torch.cat([part.colors for part in parts], dim=-1), parts[0].alphas)


def _rasterize_cpu(
    means2d, conics, colors, opacities, backgrounds, width, height, flatten_ids, tile_offsets, places, gaussian_offsets,
    max_alpha, absgrad,
):  # fmt: skip
    C, N, channels = colors.shape
    image, alphas = means2d.new_empty((C, height, width, channels)), means2d.new_empty((C, height, width))
    native.function("rasterize", means2d)(
        C, N, channels, width, height,
        *map(native.address, (means2d, conics, colors, opacities, backgrounds, tile_offsets, flatten_ids)),
        max_alpha, native.address(image), native.address(alphas),
    )  # fmt: skip
    return image, alphas


def _rasterize_fake(means2d, conics, colors, opacities, backgrounds, width, height, *_):
    C, _, channels = colors.shape
    return means2d.new_empty((C, height, width, channels)), means2d.new_empty((C, height, width))


def _vjp_cpu(
    means2d, conics, colors, opacities, width, height, flatten_ids, tile_offsets, places, gaussian_offsets, max_alpha, absgrad,
    image, alphas, v_image, v_alphas,
):  # fmt: skip
    C, N, channels = colors.shape
    gradients = [torch.empty_like(t) for t in (means2d, conics, colors, opacities)]
    native.function("rasterize_vjp", means2d)(
        C, N, channels, width, height,
        *map(native.address, (means2d, conics, colors, opacities, tile_offsets, flatten_ids)),
        max_alpha,
        *map(native.address, (gaussian_offsets, places, image, alphas, v_image, v_alphas, *gradients)),
        native.address(absgrad) if absgrad.numel() else 0,
    )  # fmt: skip
    return tuple(gradients)


def _setup_context(ctx, inputs, output):
    means2d, conics, colors, opacities, _backgrounds, ctx.width, ctx.height, *tiles, ctx.max_alpha, absgrad = inputs
    ctx.set_materialize_grads(False)
    ctx.absgrad = absgrad  # an output in disguise: the backward pass fills it, so it must not be a saved tensor
    ctx.save_for_backward(means2d, conics, colors, opacities, *tiles, *output)


def _backward(ctx, v_image, v_alphas):
    means2d, conics, colors, opacities, *tiles, image, alphas = ctx.saved_tensors
    if v_image is None:
        v_image = torch.zeros_like(image)
    gradients = _rasterize_vjp(
        means2d, conics, colors, opacities, ctx.width, ctx.height, *tiles, ctx.max_alpha, ctx.absgrad, image, alphas,
        v_image.contiguous(), None if v_alphas is None else v_alphas.contiguous(),
    )  # fmt: skip
    v_backgrounds = None
    if ctx.needs_input_grad[4]:
        v_backgrounds = ((1 - alphas)[..., None] * v_image).sum(dim=(1, 2))
    return (*gradients, v_backgrounds, *[None] * 8)


_rasterize_vjp = register(
    "rasterize_gaussians_vjp(Tensor means2d, Tensor conics, Tensor colors, Tensor opacities, int width, int height, "
    "Tensor flatten_ids, Tensor tile_offsets, Tensor places, Tensor gaussian_offsets, float max_alpha, Tensor(a!) absgrad, "
    "Tensor image, Tensor alphas, Tensor v_image, Tensor? v_alphas) -> (Tensor, Tensor, Tensor, Tensor)",
    cpu=_vjp_cpu,
    fake=lambda means2d, conics, colors, opacities, *_: tuple(
        torch.empty_like(t) for t in (means2d, conics, colors, opacities)
    ),
)
_rasterize = register(
    "rasterize_gaussians(Tensor means2d, Tensor conics, Tensor colors, Tensor opacities, Tensor? backgrounds, int width, "
    "int height, Tensor flatten_ids, Tensor tile_offsets, Tensor places, Tensor gaussian_offsets, float max_alpha, "
    "Tensor absgrad) -> (Tensor, Tensor)",
    cpu=_rasterize_cpu,
    fake=_rasterize_fake,
    setup_context=_setup_context,
    backward=_backward,
)
