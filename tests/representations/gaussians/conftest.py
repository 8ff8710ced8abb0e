"""Training in memory: views of a known scene, and a trainer without a command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from data.captures.datamodule import CaptureDataModule
from data.synthetic.gaussians import orbit_cameras, random_gaussians
from representations.gaussians.densification import DefaultDensification
from representations.gaussians.rendering import render
from representations.gaussians.training import LitGaussians
from spatial.structures import Gaussians, View
from spatial.training.run_folder import RunFolder
from spatial.training.trainer import make_trainer


@pytest.fixture(scope="session")
def true_scene() -> Gaussians:
    return random_gaussians(200, extent=0.8, generator=torch.Generator().manual_seed(1), sh_degree=0)


@pytest.fixture(scope="session")
def true_views(true_scene: Gaussians) -> list[View]:
    """Six views, 64 × 48, of the scene."""
    views = []
    for index, camera in enumerate(orbit_cameras(6, radius=2.6, altitude=0.9, width=64, height=48)):
        picture = (render(true_scene, camera).colors * 255).round().byte().numpy()
        views.append(View(f"{index}.png", camera, lambda scale, picture=picture: (picture, None)))
    return views


@pytest.fixture
def fit(tmp_path: Path) -> Callable[..., LitGaussians]:
    """``fit(gaussians, views, steps, densification=…, **options of LitGaussians)`` trains and returns the module."""
    runs = iter(range(100))

    def train(
        gaussians: Gaussians, views: Sequence[View], steps: int, *, densification: Any = None, prepare: Any = None,
        **options: Any,
    ) -> LitGaussians:  # fmt: skip
        densification = densification or DefaultDensification(max_gaussians=len(gaussians), start=2.0)
        module = LitGaussians(
            gaussians, densification, max_steps=steps, extent=1.0, view_names=[view.name for view in views], **options
        )
        if prepare is not None:
            prepare(module)
        with RunFolder(tmp_path / f"run-{next(runs)}", config={"max_steps": steps}) as run:
            trainer = make_trainer(run, max_steps=steps, accelerator="cpu")
            trainer.fit(module, datamodule=CaptureDataModule(views, hold_out_every=0, seed=1))
        return module

    return train
