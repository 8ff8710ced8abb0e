"""Which photos see the same things: pairs to try, descriptor matches, and a check by epipolar geometry.

Matching all pairs is quadratic, so each pair is first judged by a few hundred of its largest key points, which costs
about a hundredth of a full match; the full match is then made for each photo's best partners only. Tracks still reach
further than pairs, since COLMAP joins matches transitively.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from typing import NamedTuple, TypeVar

import cv2
import numpy as np
import torch
from jaxtyping import Float, Int, UInt32
from scipy.sparse.csgraph import minimum_spanning_tree
from threadpoolctl import threadpool_limits

from data.captures.sfm.features import Features

MIN_INLIERS = 15
MIN_INLIER_SHARE = 0.3  # true pairs keep 0.6 to 0.95 of their mutual nearest neighbours, unrelated photos 0.2 or less
MAX_DISTANCE = 0.7  # COLMAP's, between unit descriptors
ROUNDING = 1e-6

Pair = tuple[int, int]
Result = TypeVar("Result")


class Matches(NamedTuple):
    """Matches of one pair that agree with one epipolar geometry.

    Attributes:
        indices: into the key points of the first and second photo.
        fundamental: x₂ᵀ F x₁ = 0 in stored pixels.
    """

    indices: UInt32[np.ndarray, "M 2"]
    fundamental: Float[np.ndarray, "3 3"]


def all_pairs(num_photos: int) -> list[Pair]:
    """Every pair once."""
    return list(combinations(range(num_photos), 2))


def overlapping_pairs(features: Sequence[Features], *, partners: int = 20) -> list[Pair]:
    """Each photo with its ``partners`` most similar others, and a spanning tree that leaves no photo apart."""
    if len(features) - 1 <= partners:
        return all_pairs(len(features))
    counts = count_overlaps(features, all_pairs(len(features)))
    best = np.argsort(-counts, axis=1, kind="stable")[:, :partners]
    chosen = {_ordered(first, int(second)) for first, row in enumerate(best) for second in row}
    return sorted(chosen | _spanning_tree(counts))


def video_pairs(features: Sequence[Features], *, overlap: int = 10, loop_period: int = 3, loops: int = 4) -> list[Pair]:
    """Each frame with the next ``overlap`` ones, then at distances of powers of two, then with earlier visits.

    Every ``loop_period``-th frame is compared with all frames further away; its ``loops`` most similar ones are added.
    """
    count = len(features)
    steps = {*range(1, overlap + 1), *(2**power for power in range(count.bit_length()))}
    near = {(first, first + step) for step in steps for first in range(count - step)}
    candidates = [
        (first, second)
        for first in range(0, count, loop_period)
        for second in range(first + overlap + 1, count)
        if (first, second) not in near
    ]
    counts = count_overlaps(features, candidates)
    best = np.argsort(-counts, axis=1, kind="stable")[:, :loops]
    loop = {
        _ordered(first, int(second)) for first, row in enumerate(best) for second in row if counts[first, second] > 0
    }
    return sorted(near | loop)


def count_overlaps(features: Sequence[Features], pairs: Sequence[Pair]) -> Int[np.ndarray, "P P"]:
    """Number of mutual matches among the largest key points of each pair: coarse structure survives a wide baseline."""
    kept = 400 if len(features) <= 200 else 200
    largest = [photo.descriptors[np.argsort(-photo.scales, kind="stable")[:kept]] for photo in features]

    def count(pair: Pair) -> int:
        return len(match_descriptors(largest[pair[0]], largest[pair[1]]))

    counts = np.zeros((len(features), len(features)), np.int64)
    for (first, second), number in zip(pairs, _in_parallel(count, pairs), strict=True):
        counts[first, second] = counts[second, first] = number
    return counts


def match_pairs(
    features: Sequence[Features], pairs: Sequence[Pair], *, max_error_px: float = 4.0, max_ratio: float = 0.8
) -> dict[Pair, Matches]:
    """Matches of the pairs that pass `verify_matches`; the others are absent."""

    def match(pair: Pair) -> Matches | None:
        first, second = features[pair[0]], features[pair[1]]
        indices = match_descriptors(first.descriptors, second.descriptors, max_ratio=max_ratio)
        return verify_matches(first.xy, second.xy, indices, max_error_px=max_error_px)

    found = zip(pairs, _in_parallel(match, pairs), strict=True)
    return {pair: matches for pair, matches in found if matches is not None}


def match_descriptors(
    first: Float[np.ndarray, "N D"], second: Float[np.ndarray, "M D"], *, max_ratio: float = 0.8
) -> UInt32[np.ndarray, "K 2"]:
    """Mutual nearest neighbours that are clearly nearer than the second nearest (Lowe's ratio of distances).

    Descriptors have unit length. The ratio is tested from the first photo only: being mutual covers most of the rest.
    """
    if len(first) < 2 or len(second) < 2:
        return np.zeros((0, 2), np.uint32)
    similarity = first @ second.T
    rows, nearest = np.arange(len(first)), similarity.argmax(1)
    best = similarity[rows, nearest]
    mutual = best >= similarity.max(0)[nearest]
    similarity[rows, nearest] = -1.0
    second_best = similarity.max(1)
    # For unit vectors the squared distance is 2 − 2 similarity; equal descriptors differ by rounding alone.
    distinct = np.maximum(1 - best, ROUNDING) < max_ratio**2 * np.maximum(1 - second_best, ROUNDING)
    near = 2 - 2 * best < MAX_DISTANCE**2
    keep = mutual & distinct & near
    return np.stack([rows[keep], nearest[keep]], 1).astype(np.uint32)


def verify_matches(
    first_xy: Float[np.ndarray, "N 2"],
    second_xy: Float[np.ndarray, "M 2"],
    indices: UInt32[np.ndarray, "K 2"],
    *,
    max_error_px: float = 4.0,
) -> Matches | None:
    """Keeps the matches that fit one fundamental matrix, or None where too few do.

    MAGSAC++ (Barath et al. 2020) as in OpenCV, seeded by a constant: the same input gives the same answer. About twenty
    times faster than COLMAP's three estimators; the mapper estimates relative poses itself and needs only the inliers.
    """
    if len(indices) < MIN_INLIERS:
        return None
    points = first_xy[indices[:, 0]].astype(np.float64), second_xy[indices[:, 1]].astype(np.float64)
    # OpenCV's threshold is on the deviation that MAGSAC++ marginalises over; 3/4 of the pixel limit agrees with COLMAP.
    matrix, inliers = cv2.findFundamentalMat(*points, cv2.USAC_MAGSAC, 0.75 * max_error_px, 0.999, 5000)
    if matrix is None or matrix.shape != (3, 3):
        return None
    kept = indices[inliers.ravel() > 0]
    if len(kept) < max(MIN_INLIERS, MIN_INLIER_SHARE * len(indices)):
        return None
    return Matches(np.ascontiguousarray(kept), matrix)


def _in_parallel(judge: Callable[[Pair], Result], pairs: Sequence[Pair]) -> list[Result]:
    """``judge`` of each pair, one pair a thread: faster than one pair on all threads, whose parts are too small."""
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(torch.get_num_threads()) as pool:
        return list(pool.map(judge, pairs))


def _spanning_tree(counts: Int[np.ndarray, "P P"]) -> set[Pair]:
    """Pairs of the tree that joins all photos through the greatest overlaps."""
    # Zero means "no edge" to scipy, so costs start at one.
    costs = np.triu(counts.max() + 1.0 - counts, 1)
    tree = minimum_spanning_tree(costs).tocoo()
    return {_ordered(int(first), int(second)) for first, second in zip(tree.row, tree.col, strict=True)}


def _ordered(first: int, second: int) -> Pair:
    return (first, second) if first < second else (second, first)
