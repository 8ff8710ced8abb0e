"""L1 + SSIM in one pass, forward and backward: the photometric loss of Gaussian splatting (Kerbl 2023, eq. 7)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from spatial.kernels import native, reference
from spatial.kernels.registration import register, require_same_dtype, require_shape

WINDOW = 11


def l1_ssim_loss(
    image: Float[Tensor, "B H W D"],
    target: Float[Tensor, "B H W D"],
    mask: Bool[Tensor, "B H W"] | None = None,
    *,
    ssim_weight: float = 0.2,
) -> Float[Tensor, ""]:
    """(1 − w)·mean |image − target| + w·(1 − mean SSIM).

    SSIM has an 11-tap Gaussian window of sigma 1.5 and counts windows that lie inside the image ("valid" padding).

    Args:
        image, target: in [0, 1]. Differentiable by ``image`` only.
        mask: False where a pixel does not count: there the image is taken as equal to the target, and both means are
            over the rest.

    Raises:
        ValueError: on images smaller than the window, or of different shapes.
    """
    require_shape("target", target, *image.shape)
    require_same_dtype(image, target=target)
    if min(image.shape[1:3]) < WINDOW:
        raise ValueError(f"SSIM needs images of at least {WINDOW}×{WINDOW} pixels, got {list(image.shape)}")
    if mask is not None:
        require_shape("mask", mask, *image.shape[:3])
        mask = mask.contiguous()
    if not native.compiled():
        return reference.image_loss.l1_ssim_loss(image, target, mask, ssim_weight=ssim_weight)
    return _l1_ssim(image.contiguous(), target.contiguous(), mask, ssim_weight)[0]


def _empty_moments(image: Tensor) -> Tensor:
    B, H, W, D = image.shape
    return image.new_empty((3, B, H - WINDOW + 1, W - WINDOW + 1, D))


def _l1_ssim_cpu(image, target, mask, ssim_weight):
    moments = _empty_moments(image)
    loss = native.function("l1_ssim", image)(
        *image.shape, *map(native.address, (image, target, mask)), ssim_weight, native.address(moments)
    )
    return image.new_tensor(loss), moments


def _vjp_cpu(image, target, mask, ssim_weight, moments, v_loss):
    v_image = torch.empty_like(image)
    native.function("l1_ssim_vjp", image)(
        *image.shape, *map(native.address, (image, target, mask)), ssim_weight, native.address(moments), v_loss.item(),
        native.address(v_image),
    )  # fmt: skip
    return v_image


def _setup_context(ctx, inputs, output):
    image, target, mask, ctx.ssim_weight = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # zeros for the moments would be three images, written for nothing
    ctx.save_for_backward(image, target, mask, output[1])


def _backward(ctx, v_loss, _v_moments):
    if v_loss is None:
        return None, None, None, None
    image, target, mask, moments = ctx.saved_tensors
    return _l1_ssim_vjp(image, target, mask, ctx.ssim_weight, moments, v_loss), None, None, None


_l1_ssim_vjp = register(
    "l1_ssim_vjp(Tensor image, Tensor target, Tensor? mask, float ssim_weight, Tensor moments, Tensor v_loss) -> Tensor",
    cpu=_vjp_cpu,
    fake=lambda image, *_: torch.empty_like(image),
)
_l1_ssim = register(
    "l1_ssim(Tensor image, Tensor target, Tensor? mask, float ssim_weight) -> (Tensor, Tensor)",
    cpu=_l1_ssim_cpu,
    fake=lambda image, *_: (image.new_empty(()), _empty_moments(image)),
    setup_context=_setup_context,
    backward=_backward,
)
