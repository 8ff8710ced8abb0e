"""Rendering of Gaussians: ``rasterization`` takes and returns what gsplat's does; ``render`` is for one camera and scene."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from spatial.kernels.intersection import TILE_SIZE, intersect_tiles
from spatial.kernels.projection import project_gaussians
from spatial.kernels.rasterization import rasterize_gaussians
from spatial.kernels.spherical_harmonics import spherical_harmonics
from spatial.structures import Camera, Gaussians, Render

RENDER_MODES = ("RGB", "D", "ED", "RGB+D", "RGB+ED")


def rasterization(
    means: Float[Tensor, "N 3"],
    quats: Float[Tensor, "N 4"],
    scales: Float[Tensor, "N 3"],
    opacities: Float[Tensor, "N"],
    colors: Float[Tensor, "..."],
    viewmats: Float[Tensor, "C 4 4"],
    Ks: Float[Tensor, "C 3 3"],
    width: int,
    height: int,
    near_plane: float = 0.01,
    far_plane: float = 1e10,
    radius_clip: float = 0.0,
    eps2d: float = 0.3,
    sh_degree: int | None = None,
    packed: bool = True,
    tile_size: int = TILE_SIZE,
    backgrounds: Float[Tensor, "C D"] | None = None,
    render_mode: str = "RGB",
    sparse_grad: bool = False,
    absgrad: bool = False,
    rasterize_mode: str = "classic",
    *,
    max_alpha: float = 0.999,
) -> tuple[Float[Tensor, "C H W X"], Float[Tensor, "C H W 1"], dict[str, Any]]:
    """Renders Gaussians into C pinhole images, differentiably, with gsplat's arguments.

    Args:
        quats: wxyz, of any length. scales: standard deviations. opacities: in [0, 1].
        colors: with ``sh_degree`` coefficients [N, K, 3]; without, values [N, D] or [C, N, D].
        viewmats: camera_from_world. Ks: pixels, centres at +0.5.
        packed, tile_size, sparse_grad: gsplat's memory layouts; images do not depend on them, so that only a wish for
            sparse gradients or other tiles draws a warning.
        render_mode: RGB, D (accumulated depth), ED (expected depth), RGB+D or RGB+ED; depth is the last channel.
        absgrad: the backward pass leaves Σ |gradient| in ``meta["means2d"].absgrad``.
        rasterize_mode: "classic", or "antialiased" (Yu 2024, eq. 9).
        max_alpha: 0.999 as gsplat 1.5; its main branch and INRIA clamp at 0.99.

    Returns:
        colours, alphas, and meta: radii [C, N, 2], means2d, depths, conics, opacities [C, N] (compensated where
        antialiased), flatten_ids, isect_offsets, width, height, n_cameras.
    """
    if render_mode not in RENDER_MODES:
        raise ValueError(f"render_mode must be one of {', '.join(RENDER_MODES)}, got {render_mode!r}")
    if rasterize_mode not in ("classic", "antialiased"):
        raise ValueError(f"rasterize_mode must be classic or antialiased, got {rasterize_mode!r}")
    if sparse_grad or tile_size != TILE_SIZE:
        warnings.warn(f"sparse_grad and tile_size have no effect here (dense, {TILE_SIZE})", stacklevel=2)
    C, antialiased = viewmats.shape[0], rasterize_mode == "antialiased"
    projection = project_gaussians(
        means, quats, scales, opacities, viewmats, Ks, width, height, eps2d=eps2d, near_plane=near_plane,
        far_plane=far_plane, radius_clip=radius_clip, antialiased=antialiased,
    )  # fmt: skip
    seen_opacities = _per_camera(opacities, C)
    if antialiased:
        seen_opacities = seen_opacities * projection.compensations
    tiles = intersect_tiles(
        projection.means2d, projection.conics, seen_opacities, projection.depths, projection.radii, width, height
    )
    channels = _channels(means, colors, viewmats, projection, sh_degree, render_mode)
    image, alphas = rasterize_gaussians(
        projection.means2d, projection.conics, channels, seen_opacities, width, height, tiles,
        backgrounds=_padded(backgrounds, channels.shape[-1]), max_alpha=max_alpha, absgrad=absgrad,
    )  # fmt: skip
    if "ED" in render_mode:
        image = torch.cat([image[..., :-1], image[..., -1:] / alphas.clamp_min(1e-10)], dim=-1)
    meta = {
        **projection._asdict(), "opacities": seen_opacities, "flatten_ids": tiles.flatten_ids,
        "isect_offsets": tiles.tile_offsets[:-1].reshape(C, -(-height // TILE_SIZE), -1),
        "width": width, "height": height, "n_cameras": C,
    }  # fmt: skip
    return image, alphas, meta


def _channels(means, colors, viewmats, projection, sh_degree, render_mode) -> Tensor:
    """[C, N, D] what is blended: colours, depth, or both."""
    C = viewmats.shape[0]
    parts = []
    if "RGB" in render_mode:
        if sh_degree is None:
            parts.append(_per_camera(colors, C) if colors.ndim == 2 else colors)
        else:
            positions = -(viewmats[:, :3, :3].mT @ viewmats[:, :3, 3:])[..., 0]  # of the cameras
            dirs = means - positions[:, None, :]
            visible = projection.radii[..., 0] > 0
            coefficients = _per_camera(colors, C) if colors.ndim == 3 else colors
            values = spherical_harmonics(sh_degree, dirs, coefficients, visible)
            parts.append((values + 0.5).clamp_min(0))
    if "D" in render_mode:
        parts.append(projection.depths[..., None])
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def _per_camera(values: Tensor, C: int) -> Tensor:
    """[C, N, …] the same values for each camera. One camera needs no sum in the backward pass, which for SH
    coefficients would cost as much as the rest of a step."""
    return values[None] if C == 1 else values.expand(C, *values.shape)


def _padded(backgrounds: Tensor | None, channels: int) -> Tensor | None:
    """Depth channels see nothing behind the scene."""
    if backgrounds is None or backgrounds.shape[-1] == channels:
        return backgrounds
    return torch.nn.functional.pad(backgrounds, (0, channels - backgrounds.shape[-1]))


@torch.no_grad()
def render(
    gaussians: Gaussians, camera: Camera, *, background: Float[Tensor, "3"] | None = None, sh_degree: int | None = None
) -> Render:
    """One picture of a scene, without gradients: colours clamped to [0, 1] over ``background`` (black by default)."""
    means = gaussians.means
    image, alphas, _ = rasterization(
        means, gaussians.quats, gaussians.scales, gaussians.opacities, gaussians.sh,
        camera.camera_from_world[None].to(means), camera.K[None].to(means), camera.width, camera.height,
        sh_degree=gaussians.sh_degree if sh_degree is None else min(sh_degree, gaussians.sh_degree),
        backgrounds=None if background is None else background[None].to(means), render_mode="RGB+ED",
        rasterize_mode="antialiased" if gaussians.antialiased else "classic",
    )  # fmt: skip
    return Render(image[0, ..., :3].clamp(0, 1), alphas[0], image[0, ..., 3:])
