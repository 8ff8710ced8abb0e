"""From a photo's distorted lens to a pinhole camera: every COLMAP camera model, by one remapping per photo.

The lens is a `pycolmap.Camera` (models and parameters: COLMAP's ``sensor/models.h``) and projects by COLMAP's own code,
so that a model which pycolmap learns is one that this file knows. The pinhole keeps the lens's resolution at the
optical axis, its fx and fy and its axis; the image is cropped or grown, side by side, to the largest rectangle in which
every pixel is seen by the lens. An off-centre principal point stays where it is, even outside the image.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import cv2
import numpy as np
from jaxtyping import Float, UInt8

from spatial.errors import SpatialError

MAX_HALF_ANGLE_RAD = math.radians(55)  # of a target's sides, for lenses whose pinhole image would grow without bound
BORDER_TOLERANCE_PX = 0.25
NEGLIGIBLE_PX = 0.02
ROWS_AT_ONCE = 256
EXACT_MAP_PIXELS = 300_000
MAP_CELL = 8


class Pinhole(NamedTuple):
    """A pinhole image: intrinsics [3, 3] in pixels (centres at +0.5) and size."""

    K: Float[np.ndarray, "3 3"]
    width: int
    height: int


class Rectangle(NamedTuple):
    """An axis-aligned rectangle in the plane z = 1 of the camera."""

    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True)
class UndistortionMap:
    """For `cv2.remap`: where each pixel of the pinhole image lies in the distorted one.

    Args:
        coordinates: [H, W, 2] int16 whole pixels.
        fractions: [H, W] uint16 index into OpenCV's table of 1/32 pixel steps. (6 bytes a pixel instead of 8.)
    """

    coordinates: np.ndarray
    fractions: np.ndarray

    @property
    def nbytes(self) -> int:
        return self.coordinates.nbytes + self.fractions.nbytes

    def apply(self, image: UInt8[np.ndarray, "..."]) -> UInt8[np.ndarray, "..."]:
        """Resamples [H, W] or [H, W, C] bilinearly."""
        return cv2.remap(image, self.coordinates, self.fractions, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)


def resized_lens(lens: Any, width: int, height: int) -> Any:
    """The same lens for its image resampled to ``width`` × ``height``."""
    import pycolmap

    copy = pycolmap.Camera(lens.todict())
    if (lens.width, lens.height) != (width, height):
        copy.rescale(width, height)
    return copy


def is_pinhole(lens: Any) -> bool:
    """Whether the image needs no resampling: no distortion parameters, or none that moves a pixel by 1/50."""
    if lens.model_name in {"SIMPLE_PINHOLE", "PINHOLE"}:
        return True
    if lens.is_spherical():
        return False
    K = _central_intrinsics(lens)
    pixels = _grid(0, lens.width, 0, lens.height, 17)
    ideal = _project(lens, (pixels - K[:2, 2]) / K[[0, 1], [0, 1]])
    return bool(np.all(np.abs(ideal - pixels) < NEGLIGIBLE_PX))


def pinhole_for(lens: Any) -> Pinhole:
    """The pinhole image that the lens's image is resampled to.

    Raises:
        SpatialError: a 360° panorama, or parameters by which no part of the image can be undistorted.
    """
    if lens.is_spherical():
        raise SpatialError(
            f"camera model {lens.model_name}: a 360° panorama has no pinhole image; cut the panoramas into perspective "
            "views first (COLMAP's panorama_sfm example does)"
        )
    K = _central_intrinsics(lens)
    if is_pinhole(lens):
        return Pinhole(K, lens.width, lens.height)
    seen = _largest_rectangle(lens)
    left, top = K[0, 0] * seen.left, K[1, 1] * seen.top
    width = max(1, math.floor(K[0, 0] * seen.right - left + 1e-6))
    height = max(1, math.floor(K[1, 1] * seen.bottom - top + 1e-6))
    K[0, 2], K[1, 2] = -left, -top
    return Pinhole(K, width, height)


def undistortion_map(lens: Any, target: Pinhole) -> UndistortionMap:
    """Where each pixel of ``target`` lies in the image of ``lens``.

    A lens is smooth: the map of a large image is computed at every 8th pixel and interpolated linearly, which errs by
    less than 1/100 pixel and takes a fortieth of the time.
    """
    is_large = target.width * target.height > EXACT_MAP_PIXELS
    map_of = _interpolated_map if is_large else _exact_map
    coordinates = np.empty((target.height, target.width, 2), np.int16)
    fractions = np.empty((target.height, target.width), np.uint16)
    for top in range(0, target.height, ROWS_AT_ONCE):  # in strips: a whole map of 12 megapixels in floats is 100 MB
        bottom = min(top + ROWS_AT_ONCE, target.height)
        pixels = map_of(lens, target, top, bottom)
        coordinates[top:bottom], fractions[top:bottom] = cv2.convertMaps(  # type: ignore[call-overload]
            pixels, None, cv2.CV_16SC2
        )
    return UndistortionMap(coordinates, fractions)


def _exact_map(lens: Any, target: Pinhole, top: int, bottom: int) -> Float[np.ndarray, "H W 2"]:
    return _map_at(lens, target, np.arange(target.width) + 0.5, np.arange(top, bottom) + 0.5)


def _interpolated_map(lens: Any, target: Pinhole, top: int, bottom: int) -> Float[np.ndarray, "H W 2"]:
    """From samples at the centres of cells of 8 × 8 pixels, with one more cell on each side."""
    columns, rows = -(-target.width // MAP_CELL), -(-(bottom - top) // MAP_CELL)
    u = (np.arange(-1, columns + 1) + 0.5) * MAP_CELL
    v = (np.arange(-1, rows + 1) + 0.5) * MAP_CELL + top
    cells = _map_at(lens, target, u, v)
    if not np.isfinite(cells).all():  # the outer cells may lie beyond what the model can project
        return _exact_map(lens, target, top, bottom)
    size = ((columns + 2) * MAP_CELL, (rows + 2) * MAP_CELL)
    pixels = cv2.resize(cells, size, interpolation=cv2.INTER_LINEAR)
    return pixels[MAP_CELL : MAP_CELL + bottom - top, MAP_CELL : MAP_CELL + target.width]


def _map_at(
    lens: Any, target: Pinhole, u: Float[np.ndarray, "W"], v: Float[np.ndarray, "H"]
) -> Float[np.ndarray, "H W 2"]:
    """Position in the distorted image, pixel centres at whole numbers as OpenCV has them, of the target's (u, v)."""
    x, y = (u - target.K[0, 2]) / target.K[0, 0], (v - target.K[1, 2]) / target.K[1, 1]
    points = np.stack(np.broadcast_arrays(x[None, :], y[:, None]), axis=-1)
    return (_project(lens, points.reshape(-1, 2)) - 0.5).astype(np.float32).reshape(len(v), len(u), 2)


def _project(lens: Any, points: Float[np.ndarray, "N 2"]) -> Float[np.ndarray, "N 2"]:
    """Points of the plane z = 1 to pixels; NaN where the model has none."""
    return lens.img_from_cam(np.column_stack([points, np.ones(len(points))]))


def _central_intrinsics(lens: Any) -> Float[np.ndarray, "3 3"]:
    """K of the pinhole that agrees with the lens on the optical axis, to first order."""
    step = 1e-5
    around = np.array([[0.0, 0.0], [step, 0.0], [-step, 0.0], [0.0, step], [0.0, -step]])
    pixels = _project(lens, around)
    fx, fy = (pixels[1, 0] - pixels[2, 0]) / (2 * step), (pixels[3, 1] - pixels[4, 1]) / (2 * step)
    if lens.model_name in {"SIMPLE_PINHOLE", "PINHOLE"}:
        fx, fy = lens.focal_length_x, lens.focal_length_y
    return np.array([[fx, 0.0, pixels[0, 0]], [0.0, fy, pixels[0, 1]], [0.0, 0.0, 1.0]])


def _grid(left: float, right: float, top: float, bottom: float, count: int) -> Float[np.ndarray, "N 2"]:
    x, y = np.meshgrid(np.linspace(left, right, count), np.linspace(top, bottom, count))
    return np.stack([x.ravel(), y.ravel()], axis=-1)


def _is_seen(lens: Any, rectangle: Rectangle, *, count: int = 33) -> bool:
    """Whether the lens sees all of the rectangle and does not fold it (where a polynomial has left its range)."""
    limit = math.tan(MAX_HALF_ANGLE_RAD)
    if max(-rectangle.left, -rectangle.top, rectangle.right, rectangle.bottom) > limit:
        return False
    left, top, right, bottom = rectangle
    pixels = _project(lens, _grid(left, right, top, bottom, count)).reshape(count, count, 2)
    low, high = -BORDER_TOLERANCE_PX, np.array([lens.width, lens.height]) + BORDER_TOLERANCE_PX
    if not (np.isfinite(pixels).all() and (pixels >= low).all() and (pixels <= high).all()):
        return False
    right_step, down_step = np.diff(pixels, axis=1)[:-1], np.diff(pixels, axis=0)[:, :-1]
    area = right_step[..., 0] * down_step[..., 1] - right_step[..., 1] * down_step[..., 0]
    return bool((area > 0).all())


def _largest_rectangle(lens: Any) -> Rectangle:
    """Grows a rectangle about the image's centre, first in the image's proportions, then side by side."""
    centre = _ray_of_centre(lens)
    K = _central_intrinsics(lens)
    half = np.array([lens.width / K[0, 0], lens.height / K[1, 1]]) / 2

    def about_centre(size: float) -> Rectangle:
        return Rectangle(*(centre - size * half), *(centre + size * half))

    size = _largest(lambda size: _is_seen(lens, about_centre(size)), 0.0, 4.0)
    if size < 0.05:
        raise SpatialError(
            f"camera model {lens.model_name} with parameters {lens.params_to_string()}: no part of the image can be "
            "undistorted; the calibration is wrong, calibrate again or give the photos without poses"
        )
    rectangle = about_centre(size)
    for side, outward in enumerate((-half[0], -half[1], half[0], half[1])):
        grown = partial(_grown, rectangle, side, outward)
        rectangle = grown(_largest(lambda amount, grown=grown: _is_seen(lens, grown(amount)), 0.0, 4.0))  # type: ignore[misc]
    return rectangle


def _grown(rectangle: Rectangle, side: int, outward: float, amount: float) -> Rectangle:
    sides = list(rectangle)
    sides[side] += amount * outward
    return Rectangle(*sides)


def _ray_of_centre(lens: Any) -> Float[np.ndarray, "2"]:
    ray = lens.cam_from_img(np.array([[lens.width / 2, lens.height / 2]]))[0]
    return ray if np.isfinite(ray).all() else np.zeros(2)


def _largest(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The largest number in [low, high] up to which ``holds`` is true, by bisection; ``low`` where it never is."""
    if holds(high):
        return high
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
