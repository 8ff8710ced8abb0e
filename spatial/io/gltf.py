"""Gaussians as glTF (.glb, or .gltf in JSON) with the Khronos extension KHR_gaussian_splatting, kernel "ellipse".

What the extension's text settles: a POINTS primitive; ROTATION xyzw unit quaternions; SCALE linear; OPACITY after the
sigmoid; SH_DEGREE_l_COEF_n as VEC3, degrees 0 to 3, with the signs of 3D Gaussian Splatting; ``colorSpace`` names the
space in which splats are blended. glTF worlds have y up and z back: the capture's own numbers are kept and a half turn
about x is the node's matrix, so that viewers stand upright and reading gives back what was written.
Source: https://github.com/KhronosGroup/glTF/tree/main/extensions/2.0/Khronos/KHR_gaussian_splatting
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import torch
from jaxtyping import Float
from scipy.spatial.transform import Rotation

from spatial import __version__
from spatial.errors import SpatialError
from spatial.geometry.sh_rotation import transform_gaussians
from spatial.io.atomic import atomic_path
from spatial.io.gaussian_arrays import (
    SH_C0,
    limit_sh_degree,
    log_scale,
    logit,
    read_bytes,
    require_writable,
    sigmoid,
    to_gaussians,
    to_numpy,
    unit_quats,
    with_sh_degree,
)
from spatial.structures import Gaussians

logger = logging.getLogger(__name__)

EXTENSION = "KHR_gaussian_splatting"
_GLB_HEADER, _CHUNK_HEADER = struct.Struct("<4sII"), struct.Struct("<I4s")
_WORLD_FROM_GLTF = np.diag([1.0, -1.0, -1.0, 1.0])  # its own inverse
_DTYPES = {5120: "<i1", 5121: "<u1", 5122: "<i2", 5123: "<u2", 5125: "<u4", 5126: "<f4"}
_WIDTHS = {"SCALAR": 1, "VEC2": 2, "VEC3": 3, "VEC4": 4, "MAT4": 16}
_FLOAT, _BYTE, _ARRAY_BUFFER, _POINTS = 5126, 5121, 34962, 0


def read_gltf(path: Path) -> Gaussians:
    """All Gaussians of the file's scene in one set, each node's transform applied, in a world with y down, z forward.

    Raises:
        SpatialError: no glTF, cut short, no Gaussians in it, compressed by a further extension, or a node that mirrors
            or stretches its Gaussians unevenly.
    """
    document, binary = _open(path)
    try:
        parts = [
            _moved(_read_primitive(document, binary, primitive, path), matrix, path)
            for matrix, primitive in _splat_primitives(document)
        ]
    except (KeyError, IndexError, TypeError, ValueError, binascii.Error) as error:
        raise SpatialError(f"{path}: the glTF contradicts itself ({error!r}); export it again.") from error
    if not parts:
        raise SpatialError(f"{path}: no primitive carries {EXTENSION}, so there are no Gaussians; export it with it.")
    degree = max(part.sh_degree for part in parts)
    parts = [with_sh_degree(part, degree) for part in parts]
    names = ("means", "quats", "log_scales", "logit_opacities", "sh")
    merged = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
    return Gaussians(**merged, antialiased=any(part.antialiased for part in parts))


def write_gltf(gaussians: Gaussians, path: Path) -> None:
    """Writes float32 attributes and a COLOR_0 fallback for viewers that only know points; .gltf by that ending.

    Lost: SH beyond degree 3 and the quaternions' lengths. Whether the scene was trained antialiased has no place in the
    extension and goes to its ``extras``.

    Raises:
        SpatialError: NaN or infinity among the values, or the file could not be written.
    """
    require_writable(gaussians, path)
    document, binary = _build(limit_sh_degree(gaussians, 3, path))
    if Path(path).suffix.lower() == ".gltf":
        document["buffers"][0]["uri"] = "data:application/octet-stream;base64," + base64.b64encode(binary).decode()
        content = json.dumps(document).encode()
    else:
        content = _glb_bytes(document, binary)
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def _build(gaussians: Gaussians) -> tuple[dict[str, Any], bytes]:
    views: list[dict[str, Any]] = []
    accessors: list[dict[str, Any]] = []
    chunks: list[bytes] = []
    attributes = {}
    for name, values in _attributes(gaussians).items():
        data = values.tobytes()
        offset = sum(map(len, chunks))
        views.append({"buffer": 0, "byteOffset": offset, "byteLength": len(data), "target": _ARRAY_BUFFER})
        accessor: dict[str, Any] = {
            "bufferView": len(views) - 1,
            "componentType": _FLOAT if values.dtype == np.float32 else _BYTE,
            "count": len(values),
            "type": "SCALAR" if values.ndim == 1 else f"VEC{values.shape[1]}",
        }
        if name == "POSITION":
            accessor |= {"min": values.min(axis=0).tolist(), "max": values.max(axis=0).tolist()}
        if values.dtype == np.uint8:
            accessor["normalized"] = True
        attributes[name] = len(accessors)
        accessors.append(accessor)
        chunks.append(data)
    extension = {
        "kernel": "ellipse",
        "colorSpace": "srgb_rec709_display",
        "projection": "perspective",
        "sortingMethod": "cameraDistance",
        "extras": {"SplatRenderMode": "mip" if gaussians.antialiased else "default"},
    }
    primitive = {"attributes": attributes, "mode": _POINTS, "extensions": {EXTENSION: extension}}
    document = {
        "asset": {"version": "2.0", "generator": f"Spatial {__version__}"},
        "extensionsUsed": [EXTENSION],
        "scene": 0,
        "scenes": [{"nodes": [0]}],
        "nodes": [{"name": "Gaussians", "mesh": 0, "matrix": _WORLD_FROM_GLTF.T.reshape(-1).tolist()}],
        "meshes": [{"primitives": [primitive]}],
        "accessors": accessors,
        "bufferViews": views,
        "buffers": [{"byteLength": sum(map(len, chunks))}],
    }
    return document, b"".join(chunks)


def _attributes(gaussians: Gaussians) -> dict[str, np.ndarray]:
    """Semantic → [N, D] float32 or uint8, every row a multiple of four bytes as glTF's alignment asks."""
    sh = to_numpy(gaussians.sh)
    opacity = sigmoid(to_numpy(gaussians.logit_opacities)).astype(np.float32)
    attributes = {
        "POSITION": to_numpy(gaussians.means),
        "COLOR_0": _fallback_color(sh[:, 0], opacity),
        f"{EXTENSION}:ROTATION": unit_quats(to_numpy(gaussians.quats))[:, [1, 2, 3, 0]],
        f"{EXTENSION}:SCALE": np.exp(to_numpy(gaussians.log_scales)),
        f"{EXTENSION}:OPACITY": opacity,
    }
    for degree in range(gaussians.sh_degree + 1):
        for order in range(2 * degree + 1):
            attributes[f"{EXTENSION}:SH_DEGREE_{degree}_COEF_{order}"] = sh[:, degree * degree + order]
    return {name: np.ascontiguousarray(values) for name, values in attributes.items()}


def _fallback_color(base: Float[np.ndarray, "N 3"], opacity: Float[np.ndarray, "N"]) -> np.ndarray:
    """Linear colour and opacity in bytes: COLOR_0 is linear whereas the splats are display sRGB."""
    srgb = np.clip(base * SH_C0 + 0.5, 0, 1)
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    return np.rint(np.concatenate([linear, opacity[:, None]], axis=1) * 255).astype(np.uint8)


def _glb_bytes(document: dict[str, Any], binary: bytes) -> bytes:
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 4)
    binary += b"\0" * (-len(binary) % 4)
    chunks = _CHUNK_HEADER.pack(len(text), b"JSON") + text + _CHUNK_HEADER.pack(len(binary), b"BIN\0") + binary
    return _GLB_HEADER.pack(b"glTF", 2, _GLB_HEADER.size + len(chunks)) + chunks


def _open(path: Path) -> tuple[dict[str, Any], list[bytes]]:
    """The JSON document and the content of its buffers."""
    content = read_bytes(path)
    try:
        embedded = b""
        if content[:4] == b"glTF":
            _, version, length = _GLB_HEADER.unpack_from(content)
            if version != 2 or length > len(content):
                raise SpatialError(f"{path}: the .glb is cut short or not version 2; copy or export it again.")
            text_length, _ = _CHUNK_HEADER.unpack_from(content, _GLB_HEADER.size)
            start = _GLB_HEADER.size + _CHUNK_HEADER.size
            document = json.loads(content[start : start + text_length])
            embedded = content[start + text_length + _CHUNK_HEADER.size : length]
        else:
            document = json.loads(content)
        buffers = [_buffer(entry, embedded, path) for entry in document.get("buffers", [])]
    except (struct.error, ValueError, KeyError, AttributeError, TypeError) as error:
        raise SpatialError(f"{path}: cannot be read as glTF ({error}); copy or export the file again.") from error
    return document, buffers


def _buffer(entry: dict[str, Any], embedded: bytes, path: Path) -> bytes:
    uri = entry.get("uri")
    if uri is None:
        data = embedded
    elif uri.startswith("data:"):
        data = base64.b64decode(uri.partition(",")[2])
    else:
        data = read_bytes(Path(path).parent / unquote(uri))
    if len(data) < entry["byteLength"]:
        raise SpatialError(f"{path}: a buffer has {len(data)} of {entry['byteLength']} bytes; copy or export it again.")
    return data


def _splat_primitives(document: dict[str, Any]) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
    """(glTF world from node, primitive) of each primitive with Gaussians in the default scene, depth first."""
    scene = document["scenes"][document.get("scene", 0)]
    stack = [(np.eye(4), index) for index in reversed(scene.get("nodes", []))]
    while stack:
        parent, index = stack.pop()
        node = document["nodes"][index]
        matrix = parent @ _local_matrix(node)
        stack += [(matrix, child) for child in reversed(node.get("children", []))]
        if "mesh" in node:
            for primitive in document["meshes"][node["mesh"]]["primitives"]:
                if EXTENSION in primitive.get("extensions", {}):
                    yield matrix, primitive


def _local_matrix(node: dict[str, Any]) -> Float[np.ndarray, "4 4"]:
    if "matrix" in node:
        return np.asarray(node["matrix"], dtype=np.float64).reshape(4, 4).T
    matrix = np.eye(4)
    rotation = Rotation.from_quat(node.get("rotation", [0, 0, 0, 1])).as_matrix()
    matrix[:3, :3] = rotation * np.asarray(node.get("scale", [1, 1, 1]))
    matrix[:3, 3] = node.get("translation", [0, 0, 0])
    return matrix


def _read_primitive(document: dict[str, Any], buffers: list[bytes], primitive: dict[str, Any], path: Path) -> Gaussians:
    extension = primitive["extensions"][EXTENSION]
    if extension.get("extensions"):
        raise SpatialError(f"{path}: its Gaussians use {', '.join(extension['extensions'])}; export without it.")
    if extension.get("colorSpace") == "lin_rec709_display":
        logger.warning("%s: was trained in linear colours; they are shown here as if they were sRGB.", path)
    if extension.get("kernel") != "ellipse":
        logger.warning("%s: kernel '%s' is read as 'ellipse'.", path, extension.get("kernel"))
    attributes = primitive["attributes"]

    def values(semantic: str) -> np.ndarray:
        if semantic not in attributes:
            raise SpatialError(f"{path}: attribute '{semantic}' of the Gaussians is missing; export the file again.")
        return _accessor(document, buffers, attributes[semantic], path)

    degree = max(d for d in range(4) if d == 0 or f"{EXTENSION}:SH_DEGREE_{d}_COEF_0" in attributes)
    names = [f"{EXTENSION}:SH_DEGREE_{d}_COEF_{m}" for d in range(degree + 1) for m in range(2 * d + 1)]
    return to_gaussians(
        path,
        means=values("POSITION"),
        quats=values(f"{EXTENSION}:ROTATION")[:, [3, 0, 1, 2]],
        log_scales=log_scale(values(f"{EXTENSION}:SCALE")),
        logit_opacities=logit(values(f"{EXTENSION}:OPACITY")[:, 0]),
        sh=np.stack([values(name) for name in names], axis=1),
        antialiased=(extension.get("extras") or {}).get("SplatRenderMode") == "mip",
    )


def _accessor(document: dict[str, Any], buffers: list[bytes], index: int, path: Path) -> Float[np.ndarray, "N D"]:
    accessor = document["accessors"][index]
    if "sparse" in accessor or "bufferView" not in accessor:
        raise SpatialError(f"{path}: holds sparse or compressed accessors; export it without compression.")
    view = document["bufferViews"][accessor["bufferView"]]
    dtype, width = np.dtype(_DTYPES[accessor["componentType"]]), _WIDTHS[accessor["type"]]
    array = np.ndarray(
        (accessor["count"], width),
        dtype,
        buffers[view["buffer"]],
        view.get("byteOffset", 0) + accessor.get("byteOffset", 0),
        (view.get("byteStride", width * dtype.itemsize), dtype.itemsize),
    )
    values = array.astype(np.float32)
    if not accessor.get("normalized"):
        return values
    return np.maximum(values / np.iinfo(dtype).max, -1)


def _moved(gaussians: Gaussians, gltf_from_node: Float[np.ndarray, "4 4"], path: Path) -> Gaussians:
    matrix = _WORLD_FROM_GLTF @ gltf_from_node
    if np.array_equal(matrix, np.eye(4)):
        return gaussians  # our own files: not a bit changes
    try:
        return transform_gaussians(gaussians, torch.from_numpy(matrix))
    except ValueError as error:
        raise SpatialError(
            f"{path}: a node mirrors its Gaussians or stretches them unevenly; apply that in the tool that wrote it."
        ) from error
