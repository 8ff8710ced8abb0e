"""Soft sunlight and ambient occlusion, baked from the solids' distances into volumes before any picture is taken.

Shadows are thus the same from every side and cost a look-up. Soft shadows and occlusion follow Quilez, "Soft shadows
in raymarched SDFs" and "Multiresolution ambient occlusion".
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from data.synthetic.scene import FLOOR_Z_M, ROOM_HALF_M, Scene, room_distance
from data.synthetic.shapes import Points
from data.synthetic.textures import interpolated

SUN_SHARPNESS = 9.0  # 1 / tangent of the angle under which the light is seen: a large window
SUN_COLOR = (2.05, 1.74, 1.34)
SKY_COLOR = (0.44, 0.49, 0.57)
BOUNCE_COLOR = (0.36, 0.30, 0.24)
OCCLUSION_REACH_M = (0.02, 0.06, 0.16)


@dataclass(frozen=True)
class Volume:
    """Values on a grid between the corners ``low`` and ``high``, [D, X, Y, Z]."""

    values: Float[Tensor, "D X Y Z"]
    low: tuple[float, float, float]
    high: tuple[float, float, float]

    def at(self, points: Points) -> Float[Tensor, "D N"]:
        """Trilinear; points outside take the nearest border's value."""
        low, high = points.new_tensor(self.low)[:, None], points.new_tensor(self.high)[:, None]
        return interpolated(self.values, (points - low) / (high - low) * 2 - 1)

    def holds(self, points: Points) -> Tensor:
        low, high = points.new_tensor(self.low)[:, None], points.new_tensor(self.high)[:, None]
        return ((points > low) & (points < high)).all(0)


@dataclass(frozen=True)
class Lighting:
    """Distance to the solids and visibility of the sun: finely about the table, coarsely in the whole room."""

    table: Volume
    room: Volume
    sun: Float[Tensor, "3"]

    def irradiance(self, points: Points, normals: Points) -> tuple[Float[Tensor, "3 N"], Float[Tensor, "N"]]:
        """Light that reaches a surface, over pi (times albedo: the outgoing radiance), and its sunlit share."""
        sunlight = self._sunlight(points, normals)
        up = (0.5 + 0.5 * normals[2])[None]
        sky, bounce, sun = (points.new_tensor(c)[:, None] for c in (SKY_COLOR, BOUNCE_COLOR, SUN_COLOR))
        return (bounce + (sky - bounce) * up) * self._openness(points, normals) + sun * sunlight, sunlight

    def _sunlight(self, points: Points, normals: Points) -> Float[Tensor, "N"]:
        """Visible share of the sun times the cosine of its angle."""
        cosine = (self.sun @ normals).clamp_min(0)
        return cosine * nested(self.table, self.room, points + 0.018 * normals)[1]

    def _openness(self, points: Points, normals: Points) -> Float[Tensor, "N"]:
        """1 in the open, towards 0 in corners and beneath things."""
        missing = torch.zeros_like(points[0])
        for reach in OCCLUSION_REACH_M:
            ahead = points + reach * normals
            free = torch.minimum(nested(self.table, self.room, ahead)[0], room_distance(ahead))
            missing += (1 - free / reach).clamp(0, 1)
        return 1 - 0.24 * missing


def bake(scene: Scene) -> Lighting:
    """Builds the volumes of one scene (about a second)."""
    sun = torch.tensor(scene.sun) / torch.tensor(scene.sun).norm()
    half = ROOM_HALF_M + 0.05
    room = _distances(scene, (-half, -half, FLOOR_Z_M - 0.05), (half, half, 1.35), 0.08)
    table = _distances(scene, (-0.95, -0.95, -0.12), (0.95, 0.95, 0.48), 0.02)
    return Lighting(_with_sun(table, table, room, sun), _with_sun(room, table, room, sun), sun)


def nested(table: Volume, room: Volume, points: Points) -> Float[Tensor, "D N"]:
    """The fine volume's values where it reaches, else the coarse one's."""
    near = table.holds(points)
    if near.all():
        return table.at(points)
    values = points.new_empty(room.values.shape[0], points.shape[1])
    values[:, ~near] = room.at(points[:, ~near])
    if near.any():
        values[:, near] = table.at(points[:, near])
    return values


def _grid(low: tuple[float, float, float], high: tuple[float, float, float], shape: list[int]) -> Points:
    ticks = [torch.linspace(a, b, n) for a, b, n in zip(low, high, shape, strict=True)]
    return torch.stack(torch.meshgrid(*ticks, indexing="ij")).reshape(3, -1)


def _distances(scene: Scene, low: tuple[float, float, float], high: tuple[float, float, float], step: float) -> Volume:
    shape = [round((b - a) / step) + 1 for a, b in zip(low, high, strict=True)]
    points = _grid(low, high, shape)
    values = torch.cat([scene.hull_distance(part) for part in points.split(1 << 16, 1)])
    return Volume(values.reshape(1, *shape), low, high)


def _with_sun(volume: Volume, table: Volume, room: Volume, sun: Tensor) -> Volume:
    """Adds the visible share of the sun at each grid point as a second channel."""
    shape = list(volume.values.shape[1:])
    points = _grid(volume.low, volume.high, shape)
    visible = torch.cat([_visibility(table, room, part, sun) for part in points.split(1 << 16, 1)])
    return Volume(torch.cat([volume.values, visible.reshape(1, *shape)]), volume.low, volume.high)


def _visibility(table: Volume, room: Volume, points: Points, sun: Tensor) -> Tensor:
    travelled = points.new_full((points.shape[1],), 0.015)
    visible = torch.ones_like(travelled)
    for _ in range(28):
        free = nested(table, room, points + travelled * sun[:, None])[0]
        visible = torch.minimum(visible, 0.5 + 0.5 * SUN_SHARPNESS * free / travelled)
        travelled = travelled + free.clamp(0.012, 0.15)
    visible = visible.clamp(0, 1)
    return visible * visible * (3 - 2 * visible)
