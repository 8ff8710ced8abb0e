"""``transforms.json`` of nerfstudio and instant-ngp, and Blender's ``transforms_train.json``: reading and writing.

The files hold OpenGL camera-to-world matrices (camera y up, z backward). They are turned into our OpenCV
``camera_from_world`` by flipping the camera's y and z axes; the world's frame and scale stay as they are
(instant-ngp's ``scale``, ``offset`` and ``aabb_scale`` and nerfstudio's ``applied_transform`` are not applied).
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from spatial.errors import SpatialError
from spatial.io.atomic import write_json_atomic
from spatial.io.images import HEIF_SUFFIXES, IMAGE_SUFFIXES, read_size
from spatial.io.posed_photos import PosedPhoto, PosedPhotos, empty_points
from spatial.structures import LeftOut, PointCloud, View

logger = logging.getLogger(__name__)

OPENCV_FROM_OPENGL = np.diag([1.0, -1.0, -1.0, 1.0])
TRANSFORMS_NAMES = ("transforms.json", "transforms_train.json")
DISTORTION_KEYS = ("k1", "k2", "k3", "k4", "p1", "p2")
PERSPECTIVE_MODELS = {"OPENCV", "PINHOLE", "SIMPLE_PINHOLE", "PERSPECTIVE", "SIMPLE_RADIAL", "RADIAL", "FULL_OPENCV"}
SUFFIXES_TO_TRY = (".png", ".jpg", ".jpeg", ".JPG", ".PNG", ".JPEG", ".webp", ".tif", ".tiff", ".heic")


def read_transforms_json(path: Path) -> PosedPhotos:
    """Reads the frames whose images exist; the others are in ``left_out``.

    Intrinsics stand on the frame or at the top: ``fl_x``/``fl_y`` or ``camera_angle_x``/``camera_angle_y``, ``cx``,
    ``cy``, ``w``, ``h``, ``k1`` to ``k4``, ``p1``, ``p2``, with ``camera_model`` OPENCV (the default) or
    OPENCV_FISHEYE (or ``is_fisheye``). Also read: ``mask_path`` of a frame, ``ply_file_path``.

    Raises:
        SpatialError: not JSON, a missing key, NaN, a matrix that is no rigid transform, an unknown camera model, or
            none of the images on disk.
    """
    path = Path(path)
    content = _load(path)
    frames = content.get("frames")
    if not isinstance(frames, list) or not frames:
        raise SpatialError(f"{path}: no list of 'frames'; is this a nerfstudio, instant-ngp or Blender file?")
    declared = [_file_path(path, index, frame) for index, frame in enumerate(frames)]
    names = _names(declared)
    photos: dict[str, PosedPhoto] = {}
    left_out = []
    for index, (frame, file_path, name) in enumerate(zip(frames, declared, names, strict=True)):
        found = _find_image(path.parent, file_path)
        if found is None:
            left_out.append(LeftOut(name, f"frame {index} of {path.name} names {file_path}, which does not exist"))
            continue
        name = name if PurePosixPath(name).suffix == found.suffix else name + found.suffix
        if name in photos:
            left_out.append(LeftOut(name, f"frame {index} of {path.name} names it a second time; the first is used"))
            continue
        photos[name] = _read_frame(path, index, {**content, **frame}, name, found)
    if not photos:
        raise SpatialError(
            f"{path}: none of its {len(frames)} images (such as {declared[0]}) is on disk; paths are relative to "
            f"{path.parent}"
        )
    return PosedPhotos(
        photos=[photos[name] for name in sorted(photos)],
        points=_read_points(path, content),
        left_out=left_out,
        source=f"{path.name}: {len(photos)} of {len(frames)} photos",
    )


def write_transforms_json(
    path: Path, views: Sequence[View], *, image_folder: str = "images", ply_file_path: str | None = None
) -> None:
    """Writes the views' pinhole cameras as nerfstudio's ``transforms.json``, one set of intrinsics a frame.

    The images it names, ``image_folder/name``, are what ``View.load(1.0)`` returns (undistorted, upright); writing
    them is the caller's part.
    """
    frames = [_frame_of(view, image_folder) for view in views]
    content: dict[str, Any] = {"camera_model": "PINHOLE", "frames": frames}
    if ply_file_path is not None:
        content["ply_file_path"] = ply_file_path
    write_json_atomic(path, content)


def _load(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError as error:
        raise SpatialError(f"{path} does not exist") from error
    except json.JSONDecodeError as error:
        raise SpatialError(f"{path}, line {error.lineno}: not JSON ({error.msg}); mend or write it again") from error
    except UnicodeDecodeError as error:
        raise SpatialError(f"{path}: not UTF-8 text; is this a JSON file?") from error
    if not isinstance(content, dict):
        raise SpatialError(f"{path}: holds a {type(content).__name__}, not an object with 'frames'")
    return content


def _file_path(path: Path, index: int, frame: Any) -> str:
    if not isinstance(frame, dict) or not isinstance(frame.get("file_path"), str):
        raise SpatialError(f"{path}: frame {index} has no 'file_path'; add the path of its image or remove the frame")
    return frame["file_path"].replace("\\", "/")


def _names(declared: Sequence[str]) -> list[str]:
    """Paths relative to the folder that they share."""
    clean = [os.path.normpath(file_path) for file_path in declared]
    if len({os.path.isabs(file_path) for file_path in clean}) > 1:
        return clean
    shared = os.path.commonpath([os.path.dirname(file_path) for file_path in clean])
    return [PurePosixPath(os.path.relpath(file_path, shared or ".")).as_posix() for file_path in clean]


def _find_image(folder: Path, file_path: str) -> Path | None:
    exact = folder / file_path
    if exact.is_file():
        return exact
    # Blender leaves the extension out; "r_1.5" has none either, so it is appended rather than exchanged.
    for candidate in (exact.with_name(exact.name + suffix) for suffix in SUFFIXES_TO_TRY):
        if candidate.is_file():
            return candidate
    if exact.parent.is_dir() and exact.suffix.lower() in IMAGE_SUFFIXES | HEIF_SUFFIXES:
        same = [other for other in exact.parent.iterdir() if other.name.lower() == exact.name.lower()]
        return same[0] if same else None
    return None


def _read_frame(path: Path, index: int, values: dict[str, Any], name: str, image: Path) -> PosedPhoto:
    where = f"{path}: frame {index} ({values['file_path']})"
    mask = values.get("mask_path")
    mask_path = path.parent / mask if isinstance(mask, str) else None
    if mask_path is not None and not mask_path.is_file():
        raise SpatialError(f"{where}: mask_path {mask} does not exist; put the mask there or remove the key")
    return PosedPhoto(name, image, _lens(where, values, image), _pose(where, values), mask_path)


def _pose(where: str, values: dict[str, Any]) -> Float[Tensor, "4 4"]:
    try:
        matrix = np.array(values["transform_matrix"], dtype=np.float64)
    except KeyError as error:
        raise SpatialError(f"{where} has no transform_matrix; remove the frame or add its pose") from error
    except (TypeError, ValueError) as error:
        raise SpatialError(f"{where}: transform_matrix is not a table of numbers") from error
    if matrix.shape not in {(4, 4), (3, 4)}:
        raise SpatialError(f"{where}: transform_matrix must be 4 × 4, got {' × '.join(map(str, matrix.shape))}")
    if not np.isfinite(matrix).all():
        raise SpatialError(f"{where}: transform_matrix holds NaN or infinity; remove the frame or mend its pose")
    rotation = matrix[:3, :3]
    if not np.allclose(rotation @ rotation.T, np.eye(3), atol=1e-2) or np.linalg.det(rotation) < 0:
        raise SpatialError(
            f"{where}: the left 3 × 3 of transform_matrix is no rotation (determinant {np.linalg.det(rotation):.3f}); "
            "poses must be camera-to-world without scale or mirror"
        )
    u, _, vt = np.linalg.svd(rotation)  # to float64 precision: files round to 6 digits or to float32
    world_from_camera = np.eye(4)
    world_from_camera[:3, :3], world_from_camera[:3, 3] = u @ vt, matrix[:3, 3]
    world_from_camera = world_from_camera @ OPENCV_FROM_OPENGL
    camera_from_world = np.eye(4)
    camera_from_world[:3, :3] = world_from_camera[:3, :3].T
    camera_from_world[:3, 3] = -world_from_camera[:3, :3].T @ world_from_camera[:3, 3]
    return torch.from_numpy(camera_from_world)


def _lens(where: str, values: dict[str, Any], image: Path) -> Any:
    import pycolmap

    if values.get("w") and values.get("h"):
        width, height = round(_number(where, values, "w")), round(_number(where, values, "h"))
    else:
        width, height, _ = read_size(image)
    fx, fy = _focal_lengths(where, values, width, height)
    cx = _number(where, values, "cx") if "cx" in values else width / 2
    cy = _number(where, values, "cy") if "cy" in values else height / 2
    k1, k2, k3, k4, p1, p2 = (_number(where, values, key) if key in values else 0.0 for key in DISTORTION_KEYS)
    model = str(values.get("camera_model", "OPENCV")).upper()
    if model == "OPENCV_FISHEYE" or (values.get("is_fisheye") and "camera_model" not in values):
        params, model = [fx, fy, cx, cy, k1, k2, k3, k4], "OPENCV_FISHEYE"
    elif model not in PERSPECTIVE_MODELS:
        raise SpatialError(f"{where}: camera_model {model} is not supported; OPENCV, PINHOLE and OPENCV_FISHEYE are")
    elif k4:
        raise SpatialError(f"{where}: k4 = {k4} has no meaning in camera_model {model}; set it to 0, or OPENCV_FISHEYE")
    elif k3:
        params, model = [fx, fy, cx, cy, k1, k2, p1, p2, k3, 0, 0, 0], "FULL_OPENCV"
    elif k1 or k2 or p1 or p2:
        params, model = [fx, fy, cx, cy, k1, k2, p1, p2], "OPENCV"
    else:
        params, model = [fx, fy, cx, cy], "PINHOLE"
    return pycolmap.Camera(model=model, width=width, height=height, params=params)


def _focal_lengths(where: str, values: dict[str, Any], width: int, height: int) -> tuple[float, float]:
    def of(focal_key: str, angle_key: str, size: int) -> float | None:
        if values.get(focal_key) is not None:
            return _number(where, values, focal_key)
        if values.get(angle_key) is not None:
            return size / 2 / math.tan(_number(where, values, angle_key) / 2)
        return None

    fx, fy = of("fl_x", "camera_angle_x", width), of("fl_y", "camera_angle_y", height)
    if fx is None and fy is None:
        raise SpatialError(f"{where}: no focal length; add fl_x (pixels) or camera_angle_x (radians)")
    # With fl_x but not fl_y pixels are square; an angle of the other axis is then only a derived figure.
    if values.get("fl_x") is not None and values.get("fl_y") is None:
        fy = fx
    fx, fy = fx or fy, fy or fx
    assert fx is not None and fy is not None
    if fx <= 0 or fy <= 0:
        raise SpatialError(f"{where}: the focal length must be positive, got {fx:g}, {fy:g}")
    return fx, fy


def _number(where: str, values: dict[str, Any], key: str) -> float:
    try:
        number = float(values[key])
    except (TypeError, ValueError) as error:
        raise SpatialError(f"{where}: {key} must be a number, got {values[key]!r}") from error
    if not math.isfinite(number):
        raise SpatialError(f"{where}: {key} is {number}; remove the frame or mend it")
    return number


def _read_points(path: Path, content: dict[str, Any]) -> PointCloud:
    ply_file_path = content.get("ply_file_path")
    if not isinstance(ply_file_path, str):
        return empty_points()
    ply = path.parent / ply_file_path
    if not ply.is_file():
        logger.warning("%s: ply_file_path %s does not exist; going on without sparse points", path, ply_file_path)
        return empty_points()
    return read_point_ply(ply)


def read_point_ply(path: Path) -> PointCloud:
    """Points of a PLY with x, y, z and, where there are any, red, green, blue (0 to 255; else grey).

    Raises:
        SpatialError: not a PLY, or without x, y, z.
    """
    from plyfile import PlyData, PlyParseError

    try:
        vertices = PlyData.read(str(path))["vertex"].data
    except (PlyParseError, KeyError, ValueError, EOFError) as error:
        raise SpatialError(f"{path}: not a PLY of points ({error}); write it again") from error
    columns = vertices.dtype.names or ()
    if not {"x", "y", "z"} <= set(columns):
        raise SpatialError(f"{path}: a PLY of points needs x, y, z, got {', '.join(columns)}")
    xyz = np.stack([vertices[axis].astype(np.float32) for axis in "xyz"], axis=1)
    colors = np.full_like(xyz, 0.5)
    if {"red", "green", "blue"} <= set(columns):
        full = 255.0 if np.issubdtype(vertices.dtype["red"], np.integer) else 1.0
        colors = np.stack([vertices[c].astype(np.float32) / full for c in ("red", "green", "blue")], axis=1)
    keep = np.isfinite(xyz).all(axis=1)
    if not keep.all():
        logger.warning("%s: %d points hold NaN and are left out", path, int((~keep).sum()))
    return PointCloud(torch.from_numpy(xyz[keep]), torch.from_numpy(colors[keep]))


def _frame_of(view: View, image_folder: str) -> dict[str, Any]:
    camera = view.camera
    world_from_camera = torch.linalg.inv(camera.camera_from_world.double()).numpy() @ OPENCV_FROM_OPENGL
    K = camera.K.double()
    return {
        "file_path": (PurePosixPath(image_folder) / view.name).as_posix(),
        "w": camera.width,
        "h": camera.height,
        "fl_x": K[0, 0].item(),
        "fl_y": K[1, 1].item(),
        "cx": K[0, 2].item(),
        "cy": K[1, 2].item(),
        "transform_matrix": world_from_camera.tolist(),
    }
