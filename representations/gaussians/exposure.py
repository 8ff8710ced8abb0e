"""A colour transform a photo, for captures whose exposure or white balance changes."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Exposure(nn.Module):
    """Affine maps of colour, [V, 3, 4], one a training photo, from the identity. Held-out photos are judged without."""

    def __init__(self, num_views: int, *, weight: float = 0.01):
        super().__init__()
        self.affine = nn.Parameter(torch.eye(3, 4).repeat(num_views, 1, 1))
        self.weight = weight

    def forward(self, image: Float[Tensor, "H W 3"], index: int) -> Float[Tensor, "H W 3"]:
        affine = self.affine[index]
        return image @ affine[:, :3].T + affine[:, 3]

    def regularisation(self) -> Float[Tensor, ""]:
        """Keeps the photos' mean transform at the identity, which is what held-out photos are rendered with."""
        return self.weight * (self.affine.mean(0) - torch.eye(3, 4)).square().sum()
