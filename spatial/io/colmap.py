"""COLMAP models: reading a project folder as it lies on disk, and writing poses as a model that COLMAP opens."""

from __future__ import annotations

import copy
import errno
import struct
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spatial.errors import SpatialError
from spatial.io.atomic import atomic_path, write_error
from spatial.io.image_index import ImageIndex
from spatial.io.posed_photos import PosedPhoto, PosedPhotos, empty_points
from spatial.structures import Camera, LeftOut, PointCloud, View

MODEL_FOLDERS = ("sparse", "colmap/sparse", "distorted/sparse", ".")
IMAGE_FOLDERS = ("images", "images_2", "images_4", "images_8", "input", ".")


def is_colmap_project(folder: Path) -> bool:
    """Whether ``folder`` is, or holds in the usual places, a COLMAP model."""
    return bool(find_models(folder))


def find_models(folder: Path) -> list[Path]:
    """The model folders (cameras and images, ``.bin`` or ``.txt``) of a project: itself, sparse, sparse/0…"""
    for place in MODEL_FOLDERS:
        base = folder / place
        if not base.is_dir():
            continue
        models = [base] if _is_model(base) else sorted(child for child in base.iterdir() if _is_model(child))
        if models:
            return models
    return []


def read_colmap_project(folder: Path, *, images: Path | None = None) -> PosedPhotos:
    """Reads the project's largest model (by registered photos) and finds its images on disk.

    Args:
        folder: the project (``images/`` and ``sparse/0``, ``sparse`` or the like), or the model folder itself.
        images: folder of the images; by default the first of images, images_2, images_4, images_8, input beside or
            above the model that holds most of them.

    Raises:
        SpatialError: no model, a damaged one, one without a registered photo, or none of its images on disk.
    """
    folder = Path(folder)
    models = [(path, _read_model(path)) for path in find_models(folder)]
    if not models:
        raise SpatialError(
            f"{folder} holds no COLMAP model; it needs cameras and images (.bin or .txt) in sparse/0, sparse or the "
            "folder itself"
        )
    path, model = max(models, key=lambda pair: pair[1].num_reg_images())  # the first of equals
    names = sorted(image.name for image in model.images.values() if image.has_pose)
    if not names:
        raise SpatialError(f"{path}: the model has no registered photo; run COLMAP's mapper again or give the photos")
    index = _find_images(folder, path, names, images)
    paths = {name: index.find(name) for name in names}
    photos = posed_photos_of(model, {name: found for name, found in paths.items() if found})
    left_out = [
        LeftOut(name, f"named by {path} but not found in {index.root}") for name, found in paths.items() if not found
    ]
    if not photos:
        raise SpatialError(
            f"none of the {len(names)} photos that {path} names (such as {names[0]}) is on disk below {folder}; put "
            "them into images/ beside sparse/"
        )
    left_out += _unregistered(index, photos, models, path)
    return PosedPhotos(
        photos=sorted(photos, key=lambda photo: photo.name),
        points=points_of(model),
        left_out=sorted(left_out, key=lambda item: item.name),
        source=_describe(model, path, folder, len(photos), len(photos) + len(left_out), len(models)),
    )


def posed_photos_of(reconstruction: Any, paths: Mapping[str, Path]) -> list[PosedPhoto]:
    """The registered photos of a `pycolmap.Reconstruction`, of those whose names are keys of ``paths``, by name.

    Raises:
        SpatialError: NaN in a pose or a camera.
    """
    # Copies: a camera reached through its reconstruction turns to garbage when the reconstruction is freed.
    lenses = {camera_id: copy.deepcopy(camera) for camera_id, camera in reconstruction.cameras.items()}
    photos = []
    for image in reconstruction.images.values():
        if image.has_pose and image.name in paths:
            pose = np.eye(4)
            pose[:3] = image.cam_from_world().matrix()
            lens = lenses[image.camera_id]
            if not (np.isfinite(pose).all() and np.isfinite(lens.params).all()):
                raise SpatialError(f"the pose or camera of photo {image.name} holds NaN; reconstruct again")
            photos.append(PosedPhoto(image.name, paths[image.name], lens, torch.from_numpy(pose)))
    return sorted(photos, key=lambda photo: photo.name)


def points_of(reconstruction: Any) -> PointCloud:
    """The sparse points of a `pycolmap.Reconstruction`, in the order of their ids."""
    if not reconstruction.num_points3D():
        return empty_points()
    ordered = [point for _, point in sorted(reconstruction.points3D.items())]
    xyz = np.array([point.xyz for point in ordered])
    colors = np.array([point.color for point in ordered]) / 255.0
    keep = np.isfinite(xyz).all(axis=1)
    return PointCloud(torch.from_numpy(xyz[keep]).float(), torch.from_numpy(colors[keep]).float())


def write_colmap_model(folder: Path, views: Sequence[View], points: PointCloud) -> None:
    """Writes the views' pinhole cameras, poses and the points as a binary COLMAP model, and reads it back to check.

    The images it describes are what ``View.load(1.0)`` returns: undistorted and upright. Equal intrinsics share a
    camera. ``folder`` must be absent or empty.

    Raises:
        SpatialError: the disk refuses.
        AssertionError: what is read back differs.
    """
    model = _model_of(views, points)
    with atomic_path(folder) as temporary:
        temporary.mkdir(parents=True)
        model.write_binary(str(temporary))
        try:
            written = _read_model(temporary)
        except SpatialError as error:  # COLMAP does not notice a disk that fills up
            full = OSError(errno.ENOSPC, "short file")
            raise write_error(full, folder) or error from error
        _assert_same(written, views, points)


def read_pinhole_cameras(folder: Path) -> list[Camera]:
    """Cameras of a model that `write_colmap_model` wrote, by image name."""
    model = _read_model(folder)
    cameras = []
    for image in sorted(model.images.values(), key=lambda image: image.name):
        lens, pose = model.cameras[image.camera_id], torch.eye(4, dtype=torch.float64)
        pose[:3] = torch.from_numpy(image.cam_from_world().matrix())
        K = torch.from_numpy(lens.calibration_matrix().copy())
        cameras.append(Camera(K, pose, lens.width, lens.height))
    return cameras


def _is_model(folder: Path) -> bool:
    return folder.is_dir() and _suffix_of(folder) is not None


def _suffix_of(folder: Path) -> str | None:
    for suffix in (".bin", ".txt"):
        if (folder / f"cameras{suffix}").is_file() and (folder / f"images{suffix}").is_file():
            return suffix
    return None


def _read_model(path: Path) -> Any:
    """A `pycolmap.Reconstruction`; a model without its file of points has none."""
    import pycolmap

    suffix = _suffix_of(path) or ".bin"
    try:
        if suffix == ".bin":
            _check_whole(path)
        if (path / f"points3D{suffix}").is_file():
            return pycolmap.Reconstruction(str(path))
        with tempfile.TemporaryDirectory() as temporary:  # COLMAP refuses a model without the file
            for part in path.glob(f"*{suffix}"):
                (Path(temporary) / part.name).write_bytes(part.read_bytes())
            (Path(temporary) / f"points3D{suffix}").write_bytes(bytes(8) if suffix == ".bin" else b"")
            return pycolmap.Reconstruction(temporary)
    except (RuntimeError, ValueError, LookupError, MemoryError, OverflowError, struct.error) as error:
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        raise SpatialError(
            f"{path}: not a complete COLMAP model ({reason}); copy it again, or reconstruct from the photos"
        ) from error


def _check_whole(folder: Path) -> None:
    """COLMAP reads on past the end of a truncated binary file, for minutes or into whatever lay in memory."""
    for name, size_of in (("cameras", _camera_bytes), ("images", _image_bytes), ("points3D", _point_bytes)):
        path = folder / f"{name}.bin"
        if not path.is_file():
            continue
        content = path.read_bytes()
        try:
            position = 8
            for _ in range(*struct.unpack_from("<Q", content)):
                position += size_of(content, position)
        except (struct.error, ValueError) as error:
            raise ValueError(f"{path.name} is truncated or damaged") from error
        if position > len(content):
            raise ValueError(f"{path.name} is truncated")


def _camera_bytes(content: bytes, position: int) -> int:
    import pycolmap

    (model_id,) = struct.unpack_from("<i", content, position + 4)
    model = pycolmap.CameraModelId(model_id)
    return 24 + 8 * len(pycolmap.Camera.create_from_model_id(1, model, 1.0, 2, 2).params)


def _image_bytes(content: bytes, position: int) -> int:
    end_of_name = content.index(b"\0", position + 64)  # after the ids and the pose
    (num_points,) = struct.unpack_from("<Q", content, end_of_name + 1)
    return end_of_name + 9 + 24 * num_points - position


def _point_bytes(content: bytes, position: int) -> int:
    (track_length,) = struct.unpack_from("<Q", content, position + 43)  # after id, position, colour and error
    return 51 + 8 * track_length


def _find_images(folder: Path, model: Path, names: Sequence[str], images: Path | None) -> ImageIndex:
    if images is not None:
        return ImageIndex(Path(images))
    bases = dict.fromkeys([folder, model, *list(model.resolve().parents)[:3]])
    roots = dict.fromkeys(base / place for place in IMAGE_FOLDERS for base in bases)
    best, most = None, -1
    for root in roots:
        # "." and a far parent may hold anything: they are searched only where the usual folders hold nothing.
        if not root.is_dir() or (most > 0 and root.name not in IMAGE_FOLDERS):
            continue
        index = ImageIndex(root) if root.name in IMAGE_FOLDERS else _FlatIndex(root)
        count = index.count(names)
        if count > most:
            best, most = index, count
        if count == len(names):
            break
    assert best is not None  # the folder itself exists
    return best


class _FlatIndex(ImageIndex):
    """Only exact names: does not walk the folder, which may be someone's whole disk."""

    def __init__(self, root: Path) -> None:
        self.root, self.names, self._by_lower, self._by_stem = root, [], {}, {}


def _unregistered(index: ImageIndex, photos: list[PosedPhoto], models: list, used: Path) -> list[LeftOut]:
    used_paths = {photo.path for photo in photos}
    elsewhere = {
        image.name: path for path, model in models if path != used for image in model.images.values() if image.has_pose
    }
    left_out = []
    for name in index.names:
        is_mask = name.lower().startswith(("masks/", "mask/")) or Path(name).stem.lower().endswith("_mask")
        if index.root / name in used_paths or is_mask:
            continue
        reason = "not registered by COLMAP"
        if name in elsewhere:
            reason = f"registered only in the smaller, separate model {elsewhere[name].name}"
        left_out.append(LeftOut(name, reason))
    return left_out


def _describe(model: Any, path: Path, folder: Path, found: int, given: int, num_models: int) -> str:
    where = path.relative_to(folder).as_posix() if path != folder else "/".join(path.resolve().parts[-2:])
    largest = f", the largest of {num_models}" if num_models > 1 else ""
    points = f"{model.num_points3D():,} points"
    error = f", {model.compute_mean_reprojection_error():.2f} px" if model.num_points3D() else ""
    return f"COLMAP model {where}{largest}: {found} of {given} photos, {points}{error}"


def _model_of(views: Sequence[View], points: PointCloud) -> Any:
    import pycolmap

    model = pycolmap.Reconstruction()
    camera_ids: dict[tuple, int] = {}
    for image_id, view in enumerate(views, start=1):
        K = view.camera.K.double()
        params = [float(K[0, 0]), float(K[1, 1]), float(K[0, 2]), float(K[1, 2])]
        key = (view.camera.width, view.camera.height, *params)
        if key not in camera_ids:
            camera_ids[key] = len(camera_ids) + 1
            camera = pycolmap.Camera(
                camera_id=camera_ids[key],
                model="PINHOLE",
                width=view.camera.width,
                height=view.camera.height,
                params=params,
            )
            model.add_camera_with_trivial_rig(camera)
        image = pycolmap.Image(name=view.name, camera_id=camera_ids[key], image_id=image_id)
        model.add_image_with_trivial_frame(image, pycolmap.Rigid3d(view.camera.camera_from_world[:3].double().numpy()))
    colors = (points.colors * 255).round().clamp(0, 255).to(torch.uint8).numpy()
    for xyz, color in zip(points.points.double().numpy(), colors, strict=True):
        model.add_point3D(xyz, pycolmap.Track(), color)
    return model


def _assert_same(model: Any, views: Sequence[View], points: PointCloud) -> None:
    by_name = {image.name: image for image in model.images.values()}
    assert len(by_name) == len(views) and model.num_points3D() == len(points)
    for view in views:
        pose = by_name[view.name].cam_from_world().matrix()
        assert np.allclose(pose, view.camera.camera_from_world[:3].numpy(), atol=1e-6), view.name
        assert np.allclose(by_name[view.name].camera.calibration_matrix(), view.camera.K.numpy()), view.name
