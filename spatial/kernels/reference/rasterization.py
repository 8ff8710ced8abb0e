"""Alpha blending of whole tiles at once; see ``spatial.kernels.rasterization`` for arguments and conventions."""

from __future__ import annotations

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
) -> tuple[Tensor, Tensor]:
    """Twin of ``spatial.kernels.rasterization.rasterize_gaussians``: colours [C, H, W, D], alphas [C, H, W, 1]."""
    C, N, D = colors.shape
    columns, rows = -(-width // TILE_SIZE), -(-height // TILE_SIZE)
    flatten_ids, tile_offsets = tiles[0].long(), tiles[1].tolist()
    flat = [t.reshape(C * N, -1) for t in (means2d, conics, colors, opacities)]
    images = []
    for tile in range(C * rows * columns):
        ids = flatten_ids[tile_offsets[tile] : tile_offsets[tile + 1]]
        corner = means2d.new_tensor([tile % columns, tile // columns % rows]) * TILE_SIZE
        listed = [t[ids] for t in flat]
        images.append(_blend(_pixel_centres(corner), *listed, max_alpha=max_alpha))
    stacked = torch.stack(images).reshape(C, rows, columns, TILE_SIZE, TILE_SIZE, D + 1)
    image = stacked.permute(0, 1, 3, 2, 4, 5).reshape(C, rows * TILE_SIZE, columns * TILE_SIZE, D + 1)
    image = image[:, :height, :width]
    blended, alphas = image[..., :D], image[..., D:]
    if backgrounds is not None:
        blended = blended + (1 - alphas) * backgrounds[:, None, None, :]
    return blended, alphas


def _pixel_centres(corner: Tensor) -> Tensor:
    steps = torch.arange(TILE_SIZE, dtype=corner.dtype, device=corner.device) + 0.5
    grid = torch.stack(torch.meshgrid(steps, steps, indexing="xy"), dim=-1).reshape(-1, 2)
    return grid + corner


def _blend(
    pixels: Tensor, means: Tensor, conics: Tensor, colors: Tensor, opacities: Tensor, *, max_alpha: float
) -> Tensor:
    """[P, D + 1]: colour and accumulated alpha of P pixels under the listed Gaussians, nearest first."""
    dx, dy = (means[None] - pixels[:, None]).unbind(-1)  # [P, L]
    sigmas = 0.5 * (conics[:, 0] * dx**2 + conics[:, 2] * dy**2) + conics[:, 1] * dx * dy
    alphas = (opacities[:, 0] * torch.exp(-sigmas)).clamp_max(max_alpha)
    alphas = torch.where(alphas >= MIN_ALPHA, alphas, torch.zeros_like(alphas))
    after = torch.cumprod(1 - alphas, dim=1)
    before = torch.cat([torch.ones_like(after[:, :1]), after], dim=1)[:, :-1]
    weights = torch.where(after > MIN_TRANSMITTANCE, alphas * before, torch.zeros_like(alphas))
    return torch.cat([weights @ colors, weights.sum(1, keepdim=True)], dim=1)
