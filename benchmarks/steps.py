"""Training steps on the fox, outside Lightning: the very `training_step` that users run, in a bare loop."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import tables  # noqa: F401 - puts this clone on the path
import torch

from data.captures.datamodule import CaptureDataModule
from data.captures.load import load_capture
from representations.gaussians.densification import DefaultDensification
from representations.gaussians.reconstruction import scene_extent
from representations.gaussians.training import LitGaussians
from spatial.geometry.quaternions import rotation_matrices
from spatial.structures import Gaussians, View
from spatial.training.memory import keep_freed_memory


class PlainOptimizer(NamedTuple):
    """An optimiser under the two names by which `training_step` knows Lightning's wrapper."""

    optimizer: Any

    def step(self, **options: Any) -> None:
        self.optimizer.step(**options)


class BareGaussians(LitGaussians):
    """`LitGaussians` without a trainer, at the end of its schedules: full resolution, all SH bands."""

    def start(self) -> BareGaussians:
        keep_freed_memory()
        self.plain_optimizers = [PlainOptimizer(self.configure_optimizers())]
        return self

    def _steps_done(self) -> int:
        return self.schedule_steps

    def _optimizers(self) -> list:
        return self.plain_optimizers


class Fox(NamedTuple):
    """Training views of the fox, decoded, and the scene's extent."""

    views: list[View]
    batches: list[Any]
    extent: float

    @property
    def size(self) -> str:
        height, width, _ = self.batches[0].image.shape
        return f"{width}×{height}"


def load_fox(project: Path, *, max_image_size: int = 480, num_batches: int = 8) -> Fox:
    """The fox from its COLMAP model, with ``num_batches`` photos ready to train on."""
    with tempfile.TemporaryDirectory() as work:
        capture = load_capture(project, work_dir=Path(work), max_image_size=max_image_size, check=False)
    data = CaptureDataModule(capture.views)
    every = max(1, len(data.train_views) // num_batches)
    batches = [data.train_views[index] for index in range(0, len(data.train_views), every)][:num_batches]
    data.teardown("fit")
    return Fox(data.train_views.views, batches, scene_extent(capture.views, capture.points))


def bare_module(gaussians: Gaussians, fox: Fox, module: type[LitGaussians] = BareGaussians) -> Any:
    """A module whose number of Gaussians stays, with everything else as in a real run."""
    densification = DefaultDensification(max_gaussians=len(gaussians), start=2.0, stop=2.0)  # never changes anything
    names = [view.name for view in fox.views]
    return module(gaussians, densification, max_steps=100_000, extent=fox.extent, view_names=names)


def multiplied(gaussians: Gaussians, num: int, *, seed: int = 0) -> Gaussians:
    """``num`` Gaussians that look much as the given ones do: each becomes several smaller ones, drawn from itself.

    With r copies, standard deviations shrink by √r and the copies are spread so that their mixture has the old one's
    covariance. What they cover of an image stays the same, thus also the pixel–Gaussian pairs of the blending.
    """
    copies = num / len(gaussians)
    if copies <= 1:
        return gaussians
    generator = torch.Generator().manual_seed(seed)
    index = torch.arange(num) % len(gaussians)
    scales, quats = gaussians.scales[index], gaussians.quats[index]
    spread = torch.randn(num, 3, generator=generator) * scales * (1 - 1 / copies) ** 0.5
    means = gaussians.means[index] + (rotation_matrices(quats) @ spread[..., None])[..., 0]
    return replace(
        gaussians, means=means, quats=quats, log_scales=(scales / copies**0.5).log(),
        logit_opacities=gaussians.logit_opacities[index], sh=gaussians.sh[index],
    )  # fmt: skip
