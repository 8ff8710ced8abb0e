"""Quaternions wxyz."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def rotation_matrices(quats: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch 3 3"]:
    """Rotations of quaternions of any length; zero length stands for no rotation."""
    length = quats.norm(dim=-1, keepdim=True)
    unit = torch.where(length <= 1e-15, torch.zeros_like(quats), quats / length.clamp_min(1e-15))
    w, x, y, z = unit.unbind(-1)
    rows = [
        1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
        2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
        2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
    ]  # fmt: skip
    return torch.stack(rows, dim=-1).reshape(*quats.shape[:-1], 3, 3)
