"""PlayCanvas' SOG, version 2: quantised Gaussians as lossless WebP pictures in a zip with ``meta.json``.

Position 16 bits an axis on a logarithmic scale, rotation smallest three in bytes, scale and base colour through
codebooks of 256 values, opacity a byte, SH (degrees 1 to 3) through a palette of at most 65,536 entries. The world is
that of PLY.
Source: https://developer.playcanvas.com/user-manual/gaussian-splatting/formats/sog
"""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image, UnidentifiedImageError

from spatial import __version__
from spatial.errors import SpatialError
from spatial.io.atomic import atomic_path
from spatial.io.gaussian_arrays import (
    join_largest,
    limit_sh_degree,
    logit,
    morton_order,
    read_bytes,
    require_writable,
    sigmoid,
    split_largest,
    to_gaussians,
    to_numpy,
    unit_quats,
)
from spatial.io.kmeans import scalar_codebook, vector_codebook
from spatial.structures import Gaussians

_PALETTE_COLUMNS = 64
_QUAT_TAG = 252


def read_sog(path: Path) -> Gaussians:
    """Gaussians of a ``.sog`` bundle, in the file's order.

    Raises:
        SpatialError: no zip, cut short, parts missing, or version 1.
    """
    content = read_bytes(path)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            meta = json.loads(archive.read("meta.json"))
            if meta.get("version") != 2:
                raise SpatialError(f"{path}: is SOG version {meta.get('version', 1)}; write it as version 2.")
            return _decode(archive, meta, path)
    except (zipfile.BadZipFile, json.JSONDecodeError, UnidentifiedImageError, KeyError, IndexError, OSError) as error:
        raise SpatialError(f"{path}: cannot be read as SOG ({error}); copy or export the file again.") from error


def write_sog(gaussians: Gaussians, path: Path) -> None:
    """Writes a ``.sog`` bundle, sorted along a Z-order curve. Deterministic. SH beyond degree 3 are cut off.

    Raises:
        SpatialError: NaN or infinity among the values, or the file could not be written.
    """
    require_writable(gaussians, path)
    gaussians = limit_sh_degree(gaussians, 3, path)
    order = morton_order(to_numpy(gaussians.means))
    meta: dict[str, Any] = {
        "version": 2,
        "asset": {"generator": f"Spatial {__version__}"},
        "count": len(gaussians),
        "antialias": gaussians.antialiased,
        # splat-transform since 3.2 knows the same under this name
        "model": "antialiased" if gaussians.antialiased else "default",
    }
    pictures: dict[str, UInt8[np.ndarray, "H W 4"]] = {}
    _encode_means(to_numpy(gaussians.means)[order], meta, pictures)
    _encode_quats(to_numpy(gaussians.quats)[order], meta, pictures)
    _encode_scales(to_numpy(gaussians.log_scales)[order], meta, pictures)
    _encode_colors(to_numpy(gaussians.sh)[order, 0], to_numpy(gaussians.logit_opacities)[order], meta, pictures)
    if gaussians.sh_degree > 0:
        _encode_sh(to_numpy(gaussians.sh)[order, 1:], meta, pictures)
    with atomic_path(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
        for name, picture in pictures.items():
            archive.writestr(zipfile.ZipInfo(name), _webp(picture))
        archive.writestr(zipfile.ZipInfo("meta.json"), json.dumps(meta))


def _decode(archive: zipfile.ZipFile, meta: dict[str, Any], path: Path) -> Gaussians:
    count = meta["count"]

    def pixels(part: str, file: int = 0) -> UInt8[np.ndarray, "N 4"]:
        flat = _picture(archive, meta[part]["files"][file]).reshape(-1, 4)
        if len(flat) < count:
            raise SpatialError(f"{path}: the picture of '{part}' is too small for {count} Gaussians; export it again.")
        return flat[:count]

    quats, color = pixels("quats"), pixels("sh0")
    base = np.asarray(meta["sh0"]["codebook"], np.float32)[color[:, :3]]
    others = (quats[:, :3] / np.float32(255) * 2 - 1) / np.sqrt(np.float32(2))
    sh = base[:, None]
    if "shN" in meta:
        labels = pixels("shN", 1).astype(np.int64)
        rest = _palette(archive, meta["shN"])
        sh = np.concatenate([sh, rest[labels[:, 0] | labels[:, 1] << 8]], axis=1)
    return to_gaussians(
        path,
        means=_unpack_means(pixels("means", 0), pixels("means", 1), meta["means"]),
        quats=join_largest(np.clip(quats[:, 3].astype(np.int64) - _QUAT_TAG, 0, 3), others),
        log_scales=np.asarray(meta["scales"]["codebook"], np.float32)[pixels("scales")[:, :3]],
        logit_opacities=logit(color[:, 3] / np.float32(255)),
        sh=sh,
        antialiased=bool(meta.get("antialias")) or meta.get("model") == "antialiased",
    )


def _unpack_means(low: UInt8[np.ndarray, "N 4"], high: UInt8[np.ndarray, "N 4"], meta: dict[str, Any]) -> np.ndarray:
    unit = (low[:, :3] | high[:, :3].astype(np.uint16) << 8) / 65535.0
    mins, maxs = np.asarray(meta["mins"]), np.asarray(meta["maxs"])
    logs = mins + (maxs - mins) * unit
    return np.sign(logs) * np.expm1(np.abs(logs))


def _palette(archive: zipfile.ZipFile, meta: dict[str, Any]) -> Float[np.ndarray, "P K 3"]:
    count = (meta["bands"] + 1) ** 2 - 1
    picture = _picture(archive, meta["files"][0])
    levels = picture[..., :3].reshape(-1, count, 3)  # 64 entries a row, each `count` pixels wide
    return np.asarray(meta["codebook"], np.float32)[levels]


def _encode_means(means: Float[np.ndarray, "N 3"], meta: dict[str, Any], pictures: dict[str, np.ndarray]) -> None:
    logs = np.sign(means) * np.log1p(np.abs(means.astype(np.float64)))
    mins, maxs = logs.min(axis=0), logs.max(axis=0)
    levels = np.rint((logs - mins) / np.where(maxs > mins, maxs - mins, 1) * 65535).astype(np.uint16)
    meta["means"] = {"mins": mins.tolist(), "maxs": maxs.tolist(), "files": ["means_l.webp", "means_u.webp"]}
    pictures["means_l.webp"] = _texture(levels & 0xFF)
    pictures["means_u.webp"] = _texture(levels >> 8)


def _encode_quats(quats: Float[np.ndarray, "N 4"], meta: dict[str, Any], pictures: dict[str, np.ndarray]) -> None:
    largest, others = split_largest(unit_quats(quats))
    levels = np.clip(np.rint((others * np.sqrt(2) * 0.5 + 0.5) * 255), 0, 255)
    meta["quats"] = {"files": ["quats.webp"]}
    pictures["quats.webp"] = _texture(np.concatenate([levels, largest[:, None] + _QUAT_TAG], axis=1))


def _encode_scales(log_scales: Float[np.ndarray, "N 3"], meta: dict[str, Any], pictures: dict[str, np.ndarray]) -> None:
    codebook, labels = scalar_codebook(log_scales, 256)
    meta["scales"] = {"codebook": codebook.tolist(), "files": ["scales.webp"]}
    pictures["scales.webp"] = _texture(labels)


def _encode_colors(
    base: Float[np.ndarray, "N 3"],
    logits: Float[np.ndarray, "N"],
    meta: dict[str, Any],
    pictures: dict[str, np.ndarray],
) -> None:
    codebook, labels = scalar_codebook(base, 256)
    opacity = np.rint(sigmoid(logits) * 255)
    meta["sh0"] = {"codebook": codebook.tolist(), "files": ["sh0.webp"]}
    pictures["sh0.webp"] = _texture(np.concatenate([labels, opacity[:, None]], axis=1))


def _encode_sh(rest: Float[np.ndarray, "N K 3"], meta: dict[str, Any], pictures: dict[str, np.ndarray]) -> None:
    count = rest.shape[1]
    flat = torch.from_numpy(np.ascontiguousarray(rest.reshape(len(rest), -1)))
    entries, labels = vector_codebook(flat, _palette_size(len(rest)))
    codebook, levels = scalar_codebook(entries.numpy().reshape(-1, count, 3), 256)
    rows = -(-len(levels) // _PALETTE_COLUMNS)
    palette = np.zeros((rows * _PALETTE_COLUMNS, count, 4), np.uint8)
    palette[: len(levels), :, :3] = levels
    palette[..., 3] = 255
    label = labels.numpy()
    meta["shN"] = {
        "count": len(levels),
        "bands": int((count + 1) ** 0.5) - 1,
        "codebook": codebook.tolist(),
        "files": ["shN_centroids.webp", "shN_labels.webp"],
    }
    pictures["shN_centroids.webp"] = palette.reshape(rows, _PALETTE_COLUMNS * count, 4)
    pictures["shN_labels.webp"] = _texture(np.stack([label & 0xFF, label >> 8, np.zeros_like(label)], axis=1))


def _palette_size(count: int) -> int:
    """Half to all of the Gaussians, in powers of two up to 65,536: what labels of 16 bits can name."""
    return min(65536, 1 << (count.bit_length() - 1))


def _texture(channels: np.ndarray) -> UInt8[np.ndarray, "H W 4"]:
    """[N, 3 or 4] levels row by row into a nearly square picture with sides of multiples of four."""
    width = 4 * -(-int(np.ceil(np.sqrt(len(channels)))) // 4)
    height = 4 * -(-len(channels) // (4 * width))
    picture = np.zeros((height * width, 4), np.uint8)
    picture[:, 3] = 255
    picture[: len(channels), : channels.shape[1]] = channels
    return picture.reshape(height, width, 4)


def _webp(picture: UInt8[np.ndarray, "H W 4"]) -> bytes:
    buffer = io.BytesIO()
    # exact: colours under zero alpha are data here
    Image.fromarray(picture, "RGBA").save(buffer, "WEBP", lossless=True, exact=True, quality=90, method=4)
    return buffer.getvalue()


def _picture(archive: zipfile.ZipFile, name: str) -> UInt8[np.ndarray, "H W 4"]:
    with Image.open(io.BytesIO(archive.read(name))) as image:
        return np.asarray(image.convert("RGBA"))
