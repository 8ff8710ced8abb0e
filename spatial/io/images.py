"""Images on disk to 8-bit sRGB arrays and back.

Pixels are returned as stored: EXIF rotation is not applied and an embedded ICC profile is not converted (phone photos
in Display-P3 look slightly less saturated than in a browser; every photo of a capture shares that, and so do renders).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageFile, UnidentifiedImageError

from spatial.errors import SpatialError
from spatial.io.atomic import atomic_path

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".jpe", ".png", ".webp", ".tif", ".tiff"}
HEIF_SUFFIXES = {".heic", ".heif"}
HEIF_REMEDY = "run: pip install 'spatial-ai[heic]'"
SIXTEEN_BIT_MODES = {"I;16", "I;16B", "I;16L", "I;16N", "I"}


class Pixels(NamedTuple):
    """An image in memory: colour, not premultiplied, and alpha where the file has any transparency."""

    rgb: UInt8[np.ndarray, "H W 3"]
    alpha: UInt8[np.ndarray, "H W"] | None


def read_image(path: Path, *, min_size: tuple[int, int] | None = None) -> Pixels:
    """Reads colour and alpha, 8 bits a channel. Grey, palette, CMYK and 16-bit images are converted.

    Args:
        path: JPEG, PNG, WebP, TIFF, or HEIC where ``pillow-heif`` is installed.
        min_size: (width, height) that suffices. A JPEG is then decoded at 1/2, 1/4 or 1/8 of its size, which saves most
            of the time and memory, so long as the result is no smaller; other formats come at full size.

    Raises:
        SpatialError: the file is missing, damaged, truncated, or no image.
    """
    if Path(path).suffix.lower() in HEIF_SUFFIXES and not register_heif():
        raise SpatialError(f"{path}: HEIC needs an extra; {HEIF_REMEDY}")
    try:
        with Image.open(path) as image:
            if min_size is not None and isinstance(image, ImageFile.ImageFile):
                image.draft(None, min_size)
            image.load()
            return _to_pixels(image)
    except FileNotFoundError as error:
        raise SpatialError(f"{path} does not exist; was it moved since the capture was read?") from error
    except UnidentifiedImageError as error:
        raise SpatialError(f"{path} is not an image, or its header is damaged; copy it again") from error
    except Image.DecompressionBombError as error:
        raise SpatialError(f"{path} has more than 179 megapixels; scale it down first") from error
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise SpatialError(f"{path} is damaged or truncated ({error}); copy it again or remove it") from error


def read_size(path: Path) -> tuple[int, int, int]:
    """Width, height as stored, and EXIF orientation (1 to 8), from the header alone.

    Raises:
        SpatialError: the file is missing or no image.
    """
    if Path(path).suffix.lower() in HEIF_SUFFIXES and not register_heif():
        raise SpatialError(f"{path}: HEIC needs an extra; {HEIF_REMEDY}")
    try:
        with Image.open(path) as image:
            # Pillow decodes a whole PNG in search of a late EXIF chunk: asked only where the header announces one.
            exif = image.getexif() if image.format != "PNG" or "exif" in image.info else {}
            orientation = exif.get(0x0112, 1)
            return image.width, image.height, orientation if orientation in range(1, 9) else 1
    except FileNotFoundError as error:
        raise SpatialError(f"{path} does not exist") from error
    except (OSError, SyntaxError, ValueError) as error:
        raise SpatialError(f"{path} is not an image, or its header is damaged; copy it again") from error


def read_mask(path: Path) -> UInt8[np.ndarray, "H W"]:
    """A mask file as 8-bit keep-coverage: white keeps. With an alpha channel that is not full, alpha is the mask."""
    pixels = read_image(path)
    return pixels.alpha if pixels.alpha is not None else pixels.rgb.max(axis=2)


def write_image(path: Path, image: UInt8[np.ndarray, "H W *channels"], *, quality: int = 95) -> None:
    """Writes [H, W, 3], [H, W, 4] or [H, W] uint8 in the format of the suffix; whole or not at all."""
    with atomic_path(path) as temporary:
        is_jpeg = temporary.suffix.lower() in {".jpg", ".jpeg"}
        options: dict[str, Any] = {"quality": quality, "subsampling": 0} if is_jpeg else {}
        Image.fromarray(np.ascontiguousarray(image)).save(temporary, **options)


def register_heif() -> bool:
    """Teaches Pillow HEIC; False where ``pillow-heif`` is not installed."""
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        return False
    register_heif_opener()
    return True


def _to_pixels(image: Image.Image) -> Pixels:
    if image.mode in SIXTEEN_BIT_MODES:
        wide = np.asarray(image).astype(np.int64)
        # "I" may hold 8 or 16 bits: told apart by the values.
        is_wide = image.mode != "I" or wide.max(initial=0) > 255
        grey = (wide // 257 if is_wide else wide).clip(0, 255).astype(np.uint8)
        return Pixels(np.repeat(grey[:, :, None], 3, axis=2), None)
    if image.mode in {"RGBA", "LA", "PA", "La", "RGBa"} or "transparency" in image.info:
        rgba = np.asarray(image.convert("RGBA"))
        alpha = rgba[:, :, 3]
        return Pixels(np.ascontiguousarray(rgba[:, :, :3]), None if alpha.min() == 255 else alpha.copy())
    return Pixels(np.asarray(image if image.mode == "RGB" else image.convert("RGB")), None)
