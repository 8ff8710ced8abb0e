"""Scores of held-out views: what masks leave out has no influence, and what nothing is left of does not count."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from data.synthetic.gaussians import orbit_cameras, random_gaussians
from representations.gaussians import evaluation
from representations.gaussians.evaluation import evaluate_views
from representations.gaussians.rendering import render
from spatial.metrics.image import Perceptual
from spatial.structures import Gaussians, View

SCENE = random_gaussians(60, extent=0.8, generator=torch.Generator().manual_seed(5))


def views_of(gaussians: Gaussians, masks: Sequence[np.ndarray | None], hidden: int = 0) -> list[View]:
    views = []
    cameras = orbit_cameras(len(masks), radius=2.6, altitude=0.9, width=64, height=48)
    for index, (camera, mask) in enumerate(zip(cameras, masks, strict=True)):
        picture = (render(gaussians, camera).colors * 255).round().byte().numpy() // 2 + 60
        if mask is not None:
            picture = np.where(mask[..., None], picture, hidden).astype(np.uint8)
        views.append(View(f"{index}.png", camera, lambda scale, pair=(picture, mask): pair))
    return views


def rows(first: int, last: int) -> np.ndarray:
    mask = np.zeros((48, 64), bool)
    mask[first:last] = True
    return mask


def test_a_view_without_a_pixel_to_measure_by_does_not_count(caplog: pytest.LogCaptureFixture) -> None:
    result = evaluate_views(SCENE, views_of(SCENE, [None, rows(0, 0), None]), scale=1.0)
    assert [score.name for score in result.scores] == ["0.png", "2.png"] and "1.png" in caplog.text


def test_a_mask_too_thin_for_ssim_leaves_the_mean_of_the_others() -> None:
    result = evaluate_views(SCENE, views_of(SCENE, [None, rows(10, 15)]), scale=1.0)
    assert math.isnan(result.scores[1].ssim) and result.ssim == result.scores[0].ssim
    assert math.isfinite(result.psnr)


def test_what_a_mask_hides_has_no_influence(monkeypatch: pytest.MonkeyPatch) -> None:
    """On LPIPS too, whose network is stood in for by a mean, since its weights cannot be had here."""

    def mean_error(image: torch.Tensor, target: torch.Tensor, mask: torch.Tensor | None = None) -> Perceptual:
        assert mask is not None
        return Perceptual(float((image - target)[mask].abs().mean()), "")

    monkeypatch.setattr(evaluation, "lpips", mean_error)
    first, second = (evaluate_views(SCENE, views_of(SCENE, [rows(5, 40)], hidden), scale=1.0) for hidden in (0, 255))
    assert dataclasses.asdict(first.scores[0]) == dataclasses.asdict(second.scores[0])
    assert first.lpips is not None and first.lpips > 0.1
