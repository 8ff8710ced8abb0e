"""How well a scene renders photos that it was not trained on, with the protocol in words."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, UInt8

from representations.gaussians.rendering import render
from spatial.metrics.image import lpips, psnr, round_to_8_bit, ssim
from spatial.report.html import ViewScore
from spatial.structures import Gaussians, View

logger = logging.getLogger(__name__)


class Evaluation(NamedTuple):
    """Scores by view, and why LPIPS is missing where it is."""

    scores: list[ViewScore]
    lpips_reason: str

    @property
    def psnr(self) -> float | None:
        return float(np.mean([score.psnr for score in self.scores])) if self.scores else None

    @property
    def ssim(self) -> float | None:
        values = [score.ssim for score in self.scores if not math.isnan(score.ssim)]
        return float(np.mean(values)) if values else None

    @property
    def lpips(self) -> float | None:
        values = [score.lpips for score in self.scores if score.lpips is not None]
        return float(np.mean(values)) if values else None


def evaluate_views(gaussians: Gaussians, views: Sequence[View], *, scale: float, with_lpips: bool = True) -> Evaluation:
    """Renders every view at ``scale`` of its photo, rounds to 8 bit, and compares. Masked pixels do not count.

    A view whose mask leaves nothing is left out, with a warning; one whose mask leaves no SSIM window has SSIM NaN.
    """
    scores, reason = [], ""
    for view in views:
        truth, mask, picture = photo_and_render(gaussians, view, scale)
        target, shown = (torch.from_numpy(pixels.astype(np.float32)) / 255 for pixels in (truth, picture))
        kept = None if mask is None else torch.from_numpy(mask)
        if kept is not None and not kept.any():
            logger.warning("%s: its mask leaves no pixel to measure by; it does not count", view.name)
            continue
        perceptual = None
        if with_lpips:
            perceptual, reason = lpips(shown, target, kept)
        scores.append(ViewScore(view.name, psnr(shown, target, kept), ssim(shown, target, kept), perceptual))
    return Evaluation(scores, reason)


def photo_and_render(
    gaussians: Gaussians, view: View, scale: float
) -> tuple[UInt8[np.ndarray, "H W 3"], Bool[np.ndarray, "H W"] | None, UInt8[np.ndarray, "H W 3"]]:
    """A photo, its mask, and the scene seen from its camera, all at ``scale``."""
    truth, mask = view.load(scale)
    camera = view.camera.resized(truth.shape[1], truth.shape[0])
    picture = round_to_8_bit(render(gaussians, camera).colors)
    return truth, mask, (picture * 255).round().to(torch.uint8).numpy()


def protocol(*, every: int, num_held_out: int, num_views: int, scale_note: str) -> str:
    """What the numbers mean, in sentences."""
    if not num_held_out:
        return "Nothing was held out, so no quality is measured."
    return (
        f"Every {every}th of {num_views} photos by sorted name, the first included, was held out: {num_held_out} photos. "
        f"{scale_note} Renders are rounded to 8 bit. PSNR and SSIM (11-tap Gaussian window of sigma 1.5, windows inside "
        "the image) are means over photos of display sRGB in [0, 1]; pixels outside a mask do not count. "
        "LPIPS, where its weights are installed, is the alex network's."
    )
