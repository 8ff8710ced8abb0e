"""The trainable scene: Gaussians as parameters of an ``nn.Module``, whose number may change."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from spatial.kernels.nearest import nearest_distances
from spatial.structures import Gaussians, PointCloud

SH_C0 = 0.28209479177387814


class GaussianModel(nn.Module):
    """Gaussians as parameters: means [N, 3], quats [N, 4] wxyz, log_scales [N, 3], logit_opacities [N], sh [N, K, 3]."""

    def __init__(self, gaussians: Gaussians):
        super().__init__()
        self.means = nn.Parameter(gaussians.means.clone())
        self.quats = nn.Parameter(gaussians.quats.clone())
        self.log_scales = nn.Parameter(gaussians.log_scales.clone())
        self.logit_opacities = nn.Parameter(gaussians.logit_opacities.clone())
        self.sh = nn.Parameter(gaussians.sh.clone())
        self.antialiased = gaussians.antialiased

    def __len__(self) -> int:
        return self.means.shape[0]

    def gaussians(self) -> Gaussians:
        """A view of the current values, without gradients."""
        return Gaussians(
            self.means.detach(), self.quats.detach(), self.log_scales.detach(), self.logit_opacities.detach(),
            self.sh.detach(), self.antialiased,
        )  # fmt: skip

    def resize(self, num: int) -> None:
        """Makes room for ``num`` Gaussians before their values are loaded from a checkpoint."""
        for parameter in self.parameters():
            parameter.data = parameter.data.new_zeros((num, *parameter.shape[1:]))


def gaussians_from_points(
    cloud: PointCloud, *, sh_degree: int, opacity: float = 0.1, scale_factor: float = 1.0, antialiased: bool = False
) -> Gaussians:
    """One round Gaussian a point, as wide as the mean distance to its three neighbours (Kerbl 2023, sec. 5.1).

    Coincident points and lone ones get a finite width: distances are kept between 1e-3 and 10 times their median.
    """
    points = cloud.points.float()
    distances = nearest_distances(points, 3)
    mean = torch.where(distances.isfinite(), distances, distances.new_zeros(())).sum(-1)
    mean = mean / distances.isfinite().sum(-1).clamp_min(1)
    positive = mean[mean > 0]
    typical = positive.median().item() if len(positive) else 1.0
    widths = mean.clamp(1e-3 * typical, 10 * typical) * scale_factor
    sh = torch.zeros(len(points), (sh_degree + 1) ** 2, 3)
    sh[:, 0] = (cloud.colors.float() - 0.5) / SH_C0
    quats = torch.zeros(len(points), 4)
    quats[:, 0] = 1
    logits = torch.full((len(points),), math.log(opacity / (1 - opacity)))
    return Gaussians(points, quats, widths.log()[:, None].repeat(1, 3), logits, sh, antialiased)


def random_points(cameras_seen: Tensor, focus: Tensor, num: int, *, generator: torch.Generator) -> PointCloud:
    """Points for a capture that has none: uniform in a ball around what the cameras look at, half as wide as the ring
    of cameras, since points near a camera explain its photo alone and no other.

    Args:
        cameras_seen: [C, 3] camera centres. focus: [3] the point that they look at.
    """
    radius = 0.5 * (cameras_seen - focus).norm(dim=-1).median()
    directions = torch.nn.functional.normalize(torch.randn(num, 3, generator=generator), dim=-1)
    distances = torch.rand(num, 1, generator=generator) ** (1 / 3) * radius
    points = focus.float() + directions * distances.float()
    return PointCloud(points, torch.rand(num, 3, generator=generator))
