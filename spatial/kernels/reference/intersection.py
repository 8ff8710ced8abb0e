"""Tile lists from bounding boxes: a superset of the exact lists, which blends to the same image."""

from __future__ import annotations

import torch
from torch import Tensor

TILE_SIZE = 16


def intersect_tiles(
    means2d: Tensor, conics: Tensor, opacities: Tensor, depths: Tensor, radii: Tensor, width: int, height: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Twin of ``spatial.kernels.intersection.intersect_tiles``."""
    C, N = depths.shape
    columns, rows = -(-width // TILE_SIZE), -(-height // TILE_SIZE)
    limits = torch.tensor([columns, rows], device=radii.device)
    visible = (radii > 0).any(-1, keepdim=True)
    first = ((means2d - radii) / TILE_SIZE).floor().long().clamp_min(0).minimum(limits)
    last = (((means2d + radii) / TILE_SIZE).floor().long() + 1).clamp_min(0).minimum(limits)
    extent = torch.where(visible, (last - first).clamp_min(0), torch.zeros_like(last)).reshape(-1, 2)
    counts = extent.prod(-1)
    gaussian_offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])

    ids = torch.arange(C * N, device=radii.device).repeat_interleave(counts)
    within = torch.arange(len(ids), device=radii.device) - gaussian_offsets[ids]
    row, column = within // extent[ids, 0], within % extent[ids, 0]
    corner = first.reshape(-1, 2)[ids]
    tile = (ids // max(N, 1) * rows + corner[:, 1] + row) * columns + corner[:, 0] + column
    by_depth = depths.reshape(-1)[ids].sort(stable=True).indices
    order = by_depth[tile[by_depth].sort(stable=True).indices]
    per_tile = torch.bincount(tile, minlength=C * rows * columns)
    tile_offsets = torch.cat([per_tile.new_zeros(1), per_tile.cumsum(0)])
    return ids[order].int(), tile_offsets.int(), order.argsort().int(), gaussian_offsets.int()
