"""Signed distances of solids, for sphere tracing: negative inside, never larger than the true distance outside.

Points are [3, N] (a row a coordinate, so that each operation runs over contiguous memory), in the solid's own frame,
z up, metres. The formulas are the standard ones collected by Inigo Quilez, "Distance functions".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

Points = Float[Tensor, "3 N"]
Distance = Callable[[Float[Tensor, "3 N"]], Float[Tensor, "N"]]


@dataclass(frozen=True)
class Solid:
    """A shape placed in the world, with what covers it.

    Args:
        distance: signed distance in the solid's own frame.
        half_size: half edges of a box about the own frame's origin that holds the solid.
        center: where the own frame's origin lies in the world.
        albedo: own-frame points [3, N] -> linear RGB [3, N]: a solid texture.
        yaw_rad: rotation about the world's z axis.
        gloss: strength of the highlight; 0 is Lambertian.
        hull: the shape without its thin-walled hollow, which casts the shadow; by default the shape itself.
    """

    distance: Distance
    half_size: tuple[float, float, float]
    center: tuple[float, float, float]
    albedo: Callable[[Float[Tensor, "3 N"]], Float[Tensor, "3 N"]]
    yaw_rad: float = 0.0
    gloss: float = 0.0
    hull: Distance | None = None

    @property
    def bounding_radius(self) -> float:
        return math.hypot(*self.half_size)

    def own_from_world(self, directions: Points) -> Points:
        """Directions (not positions) from the world into the solid's own frame."""
        return turned(directions, -self.yaw_rad)

    def world_from_own(self, directions: Points) -> Points:
        """Directions (not positions) from the solid's own frame into the world."""
        return turned(directions, self.yaw_rad)

    def own_points(self, points: Points) -> Points:
        """World positions in the solid's own frame."""
        return self.own_from_world(points - points.new_tensor(self.center)[:, None])


def turned(points: Points, yaw_rad: float) -> Points:
    """Rotated about z, counter-clockwise seen from above."""
    if yaw_rad == 0.0:
        return points
    cos, sin = math.cos(yaw_rad), math.sin(yaw_rad)
    return torch.stack([cos * points[0] - sin * points[1], sin * points[0] + cos * points[1], points[2]])


def length(*components: Tensor) -> Tensor:
    """Euclidean norm over separate components."""
    total = components[0] * components[0]
    for component in components[1:]:
        total = torch.addcmul(total, component, component)
    return total.sqrt()


def unit(vectors: Points) -> Points:
    """Divided by their lengths (several times faster than torch's normalize along the first dimension)."""
    return vectors / length(*vectors).clamp_min(1e-12)


def sphere(points: Points, radius: float) -> Float[Tensor, "N"]:
    return length(*points) - radius


def ellipsoid(points: Points, radii: Sequence[float]) -> Float[Tensor, "N"]:
    """A close estimate (exact only for a sphere): |p / r| (|p / r| - 1) / |p / r²|."""
    scaled = [p / r for p, r in zip(points, radii, strict=True)]
    first = length(*scaled)
    return first * (first - 1) / length(*(s / r for s, r in zip(scaled, radii, strict=True))).clamp_min(1e-6)


def rounded_box(points: Points, half_size: Sequence[float], rounding: float) -> Float[Tensor, "N"]:
    x, y, z = (p.abs() - (h - rounding) for p, h in zip(points, half_size, strict=True))
    outside = length(x.clamp_min(0), y.clamp_min(0), z.clamp_min(0))
    return outside + torch.maximum(torch.maximum(x, y), z).clamp_max(0) - rounding


def cylinder(points: Points, radius: float, half_height: float, rounding: float = 0.0) -> Float[Tensor, "N"]:
    """About z, edges rounded."""
    radial = length(points[0], points[1]) - (radius - rounding)
    vertical = points[2].abs() - (half_height - rounding)
    outside = length(radial.clamp_min(0), vertical.clamp_min(0))
    return outside + torch.maximum(radial, vertical).clamp_max(0) - rounding


def torus(points: Points, major: float, minor: float) -> Float[Tensor, "N"]:
    """Lying flat, about z."""
    return length(length(points[0], points[1]) - major, points[2]) - minor


def capsule(
    points: Points, start: Sequence[float], end: Sequence[float], start_radius: float, end_radius: float
) -> Float[Tensor, "N"]:
    """A round stick whose radius changes linearly (exact where the radii are equal, else slightly off)."""
    first = points.new_tensor(start)[:, None]
    axis = points.new_tensor(end)[:, None] - first
    offset = points - first
    along = (axis[:, 0] / (axis * axis).sum() @ offset).clamp(0, 1)
    return length(*(offset - along * axis)) - (start_radius + (end_radius - start_radius) * along)


def lathe(
    points: Points, profile: Callable[[Tensor], Tensor], half_height: float, *, steepest: float
) -> Float[Tensor, "N"]:
    """A solid of revolution about z: radius ``profile(z)``, whose slope |d radius / d z| never exceeds ``steepest``."""
    radial = length(points[0], points[1]) - profile(points[2].clamp(-half_height, half_height))
    side = radial / math.hypot(1.0, steepest)
    return torch.maximum(side, points[2].abs() - half_height)


def smooth_union(first: Tensor, second: Tensor, blend: float) -> Tensor:
    """The union with its seam filled over a width ``blend``."""
    seam = (blend - (first - second).abs()).clamp_min(0) / blend
    return torch.minimum(first, second) - seam * seam * (blend / 4)


def smooth_difference(solid: Tensor, cut: Tensor, blend: float) -> Tensor:
    """``solid`` without ``cut``, the rim rounded over a width ``blend``."""
    return -smooth_union(-solid, cut, blend)
