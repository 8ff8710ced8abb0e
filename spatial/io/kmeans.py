"""Codebooks by k-means: of single numbers by sorting them, of long vectors in small groups so that it takes seconds."""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

_GROUP = 512  # points that share centroids
_DISTANCES = 1 << 24  # held in memory at once


def scalar_codebook(
    values: Float[np.ndarray, "*shape"], size: int, *, iterations: int = 30
) -> tuple[Float[np.ndarray, "size"], Int[np.ndarray, "*shape"]]:
    """``size`` ascending levels with nearly least squared error, and the level of each value.

    Starts from levels spaced by density^(1/3), the optimum for many levels (Panter and Dite, 1951), then Lloyd's
    iteration on the sorted values: clusters are intervals, so an iteration costs ``size`` look-ups.
    """
    ordered = np.sort(values.reshape(-1).astype(np.float64))
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    levels = _companded_levels(ordered, size)
    for _ in range(iterations):
        edges = np.searchsorted(ordered, 0.5 * (levels[1:] + levels[:-1]))
        bounds = np.concatenate([[0], edges, [len(ordered)]])
        counts = np.diff(bounds)
        means = np.diff(sums[bounds]) / np.maximum(counts, 1)
        levels = np.sort(np.where(counts > 0, means, levels))
    labels = np.searchsorted(0.5 * (levels[1:] + levels[:-1]), values.astype(np.float64))
    return levels.astype(np.float32), labels


def vector_codebook(
    points: Float[Tensor, "N D"], size: int, *, iterations: int = 6
) -> tuple[Float[Tensor, "P D"], Int[Tensor, "N"]]:
    """At most ``size`` centroids and the centroid of each point. Deterministic.

    The points are halved along their principal direction until groups are small, and each group gets an equal share of
    the centroids: a point is compared with a few hundred centroids instead of up to 65,536.
    """
    if len(points) <= size:
        return points.clone(), torch.arange(len(points), device=points.device)
    groups = _balanced_groups(points)
    share = size // len(groups)
    labels = torch.empty(len(points), dtype=torch.long, device=points.device)
    centroids: list[Tensor] = []
    start = 0
    for chunk in groups.split(max(1, _DISTANCES // (groups.shape[1] * share))):
        found, nearest = _lloyd(points[chunk], share, iterations)
        labels[chunk.reshape(-1)] = (nearest + start).reshape(-1)
        centroids.append(found)
        start += len(found)
    return torch.cat(centroids), labels


def _balanced_groups(points: Float[Tensor, "N D"]) -> Int[Tensor, "G n"]:
    """Indices of neighbouring points, G a power of two and n at most ``_GROUP``, ordered along each group's axis.

    Some points come twice so that all groups are equally long.
    """
    num_groups = 1 << max(0, math.ceil(math.log2(len(points) / _GROUP)))
    length = -(-len(points) // num_groups)
    groups = (torch.arange(num_groups * length) * len(points) // (num_groups * length)).reshape(1, -1).to(points.device)
    while True:
        order = _along_principal_direction(points[groups]).argsort(dim=1)
        groups = groups.gather(1, order)
        if len(groups) == num_groups:
            return groups
        groups = groups.reshape(2 * len(groups), -1)


def _along_principal_direction(points: Float[Tensor, "G n D"]) -> Float[Tensor, "G n"]:
    centred = points - points.mean(dim=1, keepdim=True)
    scatter = centred.transpose(1, 2) @ centred
    direction = torch.ones_like(scatter[:, :, :1])
    for _ in range(8):  # power iteration: a rough axis is enough
        direction = torch.nn.functional.normalize(scatter @ direction, dim=1)
    return (centred @ direction)[..., 0]


def _lloyd(
    points: Float[Tensor, "G n D"], share: int, iterations: int
) -> tuple[Float[Tensor, "P D"], Int[Tensor, "G n"]]:
    """K-means in each group apart; labels count through all groups."""
    num_groups, length, dim = points.shape
    first = torch.arange(num_groups, device=points.device)[:, None] * share
    spread = torch.arange(share, device=points.device) * length // share
    centroids = points[:, spread]
    for _ in range(iterations):
        labels = (_nearest(points, centroids) + first).reshape(-1)
        counts = torch.bincount(labels, minlength=num_groups * share)[:, None]
        sums = points.new_zeros(num_groups * share, dim).index_add_(0, labels, points.reshape(-1, dim))
        means = (sums / counts.clamp(min=1)).reshape(centroids.shape)
        centroids = torch.where(counts.reshape(num_groups, share, 1) > 0, means, centroids)
    return centroids.reshape(-1, dim), _nearest(points, centroids) + first


def _nearest(points: Float[Tensor, "G n D"], centroids: Float[Tensor, "G s D"]) -> Int[Tensor, "G n"]:
    half_norms = 0.5 * centroids.square().sum(dim=2)
    return torch.baddbmm(half_norms[:, None], points, centroids.transpose(1, 2), alpha=-1).argmin(dim=2)


def _companded_levels(ordered: Float[np.ndarray, "M"], size: int) -> Float[np.ndarray, "size"]:
    low, high = ordered[0], ordered[-1]
    if high <= low:
        return np.full(size, low)
    density, edges = np.histogram(ordered, bins=4096, range=(low, high))
    cumulative = np.concatenate([[0.0], np.cumsum(np.cbrt(density))])
    return np.interp((np.arange(size) + 0.5) / size * cumulative[-1], cumulative, edges)
