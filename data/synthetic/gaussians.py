"""Small Gaussian scenes and cameras around them, for tests and benchmarks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from spatial.geometry.camera_path import look_at
from spatial.structures import Camera, Gaussians

SH_C0 = 0.28209479177387814  # the constant spherical harmonic, 1 / (2 sqrt(pi))


def random_gaussians(
    num: int,
    *,
    extent: float,
    generator: torch.Generator,
    sh_degree: int = 1,
    relative_scale: float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> Gaussians:
    """A cloud of stretched, half-transparent Gaussians of all colours in a cube about the origin.

    Args:
        extent: half the cube's edge.
        sh_degree: of the view-dependent colours.
        relative_scale: median standard deviation in units of the mean spacing between neighbours.
    """
    draw: dict[str, Any] = {"generator": generator, "dtype": dtype}
    means = (torch.rand(num, 3, **draw) * 2 - 1) * extent
    spacing = 2 * extent / max(num, 1) ** (1 / 3)
    log_scales = math.log(0.35 * relative_scale * spacing) + 0.5 * torch.randn(num, 3, **draw)
    sh = 0.12 * torch.randn(num, (sh_degree + 1) ** 2, 3, **draw)
    sh[:, 0] = (torch.rand(num, 3, **draw) - 0.5) / SH_C0
    return Gaussians(means, torch.randn(num, 4, **draw), log_scales, 1.5 * torch.randn(num, **draw), sh)


def sphere_gaussians(num: int, *, radius: float, dtype: torch.dtype = torch.float32) -> Gaussians:
    """An opaque sphere about the origin, tiled by flat Gaussians, coloured by their normals: its depth is known.

    The points are a Fibonacci lattice (evenly spread); the Gaussians' third axis is the normal.
    """
    index = torch.arange(num, dtype=torch.float64)
    z = 1 - (2 * index + 1) / num
    azimuth = index * math.pi * (3 - math.sqrt(5))
    ring = (1 - z * z).sqrt()
    normals = torch.stack([ring * azimuth.cos(), ring * azimuth.sin(), z], 1)
    spacing = radius * math.sqrt(4 * math.pi / num)
    scales = torch.tensor([0.6 * spacing, 0.6 * spacing, 0.02 * spacing]).log()
    sh = (normals * 0.5 / SH_C0)[:, None, :]
    return Gaussians(
        (radius * normals).to(dtype),
        _quats_from_z(normals).to(dtype),
        scales.to(dtype).expand(num, 3).contiguous(),
        torch.full((num,), 6.0, dtype=dtype),
        sh.to(dtype),
    )


def orbit_cameras(
    num: int,
    *,
    radius: float,
    altitude: float,
    width: int,
    height: int,
    target: Sequence[float] = (0.0, 0.0, 0.0),
    fov_deg: float = 60.0,
) -> list[Camera]:
    """Cameras evenly around the world's z axis, looking at ``target``; the first stands on its +x side.

    Args:
        radius: horizontal distance from the target.
        altitude: height above the target, along z.
        width, height: image size in pixels.
        fov_deg: horizontal field of view.
    """
    focal = width / 2 / math.tan(math.radians(fov_deg) / 2)
    K = torch.tensor([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]], dtype=torch.float64)
    up, center = np.array([0.0, 0.0, 1.0]), np.asarray(target, np.float64)
    cameras = []
    for azimuth in 2 * math.pi * np.arange(num) / num:
        offset = np.array([radius * math.cos(azimuth), radius * math.sin(azimuth), altitude])
        cameras.append(look_at(center + offset, center, up, K=K, width=width, height=height))
    return cameras


def _quats_from_z(normals: Float[Tensor, "N 3"]) -> Float[Tensor, "N 4"]:
    """Rotations, wxyz, that turn +z into the unit normals: (1 + n_z, z × n), the half-angle formula."""
    quats = torch.stack([1 + normals[:, 2], -normals[:, 1], normals[:, 0], torch.zeros_like(normals[:, 2])], 1)
    # Straight down the formula degenerates: half a turn about x.
    quats[normals[:, 2] < -1 + 1e-9] = quats.new_tensor([0.0, 1.0, 0.0, 0.0])
    return torch.nn.functional.normalize(quats, dim=1)
