"""Distances to the nearest other points: how wide a Gaussian starts (Kerbl 2023, sec. 5.1)."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from spatial.kernels import native, reference
from spatial.kernels.registration import register, require_same_dtype, require_shape


def nearest_distances(points: Float[Tensor, "N 3"], k: int) -> Float[Tensor, "N k"]:
    """Distances from each point to its k nearest other points, ascending; inf where there are fewer than k others.

    Points at the same place are neighbours at distance 0. Not differentiable.

    Raises:
        ValueError: on coordinates that are not finite, and on k < 1.
    """
    require_shape("points", points, None, 3)
    require_same_dtype(points)
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    finite = points.isfinite().all(-1)
    if not finite.all():
        row = int(finite.logical_not().nonzero()[0])
        raise ValueError(f"points must be finite, row {row} is {points[row].tolist()}: remove such rows first")
    call = _nearest if native.compiled() else reference.nearest.nearest_distances
    return call(points.detach().contiguous(), k)


def _nearest_cpu(points, k):
    distances = points.new_empty((points.shape[0], k))
    native.function("nearest_distances", points)(points.shape[0], k, *map(native.address, (points, distances)))
    return distances


_nearest = register(
    "nearest_distances(Tensor points, int k) -> Tensor",
    cpu=_nearest_cpu,
    fake=lambda points, k: points.new_empty((points.shape[0], k)),
)
