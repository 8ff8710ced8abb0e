"""Do poses and images belong together? Matches between neighbouring photos must lie on each other's epipolar lines.

A permuted image folder, poses with the wrong axes or of another capture train for an hour to a grey fog. Here a few
pairs of neighbours are matched by SIFT at low resolution: with the right poses most matches agree with the epipolar
geometry that the poses imply, with wrong ones no more than chance would have it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np
from jaxtyping import Bool, Float

from spatial.errors import SpatialError
from spatial.structures import Camera, View

logger = logging.getLogger(__name__)

LONGEST_SIDE_PX = 560
TOLERANCE = 0.01  # of the image's diagonal: poses by phones and depth cameras are that coarse
MIN_MATCHES = 15  # of a pair, for its share of agreeing matches to say anything
MIN_AGREEMENT = 0.4  # right poses: 0.7 and more; wrong ones: 0 to 0.1
MAX_ANGLE_RAD = np.radians(50)  # between directions of view, for two photos to count as neighbours


class PairAgreement(NamedTuple):
    """Two photos, the number of their matches, and the share of those that agree with their poses."""

    first: str
    second: str
    num_matches: int
    agreement: float


class Features(NamedTuple):
    """Key points of one view: pixels [N, 2] of ``camera``'s image, descriptors [N, 128]."""

    name: str
    camera: Camera
    points: Float[np.ndarray, "N 2"]
    descriptors: Float[np.ndarray, "N 128"]


def check_poses(views: Sequence[View], *, num_pairs: int = 6) -> list[PairAgreement]:
    """Compares neighbouring photos with their poses. Too few matches to tell: a logged note, and the benefit of doubt.

    Args:
        views: the capture.
        num_pairs: pairs to match, spread over the capture (about 0.2 s each).

    Returns:
        What each pair with enough matches said.

    Raises:
        SpatialError: most pairs disagree: poses and images do not belong together.
    """
    pairs = neighbour_pairs([view.camera for view in views], num_pairs)
    features = {i: detect(views[i]) for i in sorted({i for pair in pairs for i in pair})}
    measured = [measure_pair(features[i], features[j]) for i, j in pairs]
    telling = [pair for pair in measured if pair.num_matches >= MIN_MATCHES]
    if len(telling) < min(3, len(views) - 1):
        logger.info("poses not checked against the images: neighbouring photos have too little in common")
        return telling
    median = float(np.median([pair.agreement for pair in telling]))
    worst = min(telling, key=lambda pair: pair.agreement)
    if median < MIN_AGREEMENT:
        raise SpatialError(
            f"poses and images do not belong together: of the features that {worst.first} and {worst.second} share, "
            f"{worst.agreement:.0%} lie where their poses say, and so in most of {len(telling)} pairs of neighbours. "
            "Were images renamed or reordered, or are the poses in other axes? Give the images that the poses were "
            "made from, or the photos alone"
        )
    doubtful = [pair for pair in telling if pair.agreement < MIN_AGREEMENT]
    for pair in doubtful:
        logger.warning(
            "%s and %s: only %.0f %% of their shared features lie where their poses say; one of them may be misplaced",
            pair.first,
            pair.second,
            100 * pair.agreement,
        )
    return telling


def detect(view: View) -> Features:
    """SIFT of the view at low resolution, outside of what its mask leaves out."""
    scale = min(1.0, LONGEST_SIDE_PX / max(view.camera.width, view.camera.height))
    image, mask = view.load(scale)
    allowed = None if mask is None else mask.astype(np.uint8) * 255
    sift = cv2.SIFT_create(nfeatures=1000)  # type: ignore[attr-defined]
    keypoints, descriptors = sift.detectAndCompute(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), allowed)
    points = np.array([keypoint.pt for keypoint in keypoints]).reshape(-1, 2) + 0.5  # OpenCV: centres at whole numbers
    camera = view.camera.resized(image.shape[1], image.shape[0])
    return Features(view.name, camera, points, np.zeros((0, 128), np.float32) if descriptors is None else descriptors)


def neighbour_pairs(cameras: Sequence[Camera], num_pairs: int) -> list[tuple[int, int]]:
    """Pairs that see much the same from places apart: for views spread over the capture, a near one but not a twin."""
    positions = np.array([camera.position.double().numpy() for camera in cameras])
    forwards = np.array([camera.forward.double().numpy() for camera in cameras])
    distances = np.linalg.norm(positions[:, None] - positions[None], axis=-1)
    spread = np.median(distances[distances > 0]) if (distances > 0).any() else 0.0
    pairs: dict[tuple[int, int], None] = {}
    for i in np.unique(np.linspace(0, len(cameras) - 1, min(num_pairs, len(cameras))).round().astype(int)):
        angles = np.arccos(np.clip(forwards @ forwards[i], -1, 1))
        cost = distances[i] / max(spread, 1e-12) + 2 * angles
        # Without a baseline the epipolar line is undefined.
        cost[(distances[i] < 0.05 * spread) | (angles > MAX_ANGLE_RAD) | (np.arange(len(cameras)) == i)] = np.inf
        j = int(np.argmin(cost))
        if spread > 0 and np.isfinite(cost[j]):
            pairs[min(int(i), j), max(int(i), j)] = None
    return list(pairs)


def measure_pair(first: Features, second: Features) -> PairAgreement:
    """Matches two photos: the share that lie near the epipolar lines by their poses and in front of both cameras."""
    matches = _mutual_matches(first.descriptors, second.descriptors)
    if not len(matches):
        return PairAgreement(first.name, second.name, 0, 0.0)
    points_first, points_second = first.points[matches[:, 0]], second.points[matches[:, 1]]
    errors = epipolar_distances_px(first.camera, second.camera, points_first, points_second)
    limit = TOLERANCE * np.hypot(second.camera.width, second.camera.height)
    agrees = (errors < limit) & are_in_front(first.camera, second.camera, points_first, points_second)
    return PairAgreement(first.name, second.name, len(matches), float(agrees.mean()))


def epipolar_distances_px(
    first: Camera, second: Camera, points_first: Float[np.ndarray, "N 2"], points_second: Float[np.ndarray, "N 2"]
) -> Float[np.ndarray, "N"]:
    """Distance of each point of ``second`` from the epipolar line of its partner in ``first``, in pixels of second."""
    second_from_first = (second.camera_from_world.double() @ first.camera_from_world.double().inverse()).numpy()
    tx, ty, tz = second_from_first[:3, 3]
    cross = np.array([[0, -tz, ty], [tz, 0, -tx], [-ty, tx, 0]])
    inverse_first, inverse_second = (np.linalg.inv(camera.K.double().numpy()) for camera in (first, second))
    fundamental = inverse_second.T @ cross @ second_from_first[:3, :3] @ inverse_first
    lines = np.column_stack([points_first, np.ones(len(points_first))]) @ fundamental.T
    signed = (lines[:, :2] * points_second).sum(axis=1) + lines[:, 2]
    return np.abs(signed) / np.maximum(np.hypot(lines[:, 0], lines[:, 1]), 1e-12)


def are_in_front(
    first: Camera, second: Camera, points_first: Float[np.ndarray, "N 2"], points_second: Float[np.ndarray, "N 2"]
) -> Bool[np.ndarray, "N"]:
    """Whether the rays of matching points come nearest to each other in front of both cameras."""
    a, b = _world_rays(first, points_first), _world_rays(second, points_second)
    between = (second.position - first.position).double().numpy()
    # Depths s, t that minimise |s a - (between + t b)|, by Cramer's rule.
    aa, bb, ab = (a * a).sum(axis=1), (b * b).sum(axis=1), (a * b).sum(axis=1)
    determinant = aa * bb - ab * ab
    depth_first = (a @ between) * bb - (b @ between) * ab
    depth_second = (a @ between) * ab - (b @ between) * aa
    return (determinant > 0) & (depth_first > 0) & (depth_second > 0)


def _world_rays(camera: Camera, points: Float[np.ndarray, "N 2"]) -> Float[np.ndarray, "N 3"]:
    inverse = np.linalg.inv(camera.K.double().numpy())
    rotation = camera.camera_from_world[:3, :3].double().numpy()
    return np.column_stack([points, np.ones(len(points))]) @ inverse.T @ rotation


def _mutual_matches(first: np.ndarray, second: np.ndarray, *, ratio: float = 0.8) -> np.ndarray:
    """Pairs of indices that are each other's nearest and pass Lowe's ratio test."""
    if min(len(first), len(second)) < 2:
        return np.zeros((0, 2), int)
    similarity = _unit(first) @ _unit(second).T
    distances = np.sqrt(np.maximum(0, 2 - 2 * similarity))
    best = distances.argmin(axis=1)
    two = np.partition(distances, 1, axis=1)[:, :2]
    rows = np.arange(len(first))
    keep = (distances.argmin(axis=0)[best] == rows) & (two[:, 0] < ratio * two[:, 1])
    return np.column_stack([rows[keep], best[keep]])


def _unit(descriptors: np.ndarray) -> np.ndarray:
    return descriptors / np.maximum(np.linalg.norm(descriptors, axis=1, keepdims=True), 1e-12)
