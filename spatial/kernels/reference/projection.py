"""EWA projection by autograd's own means; see ``spatial.kernels.projection`` for arguments and conventions."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from spatial.geometry.quaternions import rotation_matrices

MIN_ALPHA = 1 / 255
SIGMAS = 3.33  # 3.33² ≈ 2 ln 255: no visible pixel lies beyond


def project_gaussians(means, quats, scales, opacities, viewmats, Ks, width, height, **options) -> tuple[Tensor, ...]:
    """Twin of ``spatial.kernels.projection.project_gaussians``."""
    defaults = dict(eps2d=0.3, near_plane=0.01, far_plane=1e10, radius_clip=0.0, antialiased=False)
    values = {**defaults, **options}
    return project_gaussians_flat(means, quats, scales, opacities, viewmats, Ks, width, height, *values.values())


def project_gaussians_flat(
    means, quats, scales, opacities, viewmats, Ks, width, height, eps2d, near_plane, far_plane, radius_clip, antialiased
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    points = torch.einsum("cij,nj->cni", viewmats[:, :3, :3], means) + viewmats[:, None, :3, 3]  # [C, N, 3]
    depths = points[..., 2]
    in_range = (depths > near_plane) & (depths < far_plane)
    points = torch.where(in_range[..., None], points, points.new_tensor([0.0, 0.0, 1.0]))  # keeps gradients finite
    x, y, z = points.unbind(-1)
    fx, fy, cx, cy = (Ks[:, None, i, j] for i, j in ((0, 0), (1, 1), (0, 2), (1, 2)))
    means2d = torch.stack([fx * x / z + cx, fy * y / z + cy], dim=-1)

    jacobian = _jacobian(x, y, z, fx, fy, cx, cy, width, height)
    half = jacobian @ viewmats[:, None, :3, :3] @ (rotation_matrices(quats) * scales[:, None, :])  # [C, N, 2, 3]
    covariance = half @ half.mT
    xx, xy, yy = covariance[..., 0, 0], covariance[..., 0, 1], covariance[..., 1, 1]
    blurred_xx, blurred_yy = xx + eps2d, yy + eps2d
    determinant = blurred_xx * blurred_yy - xy**2
    conics = torch.stack([blurred_yy, -xy, blurred_xx], dim=-1) / determinant[..., None]
    ratio = (xx * yy - xy**2) / determinant
    compensations = torch.where(ratio > 1e-12, ratio.clamp_min(1e-12).sqrt(), ratio.clamp_min(0).detach().sqrt())

    with torch.no_grad():
        effective = opacities * compensations if antialiased else opacities.expand_as(depths)
        sigmas = (2 * (effective * 255).clamp_min(1).log()).sqrt().clamp_max(SIGMAS)
        radii = (sigmas[..., None] * torch.stack([blurred_xx, blurred_yy], -1).clamp_min(0).sqrt()).ceil()
        size = radii.new_tensor([width, height])
        inside = ((means2d + radii > 0) & (means2d - radii < size)).all(-1)
        real = (determinant > 0) & determinant.isfinite()
        visible = in_range & real & (effective >= MIN_ALPHA) & inside & (radii > radius_clip).any(-1)
        radii = torch.where(visible[..., None], radii, 0).clamp_max(1 << 24).to(torch.int32)

    def kept(values: Tensor) -> Tensor:
        return torch.where(visible.reshape(visible.shape + (1,) * (values.dim() - 2)), values, torch.zeros_like(values))

    return radii, kept(means2d), kept(depths), kept(conics), kept(compensations)


def covariances(quats: Tensor, scales: Tensor) -> Tensor:
    """[N, 3, 3] world covariances R diag(s²) Rᵀ."""
    half = rotation_matrices(F.normalize(quats, dim=-1)) * scales[..., None, :]
    return half @ half.mT


def _jacobian(x, y, z, fx, fy, cx, cy, width, height) -> Tensor:
    """[C, N, 2, 3] of the pinhole projection, with x/z and y/z clamped 30 % of the half field beyond each border."""

    def clamp(ratio: Tensor, size: int, focal: Tensor, centre: Tensor) -> Tensor:
        margin = 0.15 * size / focal
        return ratio.clamp(-(centre / focal + margin), (size - centre) / focal + margin)

    tx, ty = z * clamp(x / z, width, fx, cx), z * clamp(y / z, height, fy, cy)
    zero = torch.zeros_like(z)
    rows = [fx / z + zero, zero, -fx * tx / z**2, zero, fy / z + zero, -fy * ty / z**2]
    return torch.stack(rows, dim=-1).reshape(*z.shape, 2, 3)


assert math.isclose(SIGMAS**2, 2 * math.log(255), rel_tol=1e-3)
