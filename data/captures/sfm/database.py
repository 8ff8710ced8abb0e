"""Photos, key points and matches as a COLMAP database, written directly instead of by COLMAP's own front end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pycolmap

from data.captures.photos import Photo
from data.captures.sfm.features import Features
from data.captures.sfm.matching import Matches, Pair

DEFAULT_FOCAL_FACTOR = 1.2  # of the longer side: COLMAP's guess, a field of view of 45 degrees


def write_database(
    path: Path, photos: Sequence[Photo], features: Sequence[Features], matches: Mapping[Pair, Matches]
) -> None:
    """Writes a new database whose image id is the photo's index + 1."""
    with pycolmap.Database.open(path) as database, pycolmap.DatabaseTransaction(database):
        cameras = {key: _write_camera(database, key) for key in dict.fromkeys(camera_key(photo) for photo in photos)}
        for photo, found in zip(photos, features, strict=True):
            image_id = _write_image(database, photo, *cameras[camera_key(photo)])
            database.write_keypoints(image_id, _keypoint_rows(found))
        for (first, second), pair in matches.items():
            database.write_matches(first + 1, second + 1, pair.indices)
            database.write_two_view_geometry(first + 1, second + 1, _two_view_geometry(pair))


def camera_key(photo: Photo) -> tuple[int, int, int | None]:
    """Photos with equal keys share one camera: the same stored size, and the same focal length where EXIF has one."""
    return photo.width, photo.height, None if photo.focal_px is None else round(photo.focal_px)


def _write_camera(database: pycolmap.Database, key: tuple[int, int, int | None]) -> tuple[int, int]:
    width, height, focal_px = key
    guess = focal_px or DEFAULT_FOCAL_FACTOR * max(width, height)
    camera = pycolmap.Camera.create_from_model_name(1, "SIMPLE_RADIAL", guess, width, height)
    camera.has_prior_focal_length = focal_px is not None
    camera_id = database.write_camera(camera)
    rig = pycolmap.Rig()
    rig.add_ref_sensor(pycolmap.sensor_t(pycolmap.SensorType.CAMERA, camera_id))
    return camera_id, database.write_rig(rig)


def _write_image(database: pycolmap.Database, photo: Photo, camera_id: int, rig_id: int) -> int:
    image_id = database.write_image(pycolmap.Image(name=photo.name, camera_id=camera_id))
    frame = pycolmap.Frame()
    frame.rig_id = rig_id
    frame.add_data_id(pycolmap.data_t(pycolmap.sensor_t(pycolmap.SensorType.CAMERA, camera_id), image_id))
    database.write_frame(frame)
    return image_id


def _keypoint_rows(found: Features) -> np.ndarray:
    return np.column_stack([found.xy, found.scales, found.angles]).astype(np.float32)


def _two_view_geometry(pair: Matches) -> pycolmap.TwoViewGeometry:
    geometry = pycolmap.TwoViewGeometry()
    geometry.config = pycolmap.TwoViewGeometryConfiguration.UNCALIBRATED
    geometry.F = pair.fundamental
    geometry.inlier_matches = pair.indices
    return geometry
