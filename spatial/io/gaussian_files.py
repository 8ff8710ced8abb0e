"""Gaussians from and to files of any supported format, chosen by the name's ending."""

from __future__ import annotations

from pathlib import Path

from spatial.errors import SpatialError
from spatial.io.atomic import make_folder
from spatial.io.compressed_ply import is_compressed_ply, read_compressed_ply, write_compressed_ply
from spatial.io.gltf import read_gltf, write_gltf
from spatial.io.ply import read_ply, write_ply
from spatial.io.sog import read_sog, write_sog
from spatial.io.splat import read_splat, write_splat
from spatial.io.spz import read_spz, write_spz
from spatial.structures import Gaussians

_READERS = {
    ".splat": read_splat,
    ".spz": read_spz,
    ".sog": read_sog,
    ".glb": read_gltf,
    ".gltf": read_gltf,
}
_WRITERS = {
    ".compressed.ply": write_compressed_ply,
    ".ply": write_ply,
    ".splat": write_splat,
    ".spz": write_spz,
    ".sog": write_sog,
    ".glb": write_gltf,
    ".gltf": write_gltf,
}
GAUSSIAN_SUFFIXES = tuple(_WRITERS)
"""Endings that ``load_gaussians`` and ``save_gaussians`` know."""


def load_gaussians(path: Path | str) -> Gaussians:
    """Gaussians in float32 on the CPU, in the capture's frame (y-up formats are turned back).

    A compressed PLY is known by its content, whatever its name.

    Raises:
        SpatialError: unknown ending, absent, damaged, or values that are not finite; the message says which.
    """
    path = Path(path)
    suffix = _suffix(path)
    if not path.is_file():
        raise SpatialError(f"{path}: there is no such file.")
    if suffix.endswith(".ply"):
        return read_compressed_ply(path) if is_compressed_ply(path) else read_ply(path)
    return _READERS[suffix](path)


def save_gaussians(gaussians: Gaussians, path: Path | str) -> None:
    """Writes the format that the name's ending says, completely or not at all.

    Raises:
        SpatialError: unknown ending, values that are not finite, disk full, or no permission.
    """
    path = Path(path)
    write = _WRITERS[_suffix(path)]
    make_folder(path.parent)
    write(gaussians, path)


def _suffix(path: Path) -> str:
    name = path.name.lower()
    for suffix in GAUSSIAN_SUFFIXES:
        if name.endswith(suffix):
            return suffix
    raise SpatialError(f"{path}: unknown kind of Gaussian file; supported endings are {', '.join(GAUSSIAN_SUFFIXES)}.")
