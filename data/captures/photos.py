"""The photos of a folder: which files are photos, what their headers say, and which are left out and why.

One policy for orientation, everywhere in captures. *Files* are described as stored: `Photo.width`, lens calibrations,
feature keypoints, masks and COLMAP models speak of the pixels before any EXIF rotation, as COLMAP itself does. *Views*
(`spatial.structures.View`, hence training, metrics, thumbnails and renders) are upright: after undistortion the image,
its mask and its pinhole camera are turned together by the EXIF orientation (`data.captures.posed_views`).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from PIL import Image, ImageFile, UnidentifiedImageError

from spatial.errors import SpatialError
from spatial.io.images import HEIF_REMEDY, HEIF_SUFFIXES, IMAGE_SUFFIXES, register_heif
from spatial.structures import LeftOut

RAW_SUFFIXES = {".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".raf"}
MASK_FOLDERS = {"masks", "mask"}
MIN_SIDE_PX = 16
FULL_FRAME_DIAGONAL_MM = 43.2666  # of 36 mm × 24 mm, to which "35 mm equivalent" refers (CIPA DCG-001)

# EXIF tags
ORIENTATION, EXIF_IFD = 0x0112, 0x8769
FOCAL_LENGTH, FOCAL_LENGTH_35MM = 0x920A, 0xA405
FOCAL_PLANE_X_RESOLUTION, FOCAL_PLANE_UNIT, EXIF_WIDTH = 0xA20E, 0xA210, 0xA002
DATE_TIME_ORIGINAL, SUB_SECONDS, OFFSET_TIME = 0x9003, 0x9291, 0x9011
MILLIMETRES_PER_UNIT = {2: 25.4, 3: 10.0, 4: 1.0}


@dataclass(frozen=True)
class Photo:
    """A readable photo on disk.

    Args:
        path: the file.
        name: path relative to the capture's root, '/'-separated.
        width, height: pixels as stored, before any EXIF rotation.
        exif_orientation: 1 to 8, 1 where the file says nothing.
        focal_px: focal length in stored pixels by EXIF, None where unknown.
        timestamp_us: capture time by EXIF in microseconds since 1970 (taken as UTC without an offset), None if unknown.
        content_hash: of the size and both ends of the file: cheap, and differs whenever a photo is replaced.
        has_alpha: the file has a channel of transparency (which may be opaque all over).
    """

    path: Path
    name: str
    width: int
    height: int
    exif_orientation: int = 1
    focal_px: float | None = None
    timestamp_us: int | None = None
    content_hash: str = ""
    has_alpha: bool = False


def find_photos(root: Path, *, min_photos: int = 2) -> tuple[list[Photo], list[LeftOut]]:
    """All photos below ``root``, sorted by name (a number within a name counts as a number), and what was left out.

    JPEG, PNG, WebP, TIFF, and HEIC with the extra ``heic``. Hidden files, ``masks`` folders and ``X_mask.png`` beside
    ``X.*`` are passed over in silence. Each file is decoded once, at the lowest resolution its format allows, so that a
    damaged one is found here and not an hour later.

    Raises:
        SpatialError: no such folder, or fewer than ``min_photos`` readable photos in it.
    """
    root = Path(root)
    if not root.is_dir():
        raise SpatialError(f"{root} is not a folder; give a folder of photos")
    register_heif()
    files = sorted(_visible_files(root), key=lambda path: natural_key(path.relative_to(root).as_posix()))
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        results = list(pool.map(lambda path: read_photo(path, path.relative_to(root).as_posix()), files))
    photos = [result for result in results if isinstance(result, Photo)]
    left_out = [result for result in results if isinstance(result, LeftOut)]
    if len(photos) < min_photos:
        raise SpatialError(_too_few(root, len(photos), min_photos, left_out))
    return photos, left_out


def read_photo(path: Path, name: str) -> Photo | LeftOut:
    """Header facts of one photo that decodes to its end, or the reason why it cannot be used."""
    suffix = path.suffix.lower()
    if suffix in RAW_SUFFIXES:
        return LeftOut(name, "a camera's raw file; develop it to JPEG or TIFF first")
    if suffix in HEIF_SUFFIXES and not register_heif():
        return LeftOut(name, f"HEIC needs an extra; {HEIF_REMEDY}")
    if suffix not in IMAGE_SUFFIXES | HEIF_SUFFIXES:
        return LeftOut(name, "not a photo (JPEG, PNG, WebP, TIFF or HEIC)")
    try:
        return _read_header_and_decode(path, name)
    except UnidentifiedImageError:
        return LeftOut(name, "not an image, or its header is damaged; copy it again from the camera")
    except Image.DecompressionBombError:
        return LeftOut(name, "more than 179 megapixels; scale it down first")
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        return LeftOut(name, f"damaged or truncated ({error}); copy it again from the camera")


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key by which ``img_9`` comes before ``img_10``."""
    parts = re.split(r"(\d+)", name)
    return tuple((1, int(part), part) if part.isdigit() and part.isascii() else (0, 0, part) for part in parts)


def _visible_files(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name.lower() not in MASK_FOLDERS)
        stems = {Path(name).stem for name in files}
        for name in files:
            stem = Path(name).stem
            is_mask = stem.lower().endswith("_mask") and stem[: -len("_mask")] in stems
            if not name.startswith(".") and not is_mask:
                yield Path(folder) / name


def _read_header_and_decode(path: Path, name: str) -> Photo | LeftOut:
    if path.stat().st_size == 0:
        return LeftOut(name, "empty file (0 bytes); copy it again from the camera")
    with Image.open(path) as image:
        width, height = image.size
        if min(width, height) < MIN_SIDE_PX:
            return LeftOut(name, f"only {width}×{height} pixels; at least {MIN_SIDE_PX} on each side are needed")
        exif = image.getexif()
        details = exif.get_ifd(EXIF_IFD)
        orientation = exif.get(ORIENTATION, 1)
        has_alpha = image.mode in {"RGBA", "LA", "PA"} or "transparency" in image.info
        if isinstance(image, ImageFile.ImageFile):
            image.draft("RGB", (max(1, width // 8), max(1, height // 8)))
        image.load()
    return Photo(
        path=path,
        name=name,
        width=width,
        height=height,
        exif_orientation=orientation if orientation in range(1, 9) else 1,
        focal_px=_focal_px(details, width, height),
        timestamp_us=_timestamp_us(details),
        content_hash=_content_hash(path),
        has_alpha=has_alpha,
    )


def _focal_px(details: dict, width: int, height: int) -> float | None:
    """From the 35 mm equivalent, else from the focal length and the sensor's pixel pitch."""
    equivalent_mm = _number(details.get(FOCAL_LENGTH_35MM))
    if equivalent_mm:
        return equivalent_mm / FULL_FRAME_DIAGONAL_MM * (width**2 + height**2) ** 0.5
    focal_mm = _number(details.get(FOCAL_LENGTH))
    pixels_per_unit = _number(details.get(FOCAL_PLANE_X_RESOLUTION))
    unit_mm = MILLIMETRES_PER_UNIT.get(details.get(FOCAL_PLANE_UNIT, 2))
    if not (focal_mm and pixels_per_unit and unit_mm):
        return None
    # The pitch holds for the image as the camera wrote it; a later resize leaves the tags as they were.
    resize = max(width, height) / (_number(details.get(EXIF_WIDTH)) or max(width, height))
    focal_px = focal_mm / unit_mm * pixels_per_unit * resize
    return focal_px if 0.2 < focal_px / max(width, height) < 20 else None


def _number(value: object) -> float | None:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    return number if 0 < number < float("inf") else None


def _timestamp_us(details: dict) -> int | None:
    try:
        taken = datetime.strptime(str(details[DATE_TIME_ORIGINAL]).strip("\0 "), "%Y:%m:%d %H:%M:%S")
    except (KeyError, ValueError):
        return None
    offset = re.fullmatch(r"([+-])(\d\d):(\d\d)", str(details.get(OFFSET_TIME, "")).strip("\0 "))
    if offset:
        shift = timedelta(hours=int(offset[2]), minutes=int(offset[3]))
        taken = taken - shift if offset[1] == "+" else taken + shift
    fraction = re.match(r"\d+", str(details.get(SUB_SECONDS, "")))
    microseconds = int(fraction[0].ljust(6, "0")[:6]) if fraction else 0
    return int(taken.replace(tzinfo=timezone.utc).timestamp()) * 1_000_000 + microseconds


def _content_hash(path: Path, *, end_bytes: int = 65536) -> str:
    size = path.stat().st_size
    digest = hashlib.blake2b(str(size).encode(), digest_size=16)
    with path.open("rb") as file:
        digest.update(file.read(end_bytes))
        if size > end_bytes:
            file.seek(max(end_bytes, size - end_bytes))
            digest.update(file.read(end_bytes))
    return digest.hexdigest()


def _too_few(root: Path, found: int, needed: int, left_out: list[LeftOut]) -> str:
    what = "no readable photo" if found == 0 else f"only {found} readable photo{'s' if found > 1 else ''}"
    named = "; ".join(f"{item.name}: {item.reason}" for item in left_out[:5])
    more = f" (and {len(left_out) - 5} more)" if len(left_out) > 5 else ""
    skipped = f" Skipped: {named}{more}." if left_out else ""
    return f"{root} holds {what}, at least {needed} overlapping ones are needed; add JPEG, PNG, WebP or TIFF.{skipped}"
