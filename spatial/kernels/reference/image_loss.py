"""L1 + SSIM with torch convolutions; see ``spatial.kernels.image_loss``."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

WINDOW, SIGMA = 11, 1.5
C1, C2 = 0.01**2, 0.03**2


def l1_ssim_loss(image: Tensor, target: Tensor, mask: Tensor | None = None, *, ssim_weight: float = 0.2) -> Tensor:
    """Twin of ``spatial.kernels.image_loss.l1_ssim_loss``."""
    if mask is None:
        mask = torch.ones(image.shape[:3], dtype=torch.bool, device=image.device)
    image = torch.where(mask[..., None], image, target)
    channels = image.shape[-1]
    l1 = (image - target).abs().sum() / (mask.sum().clamp_min(1) * channels)
    border = WINDOW // 2
    centres = mask[:, border:-border, border:-border]
    ssim = (ssim_map(image, target) * centres[..., None]).sum() / (centres.sum().clamp_min(1) * channels)
    return (1 - ssim_weight) * l1 + ssim_weight * (1 - ssim)


def ssim_map(image: Tensor, target: Tensor) -> Tensor:
    """SSIM [B, H − 10, W − 10, D] of images [B, H, W, D] in [0, 1] (Wang 2004, eq. 13), windows inside the image."""
    x, y = image.movedim(-1, 1), target.movedim(-1, 1)
    mean_x, mean_y = _filter(x), _filter(y)
    variances = _filter(x * x + y * y) - mean_x**2 - mean_y**2
    covariance = _filter(x * y) - mean_x * mean_y
    numerator = (2 * mean_x * mean_y + C1) * (2 * covariance + C2)
    return (numerator / ((mean_x**2 + mean_y**2 + C1) * (variances + C2))).movedim(1, -1)


def _filter(planes: Tensor) -> Tensor:
    offsets = torch.arange(WINDOW, dtype=planes.dtype, device=planes.device) - WINDOW // 2
    window = torch.exp(-(offsets**2) / (2 * SIGMA**2))
    window = (window / window.sum()).expand(planes.shape[1], 1, 1, -1)
    rows = F.conv2d(planes, window, groups=planes.shape[1])
    return F.conv2d(rows, window.mT, groups=planes.shape[1])
