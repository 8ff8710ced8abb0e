"""Colours of sparse points from the photos that see them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pycolmap

from data.captures.photos import Photo
from spatial.io.images import read_image

MAX_SIDE_PX = 640  # a point's colour is the mean over its photos: more detail would not show


def color_points(model: pycolmap.Reconstruction, photos: Sequence[Photo]) -> None:
    """Sets each point's colour to the mean of the pixels at its observations; changes ``model``.

    COLMAP's own function reads fewer formats, and always at full size.
    """
    by_name = {photo.name: photo for photo in photos}
    ids, colors = [], []
    for image_id in model.reg_image_ids():
        image = model.image(image_id)
        seen = image.get_observation_points2D()
        ids.append(np.array([point.point3D_id for point in seen], np.int64))
        colors.append(_sample(by_name[image.name], np.array([point.xy for point in seen]).reshape(-1, 2)))
    point_ids, which, counts = np.unique(np.concatenate(ids), return_inverse=True, return_counts=True)
    pixels = np.concatenate(colors)
    sums = np.stack([np.bincount(which, pixels[:, channel], len(point_ids)) for channel in range(3)], 1)
    means = np.rint(sums / counts[:, None]).astype(np.uint8)
    for point_id, color in zip(point_ids, means, strict=True):
        model.point3D(int(point_id)).color = color


def _sample(photo: Photo, xy: np.ndarray) -> np.ndarray:
    scale = min(1.0, MAX_SIDE_PX / max(photo.width, photo.height))
    pixels = read_image(photo.path, min_size=(round(photo.width * scale), round(photo.height * scale))).rgb
    height, width = pixels.shape[:2]
    column = (xy[:, 0] * width / photo.width).astype(np.int64).clip(0, width - 1)
    row = (xy[:, 1] * height / photo.height).astype(np.int64).clip(0, height - 1)
    return pixels[row, column].astype(np.float64)
