"""What the things of the synthetic scene are made of: albedos over own-frame points [3, N] -> linear RGB [3, N].

Every material mixes features from decimetres down to millimetres, since photos are matched at many scales, and keeps
its albedo within about 0.03 and 0.85, as real paints do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from data.synthetic.shapes import length
from data.synthetic.textures import Noise, mix, rgb, smoothstep

Points = Float[Tensor, "3 N"]
Colors = Float[Tensor, "3 N"]


def terrazzo(noise: Noise, points: Points, cement: str, chips: Sequence[str]) -> Colors:
    """Stone chips of two sizes in cement."""
    palette = torch.cat([rgb(c) for c in chips], 1)
    color = rgb(cement) * (1 + 0.10 * noise.cloud(points, 0.35))
    for period, kept in ((0.09, 0.45), (0.26, 0.62)):
        border, number = noise.chips(points, period)
        chip = palette[:, (number / kept * palette.shape[1]).long().clamp_max(palette.shape[1] - 1)]
        color = mix(color, chip, smoothstep(0.05, 0.16, border) * (number < kept))
    return _speckled(noise, points, color, 0.13)


def wood(noise: Noise, points: Points, dark: str, light: str, ring_size: float = 0.02) -> Colors:
    """Growth rings about an axis along x, wavering, with fine fibres."""
    x, y, z = points
    stretched = torch.stack([x * 0.15, y, z])
    slow, fibre = noise.clouds(stretched, 0.30)
    radius = length(y + 0.11, z + 0.07) + 0.016 * slow
    ring = (radius / ring_size).remainder(1.0)
    late = smoothstep(0.0, 0.85, ring) * smoothstep(1.0, 0.88, ring)
    fine = noise.cloud(stretched, 0.06)
    return mix(rgb(light), rgb(dark), (0.15 + 0.6 * late + 0.10 * fibre).clamp(0, 1)) * (1 + 0.14 * fine).clamp_min(0.4)


def planks(noise: Noise, points: Points, dark: str, light: str) -> Colors:
    """Floor boards along x, each cut from its own tree."""
    x, y, z = points
    across = y / 0.16
    row = across.floor()
    along = x / 1.2 + _hashed(row)
    board = _hashed(row * 7.31 + along.floor() * 3.17)
    cut = torch.stack([x + 5 * board, (across - row - 0.5) * 0.16 + 0.12 * board, z + 3 * board])
    color = wood(noise, cut, dark, light, 0.03) * (0.75 + 0.45 * board)
    gap = torch.minimum(_edge(across) * 0.16, _edge(along) * 1.2)
    return color * (0.2 + 0.8 * smoothstep(0.001, 0.006, gap))


def rug(noise: Noise, points: Points, radius: float) -> tuple[Colors, Float[Tensor, "N"]]:
    """A round woven rug about the z axis: colours, and its coverage in [0, 1]."""
    x, y, _ = points
    wave, yarn = noise.clouds(points, 0.5)
    rho = length(x, y) + 0.006 * wave
    angle = torch.atan2(y, x)
    petals = (rho * 14 + 0.45 * torch.sin(angle * 24) * smoothstep(0.3, 0.8, rho)).remainder(1.0)
    ring = (rho * 7).floor()
    ground = torch.where(ring.remainder(2.0) > 0.5, rgb("7a2d2a"), rgb("27405e"))
    color = mix(ground, rgb("d8c39a"), smoothstep(0.30, 0.38, petals) * smoothstep(0.62, 0.54, petals))
    diamonds = (torch.sin(angle * 36) * torch.sin(rho * 88)).abs()
    color = mix(color, rgb("c98d3f"), smoothstep(0.72, 0.8, diamonds) * (ring.remainder(3.0) < 0.5))
    color = color * (1 + 0.16 * yarn + 0.20 * noise.cloud(points, 0.09)).clamp_min(0.3)
    return color, smoothstep(radius, radius - 0.006, rho)


def wall(noise: Noise, points: Points, floor_z: float) -> Colors:
    """Plaster above, painted boards below a rail, and a painting on each of the four walls."""
    x, y, z = points
    facing_x = x.abs() > y.abs()
    along = torch.where(facing_x, y, -x) * torch.where(torch.where(facing_x, x, y) > 0, 1.0, -1.0)
    side = torch.where(facing_x, torch.where(x > 0, 0, 1), torch.where(y > 0, 2, 3))
    height = z - floor_z
    color = torch.empty_like(points)
    is_low, is_rail = height < 0.87, (height >= 0.87) & (height < 0.94)
    color[:, is_low] = _boards(noise, points[:, is_low], along[is_low])
    color[:, is_rail] = wood(noise, torch.stack([along, height - 0.6, 0.1 * x])[:, is_rail], "4a2d18", "8a5a33")
    is_high = ~is_low & ~is_rail
    color[:, is_high] = _plaster(noise, points[:, is_high], side[is_high])
    u, v = along - 0.35 * torch.sin(side * 2.1), height - 1.45
    inside = torch.minimum(0.62 - u.abs(), 0.40 - v.abs())
    is_hung = inside > 0
    canvas = torch.stack([u, v, side * 0.713])[:, is_hung]
    color[:, is_hung] = _painting(noise, canvas, side[is_hung], inside[is_hung])
    return color


def _plaster(noise: Noise, points: Points, side: Tensor) -> Colors:
    """Limewash of another tint on each wall, with stains."""
    slow, other = noise.clouds(points, 1.9)
    fine, grit = noise.clouds(points, 0.34)
    tint = torch.cat([rgb(c) for c in ("a8b39a", "c7a58b", "9fb0bd", "c9b98c")], 1)[:, side]
    color = tint * (1 + 0.13 * slow + 0.12 * fine).clamp_min(0.4)
    return mix(color, rgb("6f5b48"), 0.45 * smoothstep(1.3, 2.0, other + 0.6 * grit))


def _boards(noise: Noise, points: Points, along: Tensor) -> Colors:
    """Upright painted boards, the paint worn off in places."""
    slow, other = noise.clouds(points, 1.9)
    fine, grit = noise.clouds(points, 0.34)
    color = mix(rgb("54636a"), rgb("37454c"), (0.5 + 0.4 * other).clamp(0, 1)) * (1 + 0.13 * grit).clamp_min(0.4)
    color = mix(color, rgb("b9a88a"), smoothstep(1.25, 1.6, 0.7 * fine + 0.7 * slow))
    return color * (0.35 + 0.65 * smoothstep(0.004, 0.016, _edge(along / 0.22 + 0.02 * slow) * 0.22))


def _painting(noise: Noise, canvas: Points, side: Tensor, inside: Tensor) -> Colors:
    """A landscape in layers of haze, in a dark frame; ``inside`` is the distance to the frame's outer edge."""
    flow, detail = noise.clouds(canvas, 1.3)
    level = canvas[1] * 3.2 + 0.55 * flow + 0.25 * detail
    layers = torch.cat([rgb(c) for c in ("2b3a2e", "5d6b3f", "b08a4a", "c9b48a", "8fa3ad", "d8d2c2")], 1)
    layer = ((level + 1.5) * 2 + 0.8 * side).remainder(6.0)
    paint = mix(
        layers[:, layer.long() % 6], layers[:, (layer.long() + 1) % 6], smoothstep(0.6, 1.0, layer.remainder(1.0))
    )
    paint = paint * (1 + 0.20 * noise.cloud(canvas, 0.2)).clamp_min(0.3)
    frame = rgb("3a2616") * (1 + 0.25 * noise.cloud(canvas, 0.1)).clamp_min(0.3)
    return mix(frame, paint, smoothstep(0.052, 0.058, inside))


def glaze(noise: Noise, points: Points, base: str, speck: str, band: str) -> Colors:
    """Glazed pottery: clouded ground, specks of two sizes, and a painted band about the middle."""
    x, y, z = points
    slow, fine = noise.clouds(points, 0.22)
    color = rgb(base) * (1 + 0.22 * slow).clamp_min(0.3)
    border, number = noise.chips(points, 0.10)
    color = mix(color, rgb(speck), smoothstep(0.12, 0.2, border) * (number > 0.72))
    angle = torch.atan2(y, x)
    curve = z + 0.012 * torch.sin(angle * 9)
    inside = smoothstep(0.030, 0.027, (curve - 0.01).abs())
    leaf = torch.sin(angle * 18) * torch.sin(curve * 190 + angle * 4)
    painted = mix(rgb(band), rgb(speck), smoothstep(0.15, 0.3, leaf))
    color = mix(color, painted * (1 + 0.12 * fine), inside)
    return _speckled(noise, points, color, 0.10)


def earthenware(noise: Noise, points: Points) -> Colors:
    """Terracotta with dark and cream bands: key pattern, waves and dots."""
    x, y, z = points
    slow, fine = noise.clouds(points, 0.20)
    angle = torch.atan2(y, x) / (2 * math.pi)
    clay = rgb("b5603a") * (1 + 0.16 * slow).clamp_min(0.3)
    zone = ((z + 0.2) / 0.05).floor()
    within = (z + 0.2) / 0.05 - zone
    waves = smoothstep(0.05, 0.11, (within - 0.5 - 0.28 * torch.sin(angle * 2 * math.pi * 12 + zone)).abs())
    steps = ((angle * 20 + 0.5 * zone).remainder(1.0) < 0.5) ^ (within > 0.5)
    dots = length((angle * 16).remainder(1.0) - 0.5, within - 0.5)
    kind = zone.remainder(3.0)
    ink = torch.where(kind < 0.5, 1 - waves, torch.where(kind < 1.5, steps.to(z.dtype), smoothstep(0.3, 0.24, dots)))
    color = mix(clay, torch.where(kind > 1.5, rgb("ead9b5"), rgb("241a17")), ink)
    color = mix(color, rgb("241a17"), smoothstep(0.07, 0.03, torch.minimum(within, 1 - within)))
    return _speckled(noise, points, color * (1 + 0.10 * fine), 0.12)


def malachite(noise: Noise, points: Points) -> Colors:
    """Green stone in concentric, folded bands."""
    fold = noise.cloud(points, 0.34)
    band = 0.5 + 0.5 * torch.sin(9 * fold + 38 * points[2] + 14 * points[0])
    thin = 0.5 + 0.5 * torch.sin(31 * fold + 90 * points[1])
    color = mix(rgb("0c3d31"), rgb("5fc39a"), (0.75 * band + 0.35 * thin * band).clamp(0, 1))
    return _speckled(noise, points, color, 0.10)


def rope(noise: Noise, points: Points, major: float) -> Colors:
    """Strands wound about a ring that lies flat, radius ``major``."""
    x, y, z = points
    around = torch.atan2(y, x) / (2 * math.pi)
    about = torch.atan2(z, length(x, y) - major) / (2 * math.pi)
    phase = around * 26 + about * 2
    strand = phase.remainder(1.0)
    shade = smoothstep(0.0, 0.28, strand) * smoothstep(1.0, 0.72, strand)
    tones = torch.where(phase.floor().remainder(3.0) < 0.5, rgb("b8452f"), rgb("dcc48f"))
    fibre = noise.cloud(torch.stack([around, about * 0.3 + around * 2, z]), 0.05)
    return _speckled(noise, points, tones * (0.3 + 0.7 * shade) * (1 + 0.12 * fibre).clamp_min(0.3), 0.14)


def book(noise: Noise, points: Points, half_size: Sequence[float], cover: str, ink: str) -> Colors:
    """Printed cloth outside, cut pages where the block shows."""
    x, y, z = points
    slow, fine = noise.clouds(points, 0.25)
    cloth = rgb(cover) * (1 + 0.16 * slow + 0.10 * fine).clamp_min(0.3)
    rim = torch.maximum(x.abs() / half_size[0], y.abs() / half_size[1])
    cloth = mix(cloth, rgb(ink), smoothstep(0.80, 0.82, rim) * smoothstep(0.88, 0.86, rim))
    border, number = noise.chips(points, 0.2)
    print_area = smoothstep(0.70, 0.68, rim) * (number > 0.45)
    cloth = mix(cloth, rgb(ink), print_area * smoothstep(0.06, 0.1, border) * smoothstep(0.30, 0.26, border))
    sheet = noise.cloud(torch.stack([0.05 * x, 0.05 * y, z]), 0.03)
    pages = rgb("e4d8bb") * (1 + 0.22 * sheet + 0.07 * fine).clamp_min(0.3)
    is_cloth = (z.abs() > half_size[2] - 0.0045) | (x < -half_size[0] * 0.93)
    return _speckled(noise, points, torch.where(is_cloth, cloth, pages), 0.12)


def porcelain(noise: Noise, points: Points) -> Colors:
    """White with cobalt painting that runs."""
    flow, fine = noise.clouds(points, 0.19)
    veins = smoothstep(0.16, 0.05, (flow + 0.25 * fine).abs()) + smoothstep(1.0, 1.3, flow)
    color = mix(rgb("e6e4dc"), rgb("1e3f86"), veins.clamp(0, 1))
    rings = smoothstep(0.0032, 0.0022, (points[2].abs() - 0.043).abs())
    return _speckled(noise, points, mix(color, rgb("1b2f66"), rings), 0.07)


def _speckled(noise: Noise, points: Points, color: Colors, strength: float) -> Colors:
    """Millimetre-sized mottling, which even the plainest surface shows close by."""
    return color * (1 + strength * noise.cloud(points, 0.085)).clamp_min(0.3)


def _edge(x: Tensor) -> Tensor:
    """Distance to the nearest whole number."""
    return (x - x.round()).abs()


def _hashed(x: Tensor) -> Tensor:
    """A number in [0, 1) for each whole (or distinct) number."""
    return (torch.sin(x * 12.9898 + 4.1) * 437.585).remainder(1.0)
