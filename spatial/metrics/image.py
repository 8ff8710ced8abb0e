"""How close a render is to its photo: PSNR, SSIM and LPIPS, with every choice that moves the number stated.

Images are [H, W, 3] floats in [0, 1], display sRGB. Nothing is rounded here: published numbers are often measured on
8-bit files, and ``round_to_8_bit`` gives those. Masks are True where a pixel counts; pixels outside have no influence.

SSIM: Wang et al., "Image quality assessment: from error visibility to structural similarity", TIP 2004 (eq. 13, with
the paper's 11 × 11 Gaussian window of sigma 1.5). LPIPS: Zhang et al., CVPR 2018.
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad

WINDOW_SIZE, WINDOW_SIGMA = 11, 1.5
C1, C2 = 0.01**2, 0.03**2
LPIPS_INSTALL = "pip install 'spatial-ai[lpips]'"


class Perceptual(NamedTuple):
    """LPIPS, or None with the reason, in words, why it could not be measured."""

    value: float | None
    reason: str


def psnr(
    image: Float[Tensor, "H W 3"], target: Float[Tensor, "H W 3"], mask: Bool[Tensor, "H W"] | None = None
) -> float:
    """Peak signal-to-noise ratio in dB over the mask's pixels; infinite for equal images.

    Raises:
        ValueError: shapes differ, or the mask holds no pixel.
    """
    _check_same_shape(image, target, mask)
    squared = (image.double() - target.double()).square()
    if mask is not None:
        if not bool(mask.any()):
            raise ValueError("psnr needs at least one pixel in the mask, got none")
        squared = squared[mask]
    error = float(squared.mean())
    return math.inf if error == 0 else -10 * math.log10(error)


def ssim(
    image: Float[Tensor, "H W 3"],
    target: Float[Tensor, "H W 3"],
    mask: Bool[Tensor, "H W"] | None = None,
    *,
    padding: Literal["valid", "same"] = "valid",
) -> float:
    """Mean structural similarity over windows and channels.

    ``padding="valid"`` averages the windows that lie wholly in the picture and the mask, as scikit-image does;
    NaN where none does. ``padding="same"`` averages one window per pixel, with zeros outside picture and mask, as the
    3D Gaussian Splatting authors' code does: a little higher, because the zeros agree.

    Raises:
        ValueError: shapes differ, or the padding is unknown.
    """
    _check_same_shape(image, target, mask)
    if padding not in ("valid", "same"):
        raise ValueError(f"padding must be 'valid' or 'same', got {padding!r}")
    if mask is not None:
        image, target = image * mask[..., None], target * mask[..., None]
    similarity = _ssim_map(image, target, margin=WINDOW_SIZE // 2 if padding == "same" else 0)  # [H', W', 3]
    if similarity.numel() == 0:
        return math.nan
    if mask is None:
        return float(similarity.mean())
    counted = mask if padding == "same" else _whole_windows(mask)
    return float(similarity[counted].mean())


def lpips(
    image: Float[Tensor, "H W 3"], target: Float[Tensor, "H W 3"], mask: Bool[Tensor, "H W"] | None = None
) -> Perceptual:
    """LPIPS version 0.1 with AlexNet, the variant that splatting papers report; lower is better.

    The backbone's weights must already lie in PyTorch's hub folder: nothing is downloaded. Pixels outside the mask are
    taken from the target in both images. Images smaller than 64 pixels a side have no LPIPS (AlexNet's strides).

    Raises:
        ValueError: shapes differ.
    """
    _check_same_shape(image, target, mask)
    if min(image.shape[:2]) < 64:
        return Perceptual(None, "LPIPS needs images of at least 64 pixels a side")
    network, reason = _lpips_network()
    if network is None:
        return Perceptual(None, reason)
    if mask is not None:
        image = torch.where(mask[..., None], image, target)
    first, second = (x.float().permute(2, 0, 1)[None] * 2 - 1 for x in (image, target))
    with torch.no_grad():
        return Perceptual(float(network.to(first.device)(first, second)), "")


def round_to_8_bit(image: Float[Tensor, "H W 3"]) -> Float[Tensor, "H W 3"]:
    """The image after a round trip through an 8-bit file: clamped to [0, 1] and rounded to 1/255."""
    return (image.clamp(0, 1) * 255).round() / 255


def color_corrected(
    image: Float[Tensor, "H W 3"], target: Float[Tensor, "H W 3"], mask: Bool[Tensor, "H W"] | None = None
) -> Float[Tensor, "H W 3"]:
    """The image with the gain and offset per channel that bring it closest to the target, clamped to [0, 1].

    For captures whose exposure drifts: metrics after it forgive brightness and tint, so they are reported beside the
    plain ones, never instead of them.

    Raises:
        ValueError: shapes differ.
    """
    _check_same_shape(image, target, mask)
    counted = torch.ones(image.shape[:2], dtype=torch.bool, device=image.device) if mask is None else mask
    corrected = []
    for channel in range(3):
        x, y = image[..., channel], target[..., channel]
        design = torch.stack([x[counted], torch.ones_like(x[counted])], dim=-1).double()
        # The tiny ridge keeps a constant channel solvable: it then takes the target's mean.
        gram = design.T @ design + 1e-9 * torch.eye(2, dtype=torch.float64, device=x.device)
        gain, offset = torch.linalg.solve(gram, design.T @ y[counted].double())
        corrected.append((gain * x + offset).to(x.dtype))
    return torch.stack(corrected, dim=-1).clamp(0, 1)


def _check_same_shape(image: Tensor, target: Tensor, mask: Tensor | None) -> None:
    if image.ndim != 3 or image.shape[-1] != 3 or image.shape != target.shape:
        raise ValueError(f"image and target must both be [H, W, 3], got {[*image.shape]} and {[*target.shape]}")
    if mask is not None and mask.shape != image.shape[:2]:
        raise ValueError(f"mask must be [H, W] = {[*image.shape[:2]]}, got {[*mask.shape]}")


def _window(reference: Tensor) -> Float[Tensor, "11"]:
    offsets = torch.arange(WINDOW_SIZE, dtype=torch.float64) - WINDOW_SIZE // 2
    weights = torch.exp(-offsets.square() / (2 * WINDOW_SIGMA**2))
    return (weights / weights.sum()).to(reference)


def _blur(planes: Float[Tensor, "P 1 H W"]) -> Float[Tensor, "P 1 H2 W2"]:
    weights = _window(planes)
    return conv2d(conv2d(planes, weights.view(1, 1, 1, -1)), weights.view(1, 1, -1, 1))


def _ssim_map(image: Tensor, target: Tensor, *, margin: int) -> Float[Tensor, "H2 W2 3"]:
    if min(image.shape[:2]) + 2 * margin < WINDOW_SIZE:
        return image.new_zeros(0, 0, 3)
    x, y = (pad(a.permute(2, 0, 1)[:, None], [margin] * 4) for a in (image, target))  # [3, 1, H, W]
    mean_x, mean_y, xx, yy, xy = _blur(torch.cat([x, y, x * x, y * y, x * y])).split(3)
    var_x, var_y, covariance = xx - mean_x * mean_x, yy - mean_y * mean_y, xy - mean_x * mean_y
    luminance = (2 * mean_x * mean_y + C1) / (mean_x * mean_x + mean_y * mean_y + C1)
    structure = (2 * covariance + C2) / (var_x + var_y + C2)
    return (luminance * structure)[:, 0].permute(1, 2, 0)


def _whole_windows(mask: Bool[Tensor, "H W"]) -> Bool[Tensor, "H2 W2"]:
    outside = (~mask).float()[None, None]
    return torch.nn.functional.max_pool2d(outside, WINDOW_SIZE, stride=1)[0, 0] == 0


@lru_cache(maxsize=1)
def _lpips_network() -> tuple[nn.Module | None, str]:
    try:
        import lpips as package
    except ImportError:
        return None, f"the package lpips is not installed ({LPIPS_INSTALL})"
    from torchvision.models import AlexNet_Weights

    url = AlexNet_Weights.IMAGENET1K_V1.url
    weights = Path(torch.hub.get_dir()) / "checkpoints" / Path(url).name
    if not weights.exists():
        return None, f"AlexNet's weights are not at {weights} (fetch them once from {url})"
    return package.LPIPS(net="alex", verbose=False).eval().requires_grad_(False), ""
