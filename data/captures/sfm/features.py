"""Key points of photos: SIFT (Lowe 2004) with RootSIFT descriptors (Arandjelović and Zisserman 2012).

OpenCV's detector is used rather than COLMAP's: with the same thresholds it finds the same kind of points in a quarter
of the time, and it reads JPEGs that were decoded at half size. Key points are given in the *stored* pixels of the photo
(before any EXIF rotation, centres at +0.5), as COLMAP models are.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import cv2
import numpy as np
import torch
from jaxtyping import Float, UInt8

from data.captures.photos import Photo
from spatial.io.images import read_image


class Features(NamedTuple):
    """Key points of one photo.

    Attributes:
        xy: stored pixels, centres at +0.5.
        scales: radius of each point in stored pixels.
        angles: orientation in radians.
        descriptors: unit length, so that a dot product compares two.
        sharpness: variance of the Laplacian at working size; comparable within one capture only.
    """

    xy: Float[np.ndarray, "N 2"]
    scales: Float[np.ndarray, "N"]
    angles: Float[np.ndarray, "N"]
    descriptors: Float[np.ndarray, "N D"]
    sharpness: float

    def __len__(self) -> int:
        return self.xy.shape[0]


def detect_sift(
    photos: Sequence[Photo], *, max_side_px: int = 960, max_features: int = 2500, contrast: float = 0.02
) -> list[Features]:
    """SIFT features of each photo, found in a grey image whose longer side is at most ``max_side_px``.

    Args:
        max_features: the strongest are kept.
        contrast: OpenCV's ``contrastThreshold``, three times COLMAP's ``peak_threshold``: 0.02 is COLMAP's default.
    """

    def detect(photo: Photo) -> Features:
        grey = read_grey(photo, max_side_px)
        sift = cv2.SIFT.create(max_features, contrastThreshold=contrast, enable_precise_upscale=True)
        points, descriptors = sift.detectAndCompute(grey, None)
        return _to_features(photo, grey, points, descriptors)

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        return list(pool.map(detect, photos))


def read_grey(photo: Photo, max_side_px: int) -> UInt8[np.ndarray, "H W"]:
    """The photo in grey as stored, scaled down so that its longer side is at most ``max_side_px``."""
    scale = min(1.0, max_side_px / max(photo.width, photo.height))
    size = (max(1, round(photo.width * scale)), max(1, round(photo.height * scale)))
    grey = cv2.cvtColor(read_image(photo.path, min_size=size).rgb, cv2.COLOR_RGB2GRAY)
    return grey if grey.shape == size[::-1] else cv2.resize(grey, size, interpolation=cv2.INTER_AREA)


def measure_sharpness(grey: UInt8[np.ndarray, "H W"]) -> float:
    """Variance of the Laplacian: falls with motion blur and defocus (Pech-Pacheco et al. 2000)."""
    return float(cv2.Laplacian(grey, cv2.CV_32F).var())


def _to_features(photo: Photo, grey: np.ndarray, points: Sequence[cv2.KeyPoint], descriptors: object) -> Features:
    # OpenCV counts from the centre of the first pixel, COLMAP from its corner.
    to_stored = np.array([photo.width / grey.shape[1], photo.height / grey.shape[0]])
    xy = (np.array([point.pt for point in points]).reshape(-1, 2) + 0.5) * to_stored
    roots = np.zeros((0, 128), np.float32) if descriptors is None else _root_sift(np.asarray(descriptors, np.float32))
    return Features(
        xy=xy.astype(np.float32),
        scales=(np.array([point.size for point in points]) / 2 * to_stored.mean()).astype(np.float32),
        angles=np.radians([point.angle for point in points]).astype(np.float32),
        descriptors=roots,
        sharpness=measure_sharpness(grey),
    )


def _root_sift(descriptors: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N D"]:
    """The Hellinger kernel as a dot product: entries divided by their sum, then square roots."""
    return np.sqrt(descriptors / np.maximum(descriptors.sum(1, keepdims=True), 1e-12))
