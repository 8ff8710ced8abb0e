"""SuperSplat's compressed PLY: chunks of 256 Gaussians, each value quantised between its chunk's bounds.

Position and log-scale 11-10-11 bits, rotation 2 + 3 × 10 bits (smallest three, wxyz), colour and opacity 8 bits each,
SH (degrees 1 to 3) a byte each in [−4, 4]. About 16 bytes a Gaussian without SH.
Layout: https://github.com/playcanvas/splat-transform and the "PLY" page of the PlayCanvas manual.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt32
from plyfile import PlyData, PlyElement

from spatial.errors import SpatialError
from spatial.io.gaussian_arrays import (
    SH_C0,
    join_largest,
    limit_sh_degree,
    logit,
    morton_order,
    require_writable,
    sigmoid,
    split_largest,
    to_gaussians,
    to_numpy,
    unit_quats,
)
from spatial.io.ply import is_antialiased, parse_ply, write_elements
from spatial.structures import Gaussians

CHUNK = 256
_SH_RANGE = 8.0  # SH bytes cover [−4, 4]
_POSITION = ["x", "y", "z"]
_SCALE = ["scale_x", "scale_y", "scale_z"]
_COLOR = ["r", "g", "b"]
_PACKED = ["packed_position", "packed_rotation", "packed_scale", "packed_color"]


def is_compressed_ply(path: Path) -> bool:
    """Whether the header (not the name) is that of a compressed PLY."""
    with open(path, "rb") as file:
        return b"packed_position" in file.read(4096)


def read_compressed_ply(path: Path) -> Gaussians:
    """Gaussians of a compressed PLY, in the file's order.

    Raises:
        SpatialError: no such file, cut short, or not of this layout.
    """
    ply = parse_ply(path)
    vertex, chunk = _elements(ply, path)
    chunk_of = np.arange(len(vertex)) // CHUNK
    position = _unpack_11_10_11(vertex["packed_position"])
    color = _unpack_8888(vertex["packed_color"])
    rgb = color[:, :3]
    if "min_r" in {prop.name for prop in chunk.properties}:  # older files have colours in [0, 1]
        rgb = _between(chunk, _COLOR, chunk_of, rgb)
    sh = ((rgb - 0.5) / SH_C0)[:, None]
    if "sh" in ply:
        sh = np.concatenate([sh, _unpack_sh(ply["sh"], path, len(vertex))], axis=1)
    return to_gaussians(
        path,
        means=_between(chunk, _POSITION, chunk_of, position),
        quats=_unpack_rotation(vertex["packed_rotation"]),
        log_scales=_between(chunk, _SCALE, chunk_of, _unpack_11_10_11(vertex["packed_scale"])),
        logit_opacities=logit(color[:, 3]),
        sh=sh,
        antialiased=is_antialiased(ply),
    )


def write_compressed_ply(gaussians: Gaussians, path: Path) -> None:
    """Writes a compressed PLY, sorted along a Z-order curve so that chunks are compact. SH beyond degree 3 are cut off.

    Raises:
        SpatialError: NaN or infinity among the values, or the file could not be written.
    """
    require_writable(gaussians, path)
    gaussians = limit_sh_degree(gaussians, 3, path)
    order = morton_order(to_numpy(gaussians.means))
    sh = to_numpy(gaussians.sh)[order]
    position, position_bounds = _normalise(to_numpy(gaussians.means)[order], _POSITION)
    scale, scale_bounds = _normalise(np.clip(to_numpy(gaussians.log_scales)[order], -20, 20), _SCALE)
    rgb, rgb_bounds = _normalise(sh[:, 0] * SH_C0 + 0.5, _COLOR)
    opacity = sigmoid(to_numpy(gaussians.logit_opacities)[order])
    packed = {
        "packed_position": _pack(position, (11, 10, 11)),
        "packed_rotation": _pack_rotation(to_numpy(gaussians.quats)[order]),
        "packed_scale": _pack(scale, (11, 10, 11)),
        "packed_color": _pack(np.concatenate([rgb, opacity[:, None]], axis=1), (8, 8, 8, 8)),
    }
    bounds = {
        **{
            f"{side}_{name}": values
            for block in (position_bounds, scale_bounds)
            for (side, name), values in block.items()
        },
        **{f"{side}_{name}": values for (side, name), values in rgb_bounds.items()},
    }
    elements = [_element("chunk", bounds, "<f4"), _element("vertex", packed, "<u4")]
    if sh.shape[1] > 1:
        rest = sh[:, 1:].transpose(0, 2, 1).reshape(len(sh), -1)
        levels = np.clip(np.floor((rest / _SH_RANGE + 0.5) * 256), 0, 255)
        elements.append(_element("sh", {f"f_rest_{i}": levels[:, i] for i in range(rest.shape[1])}, "u1"))
    write_elements(elements, path, antialiased=gaussians.antialiased)


def _elements(ply: PlyData, path: Path) -> tuple[PlyElement, PlyElement]:
    for name in ("chunk", "vertex"):
        if name not in ply:
            raise SpatialError(f"{path}: a compressed PLY needs the element '{name}'; export the file again.")
    wanted = {"vertex": _PACKED, "chunk": [f"{side}_{name}" for side in ("min", "max") for name in _POSITION + _SCALE]}
    for element, names in wanted.items():
        present = {prop.name for prop in ply[element].properties}
        for name in names:
            if name not in present:
                raise SpatialError(f"{path}: property '{name}' of element '{element}' is missing; export it again.")
    if len(ply["chunk"].data) * CHUNK < len(ply["vertex"].data):
        raise SpatialError(f"{path}: {len(ply['chunk'].data)} chunks are too few for its Gaussians; export it again.")
    return ply["vertex"], ply["chunk"]


def _between(chunk: PlyElement, names: list[str], chunk_of: np.ndarray, unit: np.ndarray) -> Float[np.ndarray, "N D"]:
    """Values in [0, 1] stretched between each chunk's bounds."""
    low = np.stack([chunk[f"min_{name}"] for name in names], axis=1)[chunk_of]
    high = np.stack([chunk[f"max_{name}"] for name in names], axis=1)[chunk_of]
    return low * (1 - unit) + high * unit


def _bits(packed: UInt32[np.ndarray, "N"], shift: int, bits: int) -> Float[np.ndarray, "N"]:
    top = (1 << bits) - 1
    return ((packed >> shift) & top).astype(np.float32) / top


def _unpack_11_10_11(packed: UInt32[np.ndarray, "N"]) -> Float[np.ndarray, "N 3"]:
    return np.stack([_bits(packed, 21, 11), _bits(packed, 11, 10), _bits(packed, 0, 11)], axis=1)


def _unpack_8888(packed: UInt32[np.ndarray, "N"]) -> Float[np.ndarray, "N 4"]:
    return np.stack([_bits(packed, shift, 8) for shift in (24, 16, 8, 0)], axis=1)


def _unpack_rotation(packed: UInt32[np.ndarray, "N"]) -> Float[np.ndarray, "N 4"]:
    others = np.stack([_bits(packed, shift, 10) for shift in (20, 10, 0)], axis=1)
    return join_largest((packed >> 30).astype(np.int64), (others - 0.5) * np.sqrt(np.float32(2)))


def _unpack_sh(element: PlyElement, path: Path, count: int) -> Float[np.ndarray, "N K 3"]:
    names = [prop.name for prop in element.properties]
    if len(element.data) != count or len(names) not in (9, 24, 45):
        raise SpatialError(
            f"{path}: element 'sh' has {len(names)} properties of {len(element.data)} rows; export it again."
        )
    levels = np.stack([element[f"f_rest_{i}"] for i in range(len(names))], axis=1).astype(np.float32)
    # The ends of the range stand for exactly −4 and 4, all others for the middle of their bin.
    unit = np.where(levels == 0, 0, np.where(levels == 255, 1, (levels + 0.5) / 256))
    return ((unit - 0.5) * _SH_RANGE).reshape(count, 3, -1).transpose(0, 2, 1)


def _normalise(values: np.ndarray, names: list[str]) -> tuple[np.ndarray, dict[tuple[str, str], np.ndarray]]:
    """Values in [0, 1] within each chunk of 256, and the chunks' bounds by (side, name)."""
    starts = np.arange(0, len(values), CHUNK)
    low, high = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
    chunk_of = np.arange(len(values)) // CHUNK
    span = np.where(high > low, high - low, 1)[chunk_of]
    bounds = {("min", name): low[:, i] for i, name in enumerate(names)}
    bounds |= {("max", name): high[:, i] for i, name in enumerate(names)}
    return np.clip((values - low[chunk_of]) / span, 0, 1), bounds


def _pack(unit: Float[np.ndarray, "N D"], bits: tuple[int, ...]) -> UInt32[np.ndarray, "N"]:
    packed = np.zeros(len(unit), np.uint32)
    for column, count in zip(unit.T, bits, strict=True):
        top = (1 << count) - 1
        packed = packed << np.uint32(count) | np.rint(np.clip(column, 0, 1) * top).astype(np.uint32)
    return packed


def _pack_rotation(quats: Float[np.ndarray, "N 4"]) -> UInt32[np.ndarray, "N"]:
    largest, others = split_largest(unit_quats(quats))
    return largest.astype(np.uint32) << np.uint32(30) | _pack(others / np.sqrt(np.float32(2)) + 0.5, (10, 10, 10))


def _element(name: str, columns: dict[str, np.ndarray], dtype: str) -> PlyElement:
    rows = np.empty(len(next(iter(columns.values()))), dtype=[(column, dtype) for column in columns])
    for column, values in columns.items():
        rows[column] = values
    return PlyElement.describe(rows, name)
