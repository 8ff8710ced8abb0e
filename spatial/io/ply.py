"""Gaussians as PLY in the layout of the INRIA reference code, which every tool reads.

One ``vertex`` element: x y z, [nx ny nz], f_dc_0…2, f_rest_* channel by channel (all red, then green, then blue),
opacity (logit), scale_0…2 (natural log), rot_0…3 (wxyz). The header comment ``SplatRenderMode: mip|default``, shared by
Brush and gsplat, says whether the scene was trained antialiased.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from plyfile import PlyData, PlyElement, PlyParseError

from spatial.errors import SpatialError
from spatial.io.atomic import atomic_path
from spatial.io.gaussian_arrays import (
    read_bytes,
    require_finite,
    require_writable,
    to_gaussians,
    to_numpy,
    with_sh_degree,
)
from spatial.structures import Gaussians

RENDER_MODE = "SplatRenderMode"
_MEANS = ["x", "y", "z"]
_SCALES = ["scale_0", "scale_1", "scale_2"]
_QUATS = ["rot_0", "rot_1", "rot_2", "rot_3"]
_SH_DC = ["f_dc_0", "f_dc_1", "f_dc_2"]
_LARGEST_LOGIT = 13.8  # of an opacity 1 − 1e-6


def read_ply(path: Path, *, sh_degree: int | None = None) -> Gaussians:
    """Gaussians of a PLY in the INRIA layout, ASCII or binary, properties in any order and of any number type.

    Infinite opacities (SPZ converters write them for "opaque") are accepted: their meaning is clear.

    Args:
        path: the file.
        sh_degree: pad with zeros or cut off to this degree; by default what the file has (0 to 4).

    Raises:
        SpatialError: no PLY, truncated, a property missing, NaN or infinity, an impossible number of ``f_rest_*``.
    """
    ply = parse_ply(path)
    columns = _gaussian_columns(ply, path)
    opacity = columns["opacity"]
    columns["opacity"] = np.where(np.isinf(opacity), np.clip(opacity, -_LARGEST_LOGIT, _LARGEST_LOGIT), opacity)
    if len(opacity) == 0:
        raise SpatialError(f"{path}: holds no Gaussians; export it again.")
    require_finite(path, columns)
    stack = lambda names: np.stack([columns[name] for name in names], axis=1)  # noqa: E731
    rest = [name for name in columns if name.startswith("f_rest_")]
    sh = stack(_SH_DC)[:, None]
    if rest:
        sh = np.concatenate([sh, stack(rest).reshape(len(sh), 3, -1).transpose(0, 2, 1)], axis=1)
    gaussians = to_gaussians(
        path,
        means=stack(_MEANS),
        quats=stack(_QUATS),
        log_scales=stack(_SCALES),
        logit_opacities=columns["opacity"],
        sh=sh,
        antialiased=is_antialiased(ply),
    )
    return gaussians if sh_degree is None else with_sh_degree(gaussians, sh_degree)


def write_ply(gaussians: Gaussians, path: Path) -> None:
    """Writes binary little-endian float32, nx ny nz as zeros as the reference code does. Loses nothing.

    Raises:
        SpatialError: NaN or infinity among the values, or the file could not be written.
    """
    require_writable(gaussians, path)
    sh = to_numpy(gaussians.sh)
    rest = sh[:, 1:].transpose(0, 2, 1).reshape(len(sh), -1)
    blocks = [
        (_MEANS, to_numpy(gaussians.means)),
        (["nx", "ny", "nz"], np.zeros((len(sh), 3), np.float32)),
        (_SH_DC, sh[:, 0]),
        ([f"f_rest_{i}" for i in range(rest.shape[1])], rest),
        (["opacity"], to_numpy(gaussians.logit_opacities)[:, None]),
        (_SCALES, to_numpy(gaussians.log_scales)),
        (_QUATS, to_numpy(gaussians.quats)),
    ]
    names = [name for block, _ in blocks for name in block]
    values = np.concatenate([values for _, values in blocks], axis=1).astype("<f4")
    vertices = values.view([(name, "<f4") for name in names])[:, 0]
    write_elements([PlyElement.describe(vertices, "vertex")], path, antialiased=gaussians.antialiased)


def parse_ply(path: Path) -> PlyData:
    """The parsed file; SpatialError where it is absent, no PLY, or shorter than its header says."""
    if not read_bytes(path, limit=4).startswith((b"ply\n", b"ply\r")):
        raise SpatialError(f"{path}: is not a PLY file (it does not begin with 'ply'); check the file's name.")
    try:
        return PlyData.read(str(path))
    except (PlyParseError, ValueError, UnicodeDecodeError) as error:
        raise SpatialError(
            f"{path}: the PLY is damaged or cut short ({error}); copy or export the file again."
        ) from error


def write_elements(elements: list[PlyElement], path: Path, *, antialiased: bool) -> None:
    mode = "mip" if antialiased else "default"
    with atomic_path(path) as temporary:
        PlyData(elements, byte_order="<", comments=[f"{RENDER_MODE}: {mode}"]).write(str(temporary))


def is_antialiased(ply: PlyData) -> bool:
    modes = [comment.partition(":")[2].strip() for comment in ply.comments if comment.strip().startswith(RENDER_MODE)]
    return "mip" in modes


def _gaussian_columns(ply: PlyData, path: Path) -> dict[str, np.ndarray]:
    """Property name → [N] float32 for all that a Gaussian needs, ``f_rest_*`` in the order of their numbers."""
    if "vertex" not in ply:
        raise SpatialError(f"{path}: the PLY has no 'vertex' element, so it holds no Gaussians.")
    vertex = ply["vertex"]
    present = {prop.name for prop in vertex.properties}
    for name in [*_MEANS, *_SH_DC, "opacity", *_SCALES, *_QUATS]:
        if name not in present:
            raise SpatialError(
                f"{path}: property '{name}' is missing, so this PLY is no Gaussian scene in the INRIA layout; "
                "export it again as a Gaussian-splat PLY."
            )
    count = sum(name.startswith("f_rest_") for name in present)
    if math.isqrt(count // 3 + 1) ** 2 * 3 - 3 != count or count > 72:
        raise SpatialError(f"{path}: has {count} properties f_rest_*; 0, 9, 24, 45 or 72 make a whole SH degree.")
    rest = [f"f_rest_{i}" for i in range(count)]
    absent = [name for name in rest if name not in present]
    if absent:
        raise SpatialError(f"{path}: property '{absent[0]}' is missing among {count} properties f_rest_*.")
    names = [*_MEANS, *_SH_DC, *rest, "opacity", *_SCALES, *_QUATS]
    return {name: np.asarray(vertex[name], dtype=np.float32) for name in names}
