"""Codebooks by k-means: of single numbers by sorting them, of long vectors in two levels so that it takes seconds."""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

_ROWS = 16384  # rows compared with all centroids at once


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
    points: Float[Tensor, "N D"], size: int, *, generator: torch.Generator, iterations: int = 6
) -> tuple[Float[Tensor, "size D"], Int[Tensor, "N"]]:
    """At most ``size`` centroids and the centroid of each point.

    Two levels: √size coarse clusters, each then split into a share of ``size`` by its number of points. Comparing a
    point with 2√size centroids instead of ``size`` is what makes 64 k centroids affordable on a CPU.
    """
    if len(points) <= size:
        return points.clone(), torch.arange(len(points))
    coarse, coarse_labels = _lloyd(points, math.isqrt(size), generator=generator, iterations=iterations)
    counts = torch.bincount(coarse_labels, minlength=len(coarse))
    shares = (counts * (size / len(points))).floor().long().clamp(min=1).minimum(counts)
    labels, centroids, start = torch.empty(len(points), dtype=torch.long), [], 0
    members_by_cluster = torch.argsort(coarse_labels, stable=True).split(counts.tolist())
    for members, share in zip(members_by_cluster, shares.tolist(), strict=True):
        if len(members) == 0:
            continue
        fine, fine_labels = _lloyd(points[members], share, generator=generator, iterations=iterations)
        labels[members] = fine_labels + start
        centroids.append(fine)
        start += len(fine)
    return torch.cat(centroids), labels


def _lloyd(
    points: Float[Tensor, "N D"], size: int, *, generator: torch.Generator, iterations: int
) -> tuple[Float[Tensor, "size D"], Int[Tensor, "N"]]:
    if len(points) <= size:
        return points.clone(), torch.arange(len(points))
    centroids = points[torch.randperm(len(points), generator=generator)[:size]].clone()
    for _ in range(iterations):
        labels = _nearest(points, centroids)
        counts = torch.bincount(labels, minlength=size)
        sums = torch.zeros_like(centroids).index_add_(0, labels, points)
        centroids = torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], centroids)
    return centroids, _nearest(points, centroids)


def _nearest(points: Float[Tensor, "N D"], centroids: Float[Tensor, "size D"]) -> Int[Tensor, "N"]:
    half_norms = 0.5 * centroids.square().sum(dim=1)
    return torch.cat([(half_norms - rows @ centroids.T).argmin(dim=1) for rows in points.split(_ROWS)])


def _companded_levels(ordered: Float[np.ndarray, "M"], size: int) -> Float[np.ndarray, "size"]:
    low, high = ordered[0], ordered[-1]
    if high <= low:
        return np.full(size, low)
    density, edges = np.histogram(ordered, bins=4096, range=(low, high))
    cumulative = np.concatenate([[0.0], np.cumsum(np.cbrt(density))])
    return np.interp((np.arange(size) + 0.5) / size * cumulative[-1], cumulative, edges)
