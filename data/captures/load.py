"""From what a user has on disk to a `Capture`: photos, a video, a COLMAP project, transforms.json, a Blender set."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from data.captures.check import check_poses
from data.captures.photos import find_photos
from data.captures.posed_views import make_views
from spatial.errors import SpatialError
from spatial.io.colmap import is_colmap_project, points_of, posed_photos_of, read_colmap_project
from spatial.io.images import HEIF_SUFFIXES, IMAGE_SUFFIXES
from spatial.io.posed_photos import PosedPhotos
from spatial.io.transforms_json import TRANSFORMS_NAMES, read_transforms_json
from spatial.io.video import VIDEO_SUFFIXES, extract_frames
from spatial.structures import Capture

logger = logging.getLogger(__name__)

ACCEPTED = (
    "give a folder of photos, a video, a COLMAP project (images/ and sparse/), a transforms.json, or a folder that "
    "holds one"
)


def load_capture(
    input: Path | str,
    *,
    work_dir: Path | str,
    max_image_size: int | None = None,
    num_frames: int = 120,
    images: Path | str | None = None,
    check: bool = True,
    seed: int = 0,
) -> Capture:
    """Posed, undistorted views of what ``input`` is; poses are reconstructed where it has none.

    A folder with a ``transforms.json`` or ``transforms_train.json`` is read by it, else a COLMAP model in it is, else
    its photos are posed. The world keeps the frame and scale of the file.

    Args:
        input: folder of photos, video file, COLMAP project or model folder, ``transforms.json`` or folder of one.
        work_dir: for what may be used again: frames of a video, features and poses of photos.
        max_image_size: longest side of the images in pixels; larger ones are scaled down, None keeps all.
        num_frames: frames to take from a video, the sharpest of as many equal intervals.
        images: folder of the images of a COLMAP model, where it is not in one of the usual places.
        check: compare neighbouring images with the poses given, so that a mix-up is found now and not after training.
        seed: of the reconstruction of poses.

    Raises:
        SpatialError: nothing of that kind there, or it cannot be used; says what was found and the remedy.
    """
    path, work_dir = Path(input).expanduser(), Path(work_dir)
    if not path.exists():
        raise SpatialError(f"{path} does not exist; {ACCEPTED}")
    if path.is_file():
        return _load_file(path, work_dir, max_image_size, num_frames, check, seed)
    transforms = next((path / name for name in TRANSFORMS_NAMES if (path / name).is_file()), None)
    if transforms is not None:
        return _from_poses(_name_of(path), read_transforms_json(transforms), max_image_size, check)
    if is_colmap_project(path):
        posed = read_colmap_project(path, images=None if images is None else Path(images))
        return _from_poses(_name_of(path), posed, max_image_size, check)
    _check_holds_photos(path)
    return _from_photos(_name_of(path), path, work_dir, max_image_size, seed, ordered=False)


def _load_file(
    path: Path, work_dir: Path, max_image_size: int | None, num_frames: int, check: bool, seed: int
) -> Capture:
    suffix = path.suffix.lower()
    if suffix == ".json":
        return _from_poses(_name_of(path.parent), read_transforms_json(path), max_image_size, check)
    if suffix in VIDEO_SUFFIXES:
        start = time.perf_counter()
        folder = extract_frames(path, work_dir / "frames", num_frames=num_frames)
        seconds = {"frames": time.perf_counter() - start}
        return _from_photos(path.stem, folder, work_dir, max_image_size, seed, ordered=True, seconds=seconds)
    if suffix in IMAGE_SUFFIXES | HEIF_SUFFIXES:
        raise SpatialError(f"{path} is one photo, several from different places are needed; give their folder")
    raise SpatialError(f"{path} is a {suffix or 'nameless'} file; {ACCEPTED}")


def _from_poses(name: str, posed: PosedPhotos, max_image_size: int | None, check: bool) -> Capture:
    made = make_views(posed.photos, max_image_size=max_image_size)
    if check:
        check_poses(made.views)
    return Capture(
        name=name,
        views=made.views,
        points=posed.points,
        left_out=sorted(posed.left_out + made.left_out, key=lambda item: item.name),
        source=posed.source,
        has_alpha=made.has_alpha,
    )


def _from_photos(
    name: str,
    folder: Path,
    work_dir: Path,
    max_image_size: int | None,
    seed: int,
    *,
    ordered: bool,
    seconds: dict[str, float] | None = None,
) -> Capture:
    from data.captures.sfm import reconstruct_poses

    start = time.perf_counter()
    photos, damaged = find_photos(folder)
    reading = time.perf_counter() - start
    result = reconstruct_poses(photos, folder, work_dir, ordered=ordered, seed=seed)
    by_name = {photo.name: photo for photo in photos}
    posed = posed_photos_of(result.reconstruction, {name: photo.path for name, photo in by_name.items()})
    made = make_views(posed, photos=by_name, max_image_size=max_image_size)
    return Capture(
        name=name,
        views=made.views,
        points=points_of(result.reconstruction),
        left_out=sorted([*damaged, *result.left_out, *made.left_out], key=lambda item: item.name),
        source=result.source,
        has_alpha=made.has_alpha,
        seconds={**(seconds or {}), "reading": reading, **result.seconds},
    )


def _name_of(folder: Path) -> str:
    """``fox`` for fox/, fox/images, fox/sparse/0."""
    resolved = folder.resolve()
    parts = [part for part in resolved.parts[1:] if part not in {"images", "input", "photos", "sparse", "colmap", "0"}]
    return parts[-1] if parts else resolved.name or "capture"


def _check_holds_photos(folder: Path) -> None:
    """A folder of videos, splats or nothing: say what is there instead of counting no photos."""
    known = IMAGE_SUFFIXES | HEIF_SUFFIXES
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    if not files:
        raise SpatialError(f"{folder} is empty; {ACCEPTED}")
    if any(path.suffix.lower() in known for path in files):
        return
    videos = [path for path in files if path.suffix.lower() in VIDEO_SUFFIXES]
    if videos:
        raise SpatialError(f"{folder} holds a video and no photos; give the video itself: {videos[0]}")
    kinds = sorted({path.suffix.lower() or "no suffix" for path in files})
    raise SpatialError(f"{folder} holds no photos ({len(files)} files: {', '.join(kinds[:6])}); {ACCEPTED}")
