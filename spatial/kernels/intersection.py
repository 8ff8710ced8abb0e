"""Which Gaussians touch which 16×16 tile, nearest first (exact ellipse test: Hanson 2025, "Speedy-Splat")."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from spatial.kernels import native, reference
from spatial.kernels.registration import register, require_same_dtype

TILE_SIZE = 16


class TileIntersections(NamedTuple):
    """Lists of Gaussians by tile.

    flatten_ids: c·N + n of each list's Gaussians, nearest first, equal depths by index.
    tile_offsets: where each (camera, tile row, tile column)'s list begins in flatten_ids; the last entry is their number.
    places: of each Gaussian's intersections, by (camera, Gaussian), the places in flatten_ids, and gaussian_offsets where a
        Gaussian's begin: gradients by intersection are summed by Gaussian in that one order.
    """

    flatten_ids: Int[Tensor, "I"]
    tile_offsets: Int[Tensor, "T"]
    places: Int[Tensor, "I"]
    gaussian_offsets: Int[Tensor, "S"]


def intersect_tiles(
    means2d: Float[Tensor, "C N 2"],
    conics: Float[Tensor, "C N 3"],
    opacities: Float[Tensor, "C N"],
    depths: Float[Tensor, "C N"],
    radii: Int[Tensor, "C N 2"],
    width: int,
    height: int,
) -> TileIntersections:
    """Lists, for every tile, the Gaussians whose visible ellipse {alpha ≥ 1/255} holds one of its pixel rows' points.

    Nothing here is differentiable. Raises OverflowError beyond 2³¹ intersections.
    """
    require_same_dtype(means2d, conics=conics, opacities=opacities, depths=depths)
    call: Callable = _intersect if native.compiled() else reference.intersection.intersect_tiles
    inputs = [t.detach().contiguous() for t in (means2d, conics, opacities, depths, radii)]
    return TileIntersections(*call(*inputs, width, height))


def _intersect_cpu(means2d, conics, opacities, depths, radii, width, height):
    C, N = radii.shape[:2]
    columns, rows = -(-width // TILE_SIZE), -(-height // TILE_SIZE)
    found = native.function("intersect_tiles", means2d)(
        C, N, *map(native.address, (means2d, conics, opacities, depths, radii)), columns, rows
    )
    num = len(found)
    if num >= 2**31:
        raise OverflowError(
            f"{num} tile intersections: Gaussians are too large or too many for an image {width}×{height}"
        )
    gaussian_offsets, tile_offsets = radii.new_empty(C * N + 1), radii.new_empty(C * rows * columns + 1)
    flatten_ids, places = radii.new_empty(num), radii.new_empty(num)
    found.fill(*map(native.address, (gaussian_offsets, tile_offsets, flatten_ids, places)))
    return flatten_ids, tile_offsets, places, gaussian_offsets


def _intersect_fake(means2d, conics, opacities, depths, radii, width, height):
    C, N = radii.shape[:2]
    num = torch.library.get_ctx().new_dynamic_size()
    tiles = -(-width // TILE_SIZE) * -(-height // TILE_SIZE)
    return radii.new_empty(num), radii.new_empty(C * tiles + 1), radii.new_empty(num), radii.new_empty(C * N + 1)


_intersect = register(
    "intersect_tiles(Tensor means2d, Tensor conics, Tensor opacities, Tensor depths, Tensor radii, int width, int height)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    cpu=_intersect_cpu,
    fake=_intersect_fake,
)
