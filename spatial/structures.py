"""Typed data that packages hand to one another: the contract between ``data``, ``representations`` and ``spatial``.

Conventions: cameras are OpenCV (x right, y down, z forward), ``viewmats`` are ``camera_from_world``, pixel centres lie
at +0.5, quaternions are wxyz, images are channels last. The world is the capture's own frame and scale.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor


@dataclass(frozen=True)
class Camera:
    """One undistorted (pinhole) posed camera.

    Args:
        K: intrinsics in pixels, [3, 3], float64; principal point anywhere, fx and fy may differ.
        camera_from_world: rigid transform, [4, 4], float64.
        width, height: image size in pixels.
    """

    K: Float[Tensor, "3 3"]
    camera_from_world: Float[Tensor, "4 4"]
    width: int
    height: int

    @property
    def position(self) -> Float[Tensor, "3"]:
        """The camera's centre in the world."""
        rotation, translation = self.camera_from_world[:3, :3], self.camera_from_world[:3, 3]
        return -rotation.T @ translation

    @property
    def forward(self) -> Float[Tensor, "3"]:
        """Unit viewing direction in the world."""
        return self.camera_from_world[2, :3]

    def resized(self, width: int, height: int) -> Camera:
        """The same camera for its image resampled to ``width`` × ``height`` (pixel centres at +0.5: a pure scaling)."""
        scale = torch.tensor([width / self.width, height / self.height, 1.0], dtype=self.K.dtype)
        return replace(self, K=self.K * scale[:, None], width=width, height=height)


@dataclass(frozen=True)
class View:
    """One photo of a capture with its pinhole camera. Pixels are read on demand: ``load`` costs a decode.

    Args:
        name: path relative to the capture's image root, '/'-separated; unique in the capture, and the sort key.
        camera: pinhole camera of what ``load`` returns (after undistortion).
        load: ``load(scale)`` returns the image as [H, W, 3] uint8 (display sRGB, undistorted) and a mask [H, W] bool,
            True where the pixel belongs to the scene, or None where all do. ``scale`` ≤ 1 asks for
            ``camera.resized(round(width * scale), round(height * scale))``, resampled by area.
        timestamp_us: capture time where known.
        path: the file on disk, for messages.
    """

    name: str
    camera: Camera
    load: Callable[[float], tuple[UInt8[np.ndarray, "H W 3"], Bool[np.ndarray, "H W"] | None]]
    timestamp_us: int | None = None
    path: Path | None = None


@dataclass(frozen=True)
class PointCloud:
    """Points in the world with display-sRGB colours in [0, 1]."""

    points: Float[Tensor, "N 3"]
    colors: Float[Tensor, "N 3"]

    def __len__(self) -> int:
        return self.points.shape[0]


@dataclass(frozen=True)
class LeftOut:
    """A photo that the capture does not use, and why, in words for the user."""

    name: str
    reason: str


@dataclass(frozen=True)
class Capture:
    """Posed photos of one scene, sorted by name, in the capture's own frame and scale.

    Args:
        name: short name for titles.
        views: posed photos, sorted by name.
        points: sparse points (may be empty).
        left_out: photos that were given but are not used.
        source: one sentence saying where poses came from, with figures ("COLMAP model sparse/0: 50 of 50 photos, …").
        has_alpha: images carry an alpha channel or masks that mean "not part of the scene" (object captures).
        seconds: seconds spent by named stage ("features", "matching", "mapping").
    """

    name: str
    views: list[View]
    points: PointCloud
    left_out: list[LeftOut] = field(default_factory=list)
    source: str = ""
    has_alpha: bool = False
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Gaussians:
    """Anisotropic 3D Gaussians as they are stored: log-scales, logit-opacities, quaternions wxyz (not normalised).

    Args:
        means: [N, 3] in the world.
        quats: [N, 4] wxyz.
        log_scales: [N, 3] natural logarithm of the standard deviations.
        logit_opacities: [N].
        sh: [N, K, 3] spherical-harmonic colour coefficients, K = (degree + 1)², colour = max(0, SH + 0.5).
        antialiased: trained with the opacity compensation of Mip-Splatting ("mip" in files' SplatRenderMode).
    """

    means: Float[Tensor, "N 3"]
    quats: Float[Tensor, "N 4"]
    log_scales: Float[Tensor, "N 3"]
    logit_opacities: Float[Tensor, "N"]
    sh: Float[Tensor, "N K 3"]
    antialiased: bool = False

    def __len__(self) -> int:
        return self.means.shape[0]

    @property
    def scales(self) -> Float[Tensor, "N 3"]:
        return self.log_scales.exp()

    @property
    def opacities(self) -> Float[Tensor, "N"]:
        return self.logit_opacities.sigmoid()

    @property
    def sh_degree(self) -> int:
        return round(self.sh.shape[1] ** 0.5) - 1


@dataclass(frozen=True)
class Render:
    """What a renderer returns for one camera.

    Args:
        colors: [H, W, 3] in [0, 1], background included.
        alphas: [H, W, 1] accumulated opacity.
        depths: [H, W, 1] expected depth along z (the alpha-weighted mean), 0 where nothing is hit.
    """

    colors: Float[Tensor, "H W 3"]
    alphas: Float[Tensor, "H W 1"]
    depths: Float[Tensor, "H W 1"]
