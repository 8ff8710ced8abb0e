"""Few, good Gaussians: those that no photo shows go, and those that float where cameras look through.

By what photos show of each Gaussian, as FastGS (2025) and RadSplat (Niemeyer 2024) prune, rather than by opacity alone;
and by free space: between a camera and the nearest point that it sees there is nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from representations.gaussians.model import GaussianModel
from representations.gaussians.optimization import VisibleAdam
from representations.gaussians.rendering import rasterization
from spatial.structures import Camera, Gaussians, PointCloud

FEWEST_POINTS = 20  # below it, points that a camera sees say nothing about what is near


class ViewPruning:
    """Removes Gaussians by what the training cameras see of them.

    Args:
        cameras: of the training photos, at the size that is trained on.
        points: what the poses' reconstruction found, for free space; without points nothing is taken for free.
        every, every_shown: steps between two looks at free space, and at what photos show (which costs renders);
            multiples of the densification's interval, whose sums then have just begun anew.
        start, stop: shares of the training between which what photos do not show goes; free space is kept free always.
        min_pixels: a Gaussian that covers less than this in every photo, weighted by how much of it is seen, goes.
        num_views: photos that are looked at each time, drawn anew.
        free_space: share of the distance to the nearest points that is free.
    """

    def __init__(
        self, cameras: Sequence[Camera], points: PointCloud, *, every: int = 100, every_shown: int = 300,
        start: float = 0.15, stop: float = 0.95, min_pixels: float = 0.5, num_views: int = 16, free_space: float = 0.5,
    ):  # fmt: skip
        self.cameras, self.every, self.every_shown = list(cameras), every, every_shown
        self.start, self.stop, self.min_pixels, self.num_views = start, stop, min_pixels, num_views
        nearest = [nearest_depth(camera, points) for camera in self.cameras] if free_space else []
        self.free = [
            (camera, free_space * depth)
            for camera, depth in zip(self.cameras, nearest, strict=False)
            if depth is not None
        ]

    @torch.no_grad()
    def update(
        self, step: int, max_steps: int, model: GaussianModel, optimizer: VisibleAdam, generator: torch.Generator
    ) -> None:
        """Every ``every`` steps: prunes, unless that would leave nothing."""
        drop = torch.zeros(len(model), dtype=torch.bool)
        if step % self.every == 0:
            drop |= self._in_free_space(model.means.data, generator)
        if self.min_pixels and step % self.every_shown == 0 and self.start * max_steps <= step <= self.stop * max_steps:
            shown = pixels_shown(model.gaussians(), self._some(self.cameras, generator))
            drop |= shown < self.min_pixels
        if drop.any() and not drop.all():
            kept = (~drop).nonzero()[:, 0]
            optimizer.take_rows(kept, torch.zeros(len(kept), dtype=torch.bool))

    def _in_free_space(self, means: Tensor, generator: torch.Generator) -> Bool[Tensor, "N"]:
        floating = torch.zeros(len(means), dtype=torch.bool)
        for camera, depth in self._some(self.free, generator):
            in_camera, inside = _seen(camera, means)
            floating |= inside & (in_camera[:, 2] < depth)
        return floating

    def _some(self, items: list, generator: torch.Generator) -> list:
        """As many as are looked at each time."""
        if len(items) <= self.num_views:
            return items
        return [items[index] for index in torch.randperm(len(items), generator=generator)[: self.num_views].tolist()]


def pixels_shown(gaussians: Gaussians, cameras: Sequence[Camera]) -> Float[Tensor, "N"]:
    """The most that any of the cameras shows of each Gaussian: its blending weights summed over a picture, in pixels.

    A weight is a pixel's derivative by the Gaussian's colour, so the sum is what the backward pass of rasterisation gives
    for a picture of one channel.
    """
    most = gaussians.means.new_zeros(len(gaussians))
    for camera in cameras:
        with torch.enable_grad():
            weights = most.new_zeros(len(gaussians), 1).requires_grad_()
            picture, _, _ = rasterization(
                gaussians.means, gaussians.quats, gaussians.scales, gaussians.opacities, weights,
                camera.camera_from_world[None].to(most), camera.K[None].to(most), camera.width, camera.height,
                rasterize_mode="antialiased" if gaussians.antialiased else "classic",
            )  # fmt: skip
            picture.sum().backward()
        assert weights.grad is not None
        most = torch.maximum(most, weights.grad[:, 0])
    return most


def nearest_depth(camera: Camera, points: PointCloud) -> float | None:
    """Depth of the nearest points that a camera sees, all but 2 % of them; None where it sees too few."""
    in_camera, inside = _seen(camera, points.points.float())
    depths = in_camera[inside, 2]
    return depths.kthvalue(1 + len(depths) // 50).values.item() if len(depths) >= FEWEST_POINTS else None


def _seen(camera: Camera, points: Float[Tensor, "N 3"]) -> tuple[Float[Tensor, "N 3"], Bool[Tensor, "N"]]:
    """Points in a camera's frame, and whether they fall into its picture."""
    pose, K = camera.camera_from_world.to(points), camera.K.to(points)
    in_camera = points @ pose[:3, :3].T + pose[:3, 3]
    depths = in_camera[:, 2]
    pixels = in_camera @ K.T
    limits = torch.stack([camera.width * depths, camera.height * depths], dim=-1)
    return in_camera, (depths > 0) & ((pixels[:, :2] >= 0) & (pixels[:, :2] <= limits)).all(-1)
