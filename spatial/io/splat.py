"""The ``.splat`` format of antimatter15's viewer: 32 bytes a Gaussian, no header, no spherical harmonics.

Position and linear scale as float32, colour and opacity a byte each, quaternion wxyz a byte each (q · 128 + 128).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from spatial.errors import SpatialError
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
)
from spatial.structures import Gaussians

_RECORD = np.dtype([("mean", "<f4", 3), ("scale", "<f4", 3), ("rgba", "u1", 4), ("quat", "u1", 4)])


def read_splat(path: Path) -> Gaussians:
    """Gaussians of degree 0 in the file's order.

    Raises:
        SpatialError: no such file, empty, not a multiple of 32 bytes (cut short, or not this format), NaN or infinity.
    """
    content = read_bytes(path)
    if len(content) % _RECORD.itemsize:
        raise SpatialError(
            f"{path}: its {len(content)} bytes are no multiple of {_RECORD.itemsize}, so the file is cut short or no "
            ".splat file; copy or export it again."
        )
    records = np.frombuffer(content, _RECORD)
    rgba = records["rgba"].astype(np.float32) / 255
    return to_gaussians(
        path,
        means=records["mean"],
        quats=unit_quats((records["quat"].astype(np.float32) - 128) / 128),
        log_scales=log_scale(records["scale"]),
        logit_opacities=logit(rgba[:, 3]),
        sh=((rgba[:, :3] - 0.5) / SH_C0)[:, None],
        antialiased=False,
    )


def write_splat(gaussians: Gaussians, path: Path) -> None:
    """Writes position and scale exactly, colour, opacity and rotation in 8 bits.

    Lost: spherical harmonics beyond degree 0, base colours outside [0, 1], and that a scene was trained antialiased.

    Raises:
        SpatialError: NaN or infinity among the values, or the file could not be written.
    """
    require_writable(gaussians, path)
    gaussians = limit_sh_degree(gaussians, 0, path)
    records = np.empty(len(gaussians), _RECORD)
    records["mean"] = to_numpy(gaussians.means)
    records["scale"] = np.exp(to_numpy(gaussians.log_scales))
    records["rgba"][:, :3] = _byte((to_numpy(gaussians.sh)[:, 0] * SH_C0 + 0.5) * 255)
    records["rgba"][:, 3] = _byte(sigmoid(to_numpy(gaussians.logit_opacities)) * 255)
    records["quat"] = _byte(unit_quats(to_numpy(gaussians.quats)) * 128 + 128)
    with atomic_path(path) as temporary:
        temporary.write_bytes(records.tobytes())


def _byte(values: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)
