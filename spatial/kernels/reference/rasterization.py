"""Alpha blending of whole tiles at once; see ``spatial.kernels.rasterization`` for arguments and conventions."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

TILE_SIZE = 16
MIN_ALPHA = 1 / 255
MIN_TRANSMITTANCE = 1e-4


def rasterize_gaussians(
    means2d: Tensor,
    conics: Tensor,
    colors: Tensor,
    opacities: Tensor,
    width: int,
    height: int,
    tiles: tuple[Tensor, Tensor, Tensor, Tensor],
    *,
    backgrounds: Tensor | None = None,
    max_alpha: float = 0.999,
    absgrad: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Twin of ``spatial.kernels.rasterization.rasterize_gaussians``: colours [C, H, W, D], alphas [C, H, W, 1].

    The backward pass adds Σ |gradient at a pixel| to ``absgrad`` [C, N, 2] where it is given.
    """
    C, N, D = colors.shape
    columns, rows = -(-width // TILE_SIZE), -(-height // TILE_SIZE)
    flatten_ids, tile_offsets = tiles[0].long(), tiles[1].tolist()
    flat = [t.reshape(C * N, -1) for t in (means2d, conics, colors, opacities)]
    sums = None if absgrad is None else absgrad.view(C * N, 2)
    images = []
    for tile in range(C * rows * columns):
        ids = flatten_ids[tile_offsets[tile] : tile_offsets[tile + 1]]
        corner = means2d.new_tensor([tile % columns, tile // columns % rows]) * TILE_SIZE
        listed = [t[ids] for t in flat]
        offsets = listed[0][None] - _pixel_centres(corner)[:, None]  # [P, L, 2]
        if sums is not None and offsets.requires_grad:
            offsets.register_hook(partial(_add_absolute, sums, ids))
        images.append(_blend(offsets, *listed[1:], max_alpha=max_alpha))
    stacked = torch.stack(images).reshape(C, rows, columns, TILE_SIZE, TILE_SIZE, D + 1)
    image = stacked.permute(0, 1, 3, 2, 4, 5).reshape(C, rows * TILE_SIZE, columns * TILE_SIZE, D + 1)
    image = image[:, :height, :width]
    blended, alphas = image[..., :D], image[..., D:]
    if backgrounds is not None:
        blended = blended + (1 - alphas) * backgrounds[:, None, None, :]
    return blended, alphas


def _add_absolute(sums: Tensor, ids: Tensor, gradient: Tensor) -> None:
    sums.index_add_(0, ids, gradient.detach().abs().sum(0))


def _pixel_centres(corner: Tensor) -> Tensor:
    steps = torch.arange(TILE_SIZE, dtype=corner.dtype, device=corner.device) + 0.5
    grid = torch.stack(torch.meshgrid(steps, steps, indexing="xy"), dim=-1).reshape(-1, 2)
    return grid + corner


def _blend(offsets: Tensor, conics: Tensor, colors: Tensor, opacities: Tensor, *, max_alpha: float) -> Tensor:
    """[P, D + 1]: colour and accumulated alpha of P pixels under L Gaussians, nearest first, at offsets [P, L, 2]."""
    dx, dy = offsets.unbind(-1)
    sigmas = 0.5 * (conics[:, 0] * dx**2 + conics[:, 2] * dy**2) + conics[:, 1] * dx * dy
    alphas = (opacities[:, 0] * torch.exp(-sigmas)).clamp_max(max_alpha)
    alphas = torch.where(alphas >= MIN_ALPHA, alphas, torch.zeros_like(alphas))
    after = torch.cumprod(1 - alphas, dim=1)
    before = torch.cat([torch.ones_like(after[:, :1]), after], dim=1)[:, :-1]
    weights = torch.where(after > MIN_TRANSMITTANCE, alphas * before, torch.zeros_like(alphas))
    return torch.cat([weights @ colors, weights.sum(1, keepdim=True)], dim=1)
