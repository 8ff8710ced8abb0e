"""Gaussians moved to another frame: means, sizes, orientations and spherical harmonics together.

A rotation turns the colours that depend on direction, too: ``f_new(d) = f_old(R⁻¹ d)``. Within a degree that is a
linear map of its 2l + 1 coefficients (a real Wigner matrix), found here by least squares on sampled directions in
float64, which is exact because rotated harmonics of a degree are combinations of that degree's harmonics.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from scipy.spatial.transform import Rotation
from torch import Tensor

from spatial.structures import Gaussians

_HALF_TURN_ABOUT_X = torch.diag(torch.tensor([1.0, -1.0, -1.0], dtype=torch.float64))


def real_sh_basis(directions: Float[Tensor, "*batch 3"], degree: int) -> Float[Tensor, "*batch K"]:
    """Real spherical harmonics of degrees 0 … ``degree`` at unit directions, K = (degree + 1)².

    Order and signs are those of 3D Gaussian Splatting (m from −l to l, Condon–Shortley phase): degree 1 is
    −0.4886 y, 0.4886 z, −0.4886 x. The associated Legendre functions lack their factor sin^m θ, which is in (x + iy)^m.
    """
    x, y, z = directions.unbind(-1)
    legendre: dict[tuple[int, int], Tensor] = {}
    for m in range(degree + 1):
        legendre[m, m] = torch.full_like(z, (-1) ** m * math.prod(range(1, 2 * m, 2)))
        for l in range(m + 1, degree + 1):  # noqa: E741
            below = legendre.get((l - 2, m), torch.zeros_like(z))
            legendre[l, m] = ((2 * l - 1) * z * legendre[l - 1, m] - (l + m - 1) * below) / (l - m)
    powers = [torch.complex(torch.ones_like(x), torch.zeros_like(x))]
    for _ in range(degree):
        powers.append(powers[-1] * torch.complex(x, y))
    basis = []
    for l in range(degree + 1):  # noqa: E741
        for m in range(-l, l + 1):
            norm = math.sqrt((2 * l + 1) / (4 * math.pi) * math.factorial(l - abs(m)) / math.factorial(l + abs(m)))
            azimuth = powers[abs(m)].imag if m < 0 else powers[m].real
            basis.append((norm if m == 0 else math.sqrt(2) * norm) * legendre[l, abs(m)] * azimuth)
    return torch.stack(basis, dim=-1)


def sh_rotation_matrix(rotation: Float[Tensor, "3 3"], degree: int) -> Float[Tensor, "K K"]:
    """W with ``coefficients_new = W @ coefficients_old`` for ``f_new(d) = f_old(rotation⁻¹ d)``; float64."""
    directions = _sphere_samples(8 * (degree + 1) ** 2)
    rotation = rotation.to("cpu", torch.float64)
    here = real_sh_basis(directions, degree)
    there = real_sh_basis(directions @ rotation, degree)  # rows dᵀR = (R⁻¹d)ᵀ
    blocks = []
    for l in range(degree + 1):  # noqa: E741
        band = slice(l * l, (l + 1) ** 2)
        blocks.append(torch.linalg.lstsq(here[:, band], there[:, band]).solution)
    return torch.block_diag(*blocks)


def rotate_sh(sh: Float[Tensor, "*batch K C"], rotation: Float[Tensor, "3 3"]) -> Float[Tensor, "*batch K C"]:
    """Coefficients after the scene is turned by ``rotation`` (new-from-old), degrees 0 to 4 and beyond."""
    degree = math.isqrt(sh.shape[-2]) - 1
    if (degree + 1) ** 2 != sh.shape[-2]:
        raise ValueError(f"sh must have (degree + 1)² coefficients on its second last axis, got {tuple(sh.shape)}")
    matrix = sh_rotation_matrix(rotation, degree).to(sh.device, sh.dtype)
    return torch.einsum("kj,...jc->...kc", matrix, sh)


def transform_gaussians(gaussians: Gaussians, new_from_old: Float[Tensor, "4 4"]) -> Gaussians:
    """The same Gaussians in another world frame.

    Args:
        gaussians: in the old frame.
        new_from_old: similarity (rotation, translation, one positive scale), [4, 4], column vectors.

    Raises:
        ValueError: the matrix mirrors, shears or scales its axes differently: colours have no such transform.
    """
    scale, rotation, translation = split_similarity(new_from_old)
    x, y, z, w = Rotation.from_matrix(rotation.numpy()).as_quat()
    turn = torch.tensor([w, x, y, z], dtype=torch.float64)
    means, quats = gaussians.means, gaussians.quats
    moved = scale * means.double() @ rotation.to(means.device).T + translation.to(means.device)
    return replace(
        gaussians,
        means=moved.to(means.dtype),
        quats=_quat_product(turn.to(quats.device), quats.double()).to(quats.dtype),
        log_scales=gaussians.log_scales + math.log(scale),
        sh=rotate_sh(gaussians.sh.double(), rotation).to(gaussians.sh.dtype),
    )


def half_turn_about_x(gaussians: Gaussians) -> Gaussians:
    """Between worlds that read x right, y down, z forward and x right, y up, z back. Exact, and its own inverse.

    The principal axes are turned with the world and relabelled by the same turn (conjugation), which leaves every
    covariance right and only flips signs in the quaternions.
    """
    matrix = sh_rotation_matrix(_HALF_TURN_ABOUT_X, gaussians.sh_degree)
    signs = torch.diagonal(matrix).round().to(gaussians.sh)
    flip = gaussians.means.new_tensor([1.0, -1.0, -1.0])
    flip_quats = gaussians.quats.new_tensor([1.0, 1.0, -1.0, -1.0])
    return replace(
        gaussians,
        means=gaussians.means * flip,
        quats=gaussians.quats * flip_quats,
        sh=gaussians.sh * signs[:, None],
    )


def split_similarity(
    new_from_old: Float[Tensor, "4 4"],
) -> tuple[float, Float[Tensor, "3 3"], Float[Tensor, "3"]]:
    """Scale, rotation and translation (float64) of a similarity; ValueError if it is none."""
    matrix = new_from_old.detach().to("cpu", torch.float64)
    linear = matrix[:3, :3]
    scale = float(np.cbrt(torch.linalg.det(linear).item()))
    rotation = linear / scale if scale > 0 else linear
    if scale <= 0 or not torch.allclose(rotation @ rotation.T, torch.eye(3, dtype=torch.float64), atol=1e-4):
        raise ValueError(
            f"new_from_old must be a rotation, a translation and one positive scale; its upper 3x3 is {linear.tolist()}"
        )
    return scale, rotation, matrix[:3, 3]


def _quat_product(left: Float[Tensor, "4"], right: Float[Tensor, "N 4"]) -> Float[Tensor, "N 4"]:
    w, x, y, z = left
    matrix = torch.stack(
        [
            torch.stack([w, -x, -y, -z]),
            torch.stack([x, w, -z, y]),
            torch.stack([y, z, w, -x]),
            torch.stack([z, -y, x, w]),
        ]
    )
    return right @ matrix.T


def _sphere_samples(count: int) -> Float[Tensor, "M 3"]:
    """Evenly spread unit vectors (Fibonacci lattice), float64."""
    index = torch.arange(count, dtype=torch.float64) + 0.5
    z = 1 - 2 * index / count
    azimuth = math.pi * (1 + math.sqrt(5)) * index
    radius = (1 - z * z).sqrt()
    return torch.stack([radius * azimuth.cos(), radius * azimuth.sin(), z], dim=-1)
