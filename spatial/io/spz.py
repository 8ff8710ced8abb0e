"""Niantic's SPZ: about a tenth of a PLY. Read in versions 2, 3 (gzip) and 4 (zstd streams), written as 3 or 4.

Positions in 24-bit fixed point, log-scales, opacities, colours and SH in bytes, rotations as smallest three (version 2:
x, y, z in bytes). Files hold a world with y up and z back ("RUB"); PLY and cameras here have y down and z forward, so
reading and writing make a half turn about x, with the harmonics' signs.
Source: the code and README of https://github.com/nianticlabs/spz (MIT).
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zstandard
from jaxtyping import Float, UInt8

from spatial.errors import SpatialError
from spatial.geometry.sh_rotation import half_turn_about_x
from spatial.io.atomic import atomic_path
from spatial.io.gaussian_arrays import (
    join_largest,
    limit_sh_degree,
    logit,
    read_bytes,
    require_writable,
    sigmoid,
    split_largest,
    to_gaussians,
    to_numpy,
    unit_quats,
)
from spatial.structures import Gaussians

_MAGIC = 0x5053474E
_LEGACY_HEADER = struct.Struct("<IIIBBBB")
_HEADER = struct.Struct("<IIIBBBBI12x")
_STREAM = struct.Struct("<QQ")
_ANTIALIASED, _HAS_EXTENSIONS = 0x1, 0x2
_COORDINATE_SYSTEM_EXTENSION, _RUB, _RDF = 0xADBE0003, 4, 6
_COLOR_SCALE = 0.15
_MAX_FRACTIONAL_BITS = 20
_ZSTD_LEVEL = 12


def read_spz(path: Path) -> Gaussians:
    """Gaussians in the file's order, turned from the file's y-up world to ours.

    Raises:
        SpatialError: no SPZ, cut short, damaged, of an unknown version, or in a mirrored coordinate system.
    """
    content = read_bytes(path)
    try:
        opened = _open_legacy(content) if content[:2] == b"\x1f\x8b" else _open_version_4(content)
    except (_DamagedError, struct.error, EOFError, OSError, zlib.error, zstandard.ZstdError) as error:
        raise SpatialError(f"{path}: cannot be read as SPZ ({error}); copy or export the file again.") from error
    count, fractional_bits, flags, extensions = (
        opened.num_points,
        opened.fractional_bits,
        opened.flags,
        opened.extensions,
    )
    positions, alphas, colors, scales, rotations, sh = opened.streams
    rest = (sh.reshape(count, -1, 3).astype(np.float32) - 128) / 128
    dc = (colors.reshape(count, 1, 3) / np.float32(255) - 0.5) / _COLOR_SCALE
    gaussians = to_gaussians(
        path,
        means=_unpack_positions(positions.reshape(count, 3, 3), fractional_bits),
        quats=_unpack_rotations(rotations.reshape(count, -1)),
        log_scales=scales.reshape(count, 3) / np.float32(16) - 10,
        logit_opacities=logit(alphas / np.float32(255)),
        sh=np.concatenate([dc, rest], axis=1),
        antialiased=bool(flags & _ANTIALIASED),
    )
    return half_turn_about_x(gaussians) if _coordinate_system(extensions, path) == _RUB else gaussians


def write_spz(gaussians: Gaussians, path: Path, *, version: int = 3, sh1_bits: int = 5, sh_rest_bits: int = 4) -> None:
    """Writes an SPZ. Version 3 is the default because most readers know it (4 dates from 2026 and is a third smaller).

    The position's step adapts to the scene's extent (2⁻²⁰ to 1 unit). Lost: precision (log-scales to 1/16, opacity and
    colour to 1/255, SH to a few bits), log-scales outside [−10, 5.94], base coefficients outside ±3.3, SH outside ±1.

    Args:
        gaussians: at most SH degree 4.
        path: the file.
        version: 3 (gzip) or 4 (zstd).
        sh1_bits, sh_rest_bits: precision of SH of degree 1 and beyond, 1 to 8; the defaults are those of the reference.

    Raises:
        SpatialError: NaN or infinity among the values, positions beyond 2²³, or the file could not be written.
    """
    require_writable(gaussians, path)
    turned = half_turn_about_x(limit_sh_degree(gaussians, 4, path))
    means = to_numpy(turned.means)
    fractional_bits = _fractional_bits(means, path)
    streams = [
        _pack_positions(means, fractional_bits),
        _byte(sigmoid(to_numpy(turned.logit_opacities)) * 255),
        _byte((to_numpy(turned.sh)[:, 0] * _COLOR_SCALE + 0.5) * 255),
        _byte((to_numpy(turned.log_scales) + 10) * 16),
        _pack_rotations(to_numpy(turned.quats)),
        _pack_sh(to_numpy(turned.sh)[:, 1:], sh1_bits, sh_rest_bits),
    ]
    flags = _ANTIALIASED if turned.antialiased else 0
    head = (_MAGIC, version, len(turned), turned.sh_degree, fractional_bits, flags)
    encode = {3: _legacy_bytes, 4: _version_4_bytes}[version]
    with atomic_path(path) as temporary:
        temporary.write_bytes(encode(head, [stream.tobytes() for stream in streams]))


class _DamagedError(Exception):
    """The content contradicts itself."""


class _Opened(NamedTuple):
    num_points: int
    fractional_bits: int
    flags: int
    streams: list[np.ndarray]  # positions, opacities, colours, scales, rotations, SH
    extensions: bytes


def _open_legacy(content: bytes) -> _Opened:
    data = gzip.decompress(content)
    magic, version, count, degree, fractional_bits, flags, _ = _LEGACY_HEADER.unpack_from(data)
    if magic != _MAGIC or version not in (2, 3):
        raise _DamagedError(f"gzip content of version {version}; versions 2, 3 and 4 are known")
    sizes = _stream_sizes(count, degree, version)
    end = _LEGACY_HEADER.size + sum(sizes)
    if len(data) < end:
        raise _DamagedError(f"{count} Gaussians need {end} bytes, the file unpacks to {len(data)}")
    ends = _LEGACY_HEADER.size + np.cumsum(sizes)
    streams = [np.frombuffer(data, np.uint8, size, stop - size) for size, stop in zip(sizes, ends, strict=True)]
    return _Opened(count, fractional_bits, flags, streams, data[end:] if flags & _HAS_EXTENSIONS else b"")


def _open_version_4(content: bytes) -> _Opened:
    magic, version, count, degree, fractional_bits, flags, num_streams, toc = _HEADER.unpack_from(content)
    if magic != _MAGIC:
        raise _DamagedError("it begins neither with 'NGSP' nor with gzip's mark")
    if version != 4:
        raise _DamagedError(f"version {version}; versions 2, 3 and 4 are known")
    sizes = _stream_sizes(count, degree, version)
    if num_streams != sum(size > 0 for size in sizes):
        raise _DamagedError(f"{num_streams} streams for SH degree {degree}")
    offset = toc + num_streams * _STREAM.size
    streams, entry = [], toc
    for size in sizes:
        if size == 0:
            streams.append(np.zeros(0, np.uint8))
            continue
        packed, unpacked = _STREAM.unpack_from(content, entry)
        if unpacked != size or offset + packed > len(content):
            raise _DamagedError("it is cut short, or its table of streams is wrong")
        raw = zstandard.ZstdDecompressor().decompress(content[offset : offset + packed], max_output_size=size)
        if len(raw) != size:
            raise _DamagedError(f"a stream unpacks to {len(raw)} bytes instead of {size}")
        streams.append(np.frombuffer(raw, np.uint8))
        offset, entry = offset + packed, entry + _STREAM.size
    extensions = content[_HEADER.size : toc] if flags & _HAS_EXTENSIONS else b""
    return _Opened(count, fractional_bits, flags, streams, extensions)


def _stream_sizes(count: int, degree: int, version: int) -> list[int]:
    """Bytes of positions, opacities, colours, scales, rotations and SH."""
    if degree > 4:
        raise _DamagedError(f"SH degree {degree}; 0 to 4 are known")
    return [
        9 * count,
        count,
        3 * count,
        3 * count,
        (3 if version == 2 else 4) * count,
        3 * ((degree + 1) ** 2 - 1) * count,
    ]


def _coordinate_system(extensions: bytes, path: Path) -> int:
    """The world that the data is in: "RUB" unless the extension SPZ_ADOBE_coordinate_system says otherwise."""
    offset = 0
    while offset + 8 <= len(extensions):
        kind, length = struct.unpack_from("<II", extensions, offset)
        if kind == _COORDINATE_SYSTEM_EXTENSION and length == 4:
            (system,) = struct.unpack_from("<I", extensions, offset + 8)
            if system in (0, _RUB):
                return _RUB
            if system == _RDF:
                return _RDF
            raise SpatialError(
                f"{path}: declares SPZ coordinate system {system}; only RUB (4) and RDF (6) are read. "
                "Convert it to RUB in the tool that wrote it."
            )
        offset += 8 + length
    return _RUB


def _unpack_positions(packed: UInt8[np.ndarray, "N 3 3"], fractional_bits: int) -> Float[np.ndarray, "N 3"]:
    wide = packed.astype(np.int32)
    fixed = wide[..., 0] | wide[..., 1] << 8 | wide[..., 2] << 16
    signed = np.where(fixed >= 1 << 23, fixed - (1 << 24), fixed)
    return signed / np.float64(1 << fractional_bits)


def _pack_positions(means: Float[np.ndarray, "N 3"], fractional_bits: int) -> UInt8[np.ndarray, "N 3 3"]:
    fixed = np.rint(means.astype(np.float64) * (1 << fractional_bits)).astype("<i4")
    return fixed[..., None].view(np.uint8)[..., :3]


def _fractional_bits(means: Float[np.ndarray, "N 3"], path: Path) -> int:
    """As many bits behind the point as the largest coordinate leaves of 23."""
    extent = float(np.abs(means).max(initial=0.0))
    if extent >= (1 << 23) - 1:
        raise SpatialError(f"{path}: SPZ holds coordinates up to 8388606, the scene has {extent:.6g}; write a PLY.")
    return max(0, min(_MAX_FRACTIONAL_BITS, 23 - math.frexp(extent * (1 + 1e-6))[1]))


def _unpack_rotations(packed: UInt8[np.ndarray, "N B"]) -> Float[np.ndarray, "N 4"]:
    if packed.shape[1] == 3:  # version 2: x, y, z; w ≥ 0
        xyz = packed / np.float32(127.5) - 1
        w = np.sqrt(np.clip(1 - np.square(xyz).sum(axis=1, keepdims=True), 0, None))
        return np.concatenate([w, xyz], axis=1)
    word = np.ascontiguousarray(packed).view("<u4")[:, 0]
    fields = np.stack([word >> 20, word >> 10, word], axis=1) & 0x3FF
    magnitude = (fields & 0x1FF) / np.float32(511) * np.sqrt(np.float32(0.5))
    others = np.where(fields & 0x200, -magnitude, magnitude)
    xyzw = join_largest((word >> 30).astype(np.int64), others)
    return xyzw[:, [3, 0, 1, 2]]


def _pack_rotations(quats: Float[np.ndarray, "N 4"]) -> UInt8[np.ndarray, "N 4"]:
    largest, others = split_largest(unit_quats(quats)[:, [1, 2, 3, 0]])
    word = largest.astype(np.uint32)
    for column in others.T:
        magnitude = np.clip(np.rint(np.abs(column) * 511 / np.sqrt(0.5)), 0, 511).astype(np.uint32)
        word = word << np.uint32(10) | (column < 0).astype(np.uint32) << np.uint32(9) | magnitude
    return word.astype("<u4")[:, None].view(np.uint8)


def _pack_sh(rest: Float[np.ndarray, "N K 3"], sh1_bits: int, sh_rest_bits: int) -> UInt8[np.ndarray, "N K 3"]:
    """SH in 8 bits around 128, rounded to the middle of coarser buckets so that they compress."""
    bits = np.where(np.arange(rest.shape[1]) < 3, sh1_bits, sh_rest_bits)
    bucket = (1 << (8 - bits))[:, None]
    level = np.rint(rest * 128).astype(np.int32) + 128
    return np.clip((level + bucket // 2) // bucket * bucket, 0, 255).astype(np.uint8)


def _byte(values: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


def _legacy_bytes(head: tuple[int, ...], streams: list[bytes]) -> bytes:
    return gzip.compress(_LEGACY_HEADER.pack(*head, 0) + b"".join(streams), compresslevel=6, mtime=0)


def _version_4_bytes(head: tuple[int, ...], streams: list[bytes]) -> bytes:
    compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)
    raw = [stream for stream in streams if stream]
    packed = [compressor.compress(stream) for stream in raw]
    toc = b"".join(_STREAM.pack(len(small), len(large)) for small, large in zip(packed, raw, strict=True))
    return _HEADER.pack(*head, len(raw), _HEADER.size) + toc + b"".join(packed)
