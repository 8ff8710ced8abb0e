"""The synthetic still life: a round terrazzo table in a room, with pottery, books, a stone ball, a rope and a crate.

World: metres, z up, the origin on the table top's middle. The room's walls and floor close the scene, so that every
ray hits something.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from data.synthetic import materials
from data.synthetic.shapes import (
    Points,
    Solid,
    capsule,
    cylinder,
    ellipsoid,
    lathe,
    rounded_box,
    smooth_difference,
    smooth_union,
    sphere,
    torus,
)
from data.synthetic.textures import Noise, mix, smoothstep

ROOM_HALF_M = 2.5
FLOOR_Z_M = -0.72
TABLE_RADIUS_M = 0.8
RUG_RADIUS_M = 1.55


@dataclass(frozen=True)
class Scene:
    """Solids in a square room whose walls stand at x, y = ±``ROOM_HALF_M``; ``sun`` points to the light."""

    solids: list[Solid]
    noise: Noise
    sun: tuple[float, float, float] = (0.58, -0.40, 0.60)

    def hull_distance(self, points: Points) -> Float[Tensor, "N"]:
        """Distance to the nearest solid's hull, the room left out."""
        hulls = [(solid.hull or solid.distance)(solid.own_points(points)) for solid in self.solids]
        return torch.stack(hulls).amin(0)

    def room_albedo(self, points: Points) -> Float[Tensor, "3 N"]:
        """Colour of the floor with its rug, and of the walls."""
        is_floor = points[2] < FLOOR_Z_M + 1e-3
        color = torch.empty_like(points)
        on_floor = points[:, is_floor]
        boards = materials.planks(self.noise, on_floor, "4a2f1c", "a9794b")
        woven, coverage = materials.rug(self.noise, on_floor, RUG_RADIUS_M)
        color[:, is_floor] = mix(boards, woven, coverage)
        color[:, ~is_floor] = materials.wall(self.noise, points[:, ~is_floor], FLOOR_Z_M)
        return color


def room_distance(points: Points) -> Float[Tensor, "N"]:
    """Distance to the nearest wall or the floor, from inside the room."""
    walls = ROOM_HALF_M - torch.maximum(points[0].abs(), points[1].abs())
    return torch.minimum(walls, points[2] - FLOOR_Z_M)


def still_life(noise: Noise) -> Scene:
    """The one scene of the demo."""
    return Scene([*_table(noise), _teapot(noise), _vase(noise), _crate(noise), *_books(noise), *_small(noise)], noise)


def _table(noise: Noise) -> list[Solid]:
    thickness = 0.05
    chips = ("7d3b2b", "c79a4b", "2f4a46", "e9e2d2", "5b4a44", "97a39b", "b8694a")
    height = -FLOOR_Z_M - thickness

    def leg(points: Points) -> Tensor:
        foot = cylinder(points - points.new_tensor([0, 0, -height / 2 + 0.02])[:, None], 0.30, 0.02, 0.01)
        blended = smooth_union(cylinder(points, 0.05, height / 2), foot, 0.12)
        return torch.maximum(blended, -points[2] - height / 2)  # the blend would swell into the floor

    return [
        Solid(
            lambda p: cylinder(p, TABLE_RADIUS_M, thickness / 2, 0.014),
            (TABLE_RADIUS_M, TABLE_RADIUS_M, thickness / 2),
            (0, 0, -thickness / 2),
            lambda p: materials.terrazzo(noise, p, "d9d0bf", chips),
        ),
        Solid(
            leg,
            (0.31, 0.31, height / 2 + 0.01),
            (0, 0, -thickness - height / 2),
            lambda p: materials.wood(noise, p.roll(1, 0), "2e1c10", "6f4526"),
        ),
    ]


def _teapot(noise: Noise) -> Solid:
    def distance(points: Points) -> Tensor:
        x, y, z = points
        body = ellipsoid(points, (0.150, 0.150, 0.112))
        lid = ellipsoid(points - points.new_tensor([0, 0, 0.098])[:, None], (0.075, 0.075, 0.028))
        knob = sphere(points - points.new_tensor([0, 0, 0.140])[:, None], 0.019)
        foot = cylinder(points - points.new_tensor([0, 0, -0.104])[:, None], 0.080, 0.012, 0.006)
        spout = smooth_union(
            capsule(points, (0.11, 0, -0.03), (0.195, 0, 0.02), 0.042, 0.026),
            capsule(points, (0.195, 0, 0.02), (0.245, 0, 0.094), 0.026, 0.015),
            0.03,
        )
        handle = torus(torch.stack([x + 0.158, z - 0.008, y]), 0.068, 0.0145)
        # The handle must not reappear inside the pot; it is swallowed by the union there.
        pot = smooth_union(smooth_union(body, spout, 0.035), handle, 0.02)
        pot = smooth_union(smooth_union(pot, foot, 0.015), smooth_union(lid, knob, 0.014), 0.006)
        return 0.78 * pot  # estimates of ellipsoids and tapered sticks grow up to a fifth too fast

    return Solid(
        distance,
        (0.262, 0.155, 0.165),
        (0.05, 0.04, 0.116),
        lambda p: materials.glaze(noise, p, "1f6f78", "e9d8a6", "14363f"),
        yaw_rad=math.radians(-35),
        gloss=0.55,
    )


def _vase(noise: Noise) -> Solid:
    half_height = 0.20

    def profile(z: Tensor) -> Tensor:
        t = (z + half_height) / (2 * half_height)
        return 0.060 + 0.050 * torch.sin(3.6 * t + 0.25) + 0.036 * smoothstep(0.82, 1.0, t)

    def hull(points: Points) -> Tensor:
        return lathe(points, profile, half_height, steepest=0.5)

    def distance(points: Points) -> Tensor:
        inside = lathe(points, lambda z: profile(z) - 0.012, half_height + 0.1, steepest=0.5)
        below = -(points[2] + half_height - 0.03)
        return smooth_difference(hull(points), torch.maximum(inside, below), 0.004)

    return Solid(
        distance,
        (0.112, 0.112, 0.201),
        (-0.36, 0.27, half_height),
        lambda p: materials.earthenware(noise, p),
        hull=hull,
    )


def _crate(noise: Noise) -> Solid:
    half = 0.105

    def distance(points: Points) -> Tensor:
        """A cube with a panel sunk into each face."""
        cube = rounded_box(points, (half, half, half), 0.006)
        x, y, z = points.abs()
        deepest = torch.maximum(torch.maximum(x, y), z) - (half - 0.012)
        second = x + y + z - torch.maximum(torch.maximum(x, y), z) - torch.minimum(torch.minimum(x, y), z)
        panel = torch.maximum(-deepest, second - (half - 0.030))
        return 0.8 * torch.maximum(cube, -panel)

    def albedo(points: Points) -> Tensor:
        """Boards along x or z, by face, three to a panel."""
        x, y, z = points
        upright = (y.abs() > z.abs()) & (y.abs() > x.abs())
        cut = torch.where(upright, torch.stack([z, y, x]), torch.stack([y, z, x]))
        board = (cut[2] / 0.07).round()
        color = materials.wood(
            noise, cut + torch.stack([board * 1.3, board * 0.031, board * 0.017]), "6b3f1d", "d19a5b", 0.014
        )
        gap = ((cut[2] / 0.07 - 0.5).remainder(1.0) - 0.5).abs()
        return color * (0.35 + 0.65 * smoothstep(0.485, 0.45, 0.5 - gap))

    return Solid(distance, (half, half, half), (-0.30, -0.31, half), albedo, yaw_rad=math.radians(28))


def _books(noise: Noise) -> list[Solid]:
    def bound(half: tuple[float, float, float], z: float, yaw_deg: float, cover: str, ink: str) -> Solid:
        def distance(points: Points) -> Tensor:
            x, y, z = points
            block = rounded_box(points, (half[0] - 0.006, half[1] - 0.006, half[2] - 0.002), 0.001)
            boards = rounded_box(torch.stack([x, y, z.abs() - (half[2] - 0.002)]), (half[0], half[1], 0.002), 0.0015)
            spine = rounded_box(torch.stack([x + half[0] - 0.003, y, z]), (0.003, half[1], half[2]), 0.0015)
            return torch.minimum(torch.minimum(block, boards), spine)

        return Solid(
            distance,
            half,
            (0.40, 0.27, z + half[2]),
            lambda p: materials.book(noise, p, half, cover, ink),
            yaw_rad=math.radians(yaw_deg),
        )

    return [
        bound((0.150, 0.110, 0.024), 0.0, 20, "7b2230", "d9b65c"),
        bound((0.130, 0.095, 0.020), 0.048, -8, "1f3b57", "c9cbb8"),
    ]


def _small(noise: Noise) -> list[Solid]:
    def full_cup(points: Points) -> Tensor:
        handle = torus(torch.stack([points[0] - 0.052, points[2], points[1]]), 0.027, 0.0075)
        return torch.minimum(cylinder(points, 0.048, 0.05, 0.004), handle)

    def cup(points: Points) -> Tensor:
        hollow = cylinder(points - points.new_tensor([0, 0, 0.05])[:, None], 0.042, 0.09, 0.012)
        return smooth_difference(full_cup(points), hollow, 0.003)

    return [
        Solid(
            lambda p: sphere(p, 0.085),
            (0.085, 0.085, 0.085),
            (0.38, 0.26, 0.088 + 0.085),
            lambda p: materials.malachite(noise, p),
            gloss=0.25,
        ),
        Solid(
            lambda p: torus(p, 0.105, 0.034),
            (0.14, 0.14, 0.035),
            (0.34, -0.30, 0.034),
            lambda p: materials.rope(noise, p, 0.105),
        ),
        Solid(
            cup,
            (0.088, 0.05, 0.052),
            (0.02, -0.47, 0.05),
            lambda p: materials.porcelain(noise, p),
            yaw_rad=math.radians(-50),
            hull=full_cup,
        ),
    ]
