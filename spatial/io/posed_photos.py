"""What a file of camera poses says: photos on disk with the lens and pose of each, before anything is undistorted."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from spatial.structures import LeftOut, PointCloud


@dataclass(frozen=True)
class PosedPhoto:
    """One photo as the file describes it.

    Args:
        name: '/'-separated, unique; relative to the root of the images.
        path: the image on disk.
        lens: `pycolmap.Camera`, any model, at the size that the file declares (which may be a multiple of the image's).
        camera_from_world: [4, 4] float64, OpenCV axes.
        mask_path: file whose white pixels belong to the scene.
    """

    name: str
    path: Path
    lens: Any
    camera_from_world: Float[Tensor, "4 4"]
    mask_path: Path | None = None


@dataclass(frozen=True)
class PosedPhotos:
    """All of them, with sparse points (may be empty), what is left out and why, and one sentence on the origin."""

    photos: list[PosedPhoto]
    points: PointCloud
    left_out: list[LeftOut] = field(default_factory=list)
    source: str = ""


def empty_points() -> PointCloud:
    return PointCloud(points=torch.zeros(0, 3), colors=torch.zeros(0, 3))
