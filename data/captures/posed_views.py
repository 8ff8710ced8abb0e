"""From posed photos to `View`s: undistorted, turned upright by EXIF, masked, and read only when asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from data.captures.byte_cache import ByteCache
from data.captures.masks import find_mask
from data.captures.photos import Photo, read_photo
from spatial.errors import SpatialError
from spatial.geometry.distortion import (
    Pinhole,
    UndistortionMap,
    is_pinhole,
    pinhole_for,
    resized_lens,
    undistortion_map,
)
from spatial.io.images import Pixels, read_image, read_mask
from spatial.io.posed_photos import PosedPhoto
from spatial.structures import Camera, LeftOut, View

QUARTER_TURNS_CLOCKWISE = {3: 2, 6: 1, 8: 3}  # by EXIF orientation; mirrored ones (2, 4, 5, 7) are left as stored
MAP_CACHE_BYTES = 256 << 20
MAX_ASPECT_DIFFERENCE = 0.02
ALPHA_IN_SCENE = 128  # of 255, after resampling: half transparent edges of objects split evenly
COVERAGE_IN_SCENE = 253  # of 255, after resampling: a pixel that a mask file covers in part is out


class PosedViews(NamedTuple):
    """Views sorted by name, photos that could not be used, and whether alpha or masks say "not part of the scene"."""

    views: list[View]
    left_out: list[LeftOut]
    has_alpha: bool


def make_views(
    posed: Sequence[PosedPhoto], *, photos: Mapping[str, Photo] | None = None, max_image_size: int | None = None
) -> PosedViews:
    """Undistorted, upright views of posed photos.

    Each photo is decoded once, cheaply, to find damaged ones now; those of ``photos`` have been already.

    Args:
        posed: lens and pose of each photo, for its pixels as stored (or as displayed, if only that fits its size).
        photos: by name, where they have been read before.
        max_image_size: longest side in pixels of what ``load(1.0)`` returns; None for the photo's own.

    Raises:
        SpatialError: no photo can be used, or photos have a size that cannot be the camera's.
    """
    known = dict(photos or {})
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        read = list(pool.map(lambda item: known.get(item.name) or read_photo(item.path, item.name), posed))
    maps: ByteCache[UndistortionMap] = ByteCache(MAP_CACHE_BYTES)
    pinholes: dict[tuple, tuple[Pinhole, bool]] = {}
    views: list[View] = []
    left_out: list[LeftOut] = []
    misfits: list[LeftOut] = []  # of another shape than their camera
    for item, photo in zip(posed, read, strict=True):
        if isinstance(photo, LeftOut):
            left_out.append(photo)
        elif (fitted := _fit(item.lens, photo)) is None:
            misfits.append(LeftOut(item.name, _misfit(item, photo)))
        else:
            mask = item.mask_path or find_mask(item.path, item.name)
            views.append(_view(item, photo, fitted, mask, maps, pinholes, max_image_size))
    if len(misfits) * 2 > len(posed):
        raise SpatialError(
            f"poses and images do not belong together: {misfits[0].name}: {misfits[0].reason}; so are "
            f"{len(misfits)} of {len(posed)}. Give the images that the poses were made from"
        )
    if not views:
        reasons = "; ".join(f"{item.name}: {item.reason}" for item in left_out[:3])
        raise SpatialError(f"none of the {len(posed)} posed photos can be read ({reasons})")
    views.sort(key=lambda view: view.name)
    return PosedViews(views, left_out + misfits, _has_alpha(views))


class FittedLens(NamedTuple):
    """The lens at the photo's size, for its pixels as stored (then turned upright) or already upright."""

    lens: Any
    width: int
    height: int
    turns_before: int
    turns_after: int


@dataclass(frozen=True)
class PhotoLoader:
    """Reads, undistorts, resamples and turns one photo: what ``View.load`` is.

    Args:
        photo: the file.
        fitted: its lens.
        pinhole: the undistorted image at full size, before ``fitted.turns_after``.
        distorts: the lens differs from the pinhole.
        base_size: (width, height) of the returned image at scale 1.
        mask_path: file whose white pixels belong to the scene.
        maps: undistortion maps, shared by photos of the same lens.
    """

    photo: Photo
    fitted: FittedLens
    pinhole: Pinhole
    distorts: bool
    base_size: tuple[int, int]
    mask_path: Path | None
    maps: ByteCache[UndistortionMap]

    def __call__(self, scale: float) -> tuple[UInt8[np.ndarray, "H W 3"], Bool[np.ndarray, "H W"] | None]:
        """Image and mask at ``scale``.

        Raises:
            SpatialError: the file has been removed or damaged since.
        """
        size = (max(1, round(self.base_size[0] * scale)), max(1, round(self.base_size[1] * scale)))
        if self.fitted.turns_after % 2:
            size = (size[1], size[0])
        pixels = self._read(size)
        rgb, mask = self._in_scene(pixels, size)
        return _turned(rgb, self.fitted.turns_after), None if mask is None else _turned(mask, self.fitted.turns_after)

    def _read(self, size: tuple[int, int]) -> Pixels:
        """Decodes at the lowest resolution that still has two pixels for each one wanted."""
        shrink = next((f for f in (8, 4, 2) if self._may_shrink(f, size)), 1)
        width, height = self.photo.width // shrink, self.photo.height // shrink
        pixels = read_image(self.photo.path, min_size=None if shrink == 1 else (width, height))
        turns = self.fitted.turns_before
        return Pixels(_turned(pixels.rgb, turns), None if pixels.alpha is None else _turned(pixels.alpha, turns))

    def _may_shrink(self, factor: int, size: tuple[int, int]) -> bool:
        """A size that the factor divides shrinks exactly; else the last pixel would stand for less than the others."""
        divides = self.photo.width % factor == 0 and self.photo.height % factor == 0
        # A quarter of an odd number of pixels rounds up: hence a little less than twice.
        large = min(self.pinhole.width / size[0], self.pinhole.height / size[1]) >= 1.98 * factor
        return divides and large

    def _in_scene(self, pixels: Pixels, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray | None]:
        if pixels.alpha is None:
            rgb, mask = self._resampled(pixels.rgb, size), None
        else:  # colours of transparent pixels must not bleed into the edge
            weight = pixels.alpha[:, :, None].astype(np.float32) / 255
            premultiplied = self._resampled(np.concatenate([pixels.rgb * weight, weight], axis=2), size)
            alpha = premultiplied[:, :, 3:]
            rgb = (premultiplied[:, :, :3] / np.maximum(alpha, 1e-3)).round().clip(0, 255).astype(np.uint8)
            mask = alpha[:, :, 0] * 255 >= ALPHA_IN_SCENE
        if self.mask_path is not None:
            keep = self._resampled(self._read_mask(pixels.rgb.shape[1], pixels.rgb.shape[0]), size) >= COVERAGE_IN_SCENE
            mask = keep if mask is None else mask & keep
        return rgb, mask

    def _read_mask(self, width: int, height: int) -> UInt8[np.ndarray, "H W"]:
        assert self.mask_path is not None
        mask = read_mask(self.mask_path)
        stored = (self.photo.width > self.photo.height) == (mask.shape[1] > mask.shape[0])
        mask = _turned(mask, self.fitted.turns_before if stored else -self.fitted.turns_after)
        if abs(mask.shape[1] / mask.shape[0] * height / width - 1) > MAX_ASPECT_DIFFERENCE:
            raise SpatialError(
                f"{self.mask_path} is {mask.shape[1]}×{mask.shape[0]} pixels and its photo {self.photo.name} "
                f"{self.photo.width}×{self.photo.height}: not the same shape; make the mask at the photo's size"
            )
        mask = np.where(mask >= 128, np.uint8(255), np.uint8(0))
        if mask.shape == (height, width):
            return mask
        smaller = mask.shape[1] > width
        return cv2.resize(mask, (width, height), interpolation=cv2.INTER_AREA if smaller else cv2.INTER_NEAREST)

    def _resampled(self, image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        """Undistorted at the resolution of the decoded image, then averaged by area."""
        mapping = self._map(image.shape[1], image.shape[0])
        if mapping is not None:
            image = mapping.apply(image)
        if (image.shape[1], image.shape[0]) == size:
            return image
        return cv2.resize(image, size, interpolation=cv2.INTER_AREA)

    def _map(self, width: int, height: int) -> UndistortionMap | None:
        lens, full = self.fitted.lens, self.pinhole
        if not self.distorts:
            return None
        key = (lens.model_name, lens.params.tobytes(), lens.width, lens.height, width, height)
        mapping = self.maps.get(key)
        if mapping is None:
            to_width = round(full.width * width / self.fitted.width)
            to_height = round(full.height * height / self.fitted.height)
            scale = np.array([to_width / full.width, to_height / full.height, 1.0])
            mapping = undistortion_map(
                resized_lens(lens, width, height), Pinhole(full.K * scale[:, None], to_width, to_height)
            )
            self.maps.put(key, mapping, mapping.nbytes)
        return mapping


def _fit(lens: Any, photo: Photo) -> FittedLens | None:
    """The lens at the photo's size; None where neither the stored nor the upright photo has the lens's proportions."""
    turns = QUARTER_TURNS_CLOCKWISE.get(photo.exif_orientation, 0)
    stored, upright = (photo.width, photo.height), (photo.height, photo.width)
    if _same_shape(lens, *stored):
        return FittedLens(resized_lens(lens, *stored), *stored, 0, turns)
    if turns % 2 and _same_shape(lens, *upright):
        return FittedLens(resized_lens(lens, *upright), *upright, turns, 0)
    return None


def _same_shape(lens: Any, width: int, height: int) -> bool:
    # A whole pixel either way: images halved thrice are rounded thrice.
    tolerance = MAX_ASPECT_DIFFERENCE + 1 / min(width, height)
    return abs(lens.width / lens.height * height / width - 1) < tolerance


def _misfit(item: PosedPhoto, photo: Photo) -> str:
    return f"the photo is {photo.width}×{photo.height} pixels, its camera {item.lens.width}×{item.lens.height}"


def _view(
    item: PosedPhoto,
    photo: Photo,
    fitted: FittedLens,
    mask_path: Path | None,
    maps: ByteCache[UndistortionMap],
    pinholes: dict[tuple, tuple[Pinhole, bool]],
    max_image_size: int | None,
) -> View:
    key = (fitted.lens.model_name, fitted.lens.params.tobytes(), fitted.width, fitted.height)
    if key not in pinholes:
        pinholes[key] = pinhole_for(fitted.lens), not is_pinhole(fitted.lens)
    pinhole, distorts = pinholes[key]
    camera = upright_camera(pinhole, item.camera_from_world, fitted.turns_after)
    longest = max(camera.width, camera.height)
    if max_image_size is not None and longest > max_image_size:
        scale = max_image_size / longest
        camera = camera.resized(max(1, round(camera.width * scale)), max(1, round(camera.height * scale)))
    loader = PhotoLoader(photo, fitted, pinhole, distorts, (camera.width, camera.height), mask_path, maps)
    return View(item.name, camera, loader, photo.timestamp_us, photo.path)


def upright_camera(pinhole: Pinhole, camera_from_world: Float[Tensor, "4 4"], turns: int) -> Camera:
    """The camera of the pinhole image turned clockwise by ``turns`` quarters, standing where it stood."""
    K, pose = torch.from_numpy(pinhole.K).double().clone(), camera_from_world.double()
    width, height = pinhole.width, pinhole.height
    quarter = torch.tensor([[0, -1, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], dtype=torch.float64)
    for _ in range(turns % 4):  # (u, v) → (height − v, u), hence (x, y) → (−y, x)
        fx, fy, cx, cy = K[0, 0].item(), K[1, 1].item(), K[0, 2].item(), K[1, 2].item()
        K = torch.tensor([[fy, 0, height - cy], [0, fx, cx], [0, 0, 1]], dtype=torch.float64)
        width, height, pose = height, width, quarter @ pose
    return Camera(K=K, camera_from_world=pose, width=width, height=height)


def _turned(image: np.ndarray, turns: int) -> np.ndarray:
    return np.ascontiguousarray(np.rot90(image, -turns)) if turns % 4 else image


def _has_alpha(views: Sequence[View]) -> bool:
    """Whether any photo has a mask file, or a channel of transparency that is not opaque in the first few that do."""
    loaders = [view.load for view in views if isinstance(view.load, PhotoLoader)]
    if any(loader.mask_path is not None for loader in loaders):
        return True
    transparent = [loader for loader in loaders if loader.photo.has_alpha]
    return any(read_image(loader.photo.path).alpha is not None for loader in transparent[:5])
