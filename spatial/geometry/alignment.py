"""How well estimated cameras agree with true ones, once the two worlds are laid over each other.

Photos alone leave a world's origin, orientation and scale open, so that poses are compared after the best similarity.
Umeyama, "Least-squares estimation of transformation parameters between two point patterns", PAMI 1991.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from spatial.structures import Camera


class Similarity(NamedTuple):
    """``target = scale * rotation @ source + translation``, float64."""

    scale: float
    rotation: Float[Tensor, "3 3"]
    translation: Float[Tensor, "3"]

    @property
    def matrix(self) -> Float[Tensor, "4 4"]:
        """``target_from_source``, the scale within its upper 3 × 3."""
        matrix = torch.eye(4, dtype=torch.float64)
        matrix[:3, :3], matrix[:3, 3] = self.scale * self.rotation, self.translation
        return matrix

    def apply(self, points: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 3"]:
        """Points from the source's frame into the target's."""
        return self.scale * points.double() @ self.rotation.T + self.translation

    def inverse(self) -> Similarity:
        """The similarity from the target's frame into the source's."""
        rotation = self.rotation.T
        return Similarity(1 / self.scale, rotation, -rotation @ self.translation / self.scale)


class PoseErrors(NamedTuple):
    """Errors of each camera after alignment.

    Args:
        rotation_deg: angle between estimated and true orientation, [C].
        position_percent: distance between estimated and true centre, in percent of the extent, [C].
        truth_from_estimate: the similarity that was applied to the estimate.
    """

    rotation_deg: Float[Tensor, "C"]
    position_percent: Float[Tensor, "C"]
    truth_from_estimate: Similarity


def align_points(source: Float[Tensor, "N 3"], target: Float[Tensor, "N 3"]) -> Similarity:
    """The similarity that brings ``source`` nearest to ``target`` (least squares, no reflection; Umeyama eq. 40-42).

    Raises:
        ValueError: fewer than three points, or points on one line, about which the rotation stays open.
    """
    if source.shape != target.shape or source.ndim != 2 or source.shape[0] < 3:
        raise ValueError(f"alignment needs at least 3 pairs of points, got {list(source.shape)}, {list(target.shape)}")
    source, target = source.double(), target.double()
    source_mean, target_mean = source.mean(0), target.mean(0)
    source_offsets, target_offsets = source - source_mean, target - target_mean
    for offsets in (source_offsets, target_offsets):
        spread = torch.linalg.svdvals(offsets)
        if spread[1] <= 1e-9 * spread[0]:
            raise ValueError("alignment needs points that do not all lie on one line")
    U, singular, Vt = torch.linalg.svd(target_offsets.T @ source_offsets / len(source))
    signs = torch.ones(3, dtype=torch.float64)
    signs[2] = torch.sign(torch.linalg.det(U) * torch.linalg.det(Vt))
    rotation = U @ torch.diag(signs) @ Vt
    scale = float((singular * signs).sum() / source_offsets.square().sum(1).mean())
    return Similarity(scale, rotation, target_mean - scale * rotation @ source_mean)


def pose_errors(estimated: Sequence[Camera], truth: Sequence[Camera], *, extent: float) -> PoseErrors:
    """Aligns the cameras' centres and returns what remains.

    Args:
        estimated, truth: the same photos in the same order, at least three, not on one line.
        extent: the true length that 100 % of position error stand for, such as the radius of an orbit.
    """
    centers = torch.stack([camera.position for camera in estimated]).double()
    true_centers = torch.stack([camera.position for camera in truth]).double()
    similarity = align_points(centers, true_centers)
    rotations = torch.stack([camera.camera_from_world[:3, :3] for camera in estimated]).double()
    true_rotations = torch.stack([camera.camera_from_world[:3, :3] for camera in truth]).double()
    return PoseErrors(
        rotation_angle_deg(rotations @ similarity.rotation.T, true_rotations),
        (similarity.apply(centers) - true_centers).norm(dim=1) / extent * 100,
        similarity,
    )


def rotation_angle_deg(
    first: Float[Tensor, "*batch 3 3"], second: Float[Tensor, "*batch 3 3"]
) -> Float[Tensor, "*batch"]:
    """Angle of the rotation from one to the other, exact for small angles too (by the chord, not the arc cosine)."""
    chord = (first - second).flatten(-2).norm(dim=-1) / 8**0.5
    return torch.rad2deg(2 * torch.asin(chord.clamp_max(1)))
