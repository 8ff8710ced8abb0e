"""What the Gaussian file formats share: checks, activations and packings on numpy arrays."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int, UInt32
from torch import Tensor

from spatial.errors import SpatialError
from spatial.structures import Gaussians

logger = logging.getLogger(__name__)

SH_C0 = 0.28209479177387814
"""The constant harmonic: colour = SH_C0 · sh[0] + 0.5 for a Gaussian of degree 0."""

_LEAST_OPACITY = 1e-6  # opacities of exactly 0 and 1 have no finite logit
_LEAST_SCALE = 1e-12


def read_bytes(path: Path, *, limit: int = -1) -> bytes:
    """The file's content, or its first ``limit`` bytes.

    Raises:
        SpatialError: the file is absent, a folder, empty or unreadable.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(limit)
    except OSError as error:
        raise SpatialError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions.") from error
    if not content:
        raise SpatialError(f"{path}: the file is empty; export or download it again.")
    return content


def require_finite(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    """Refuses NaN and infinity.

    Args:
        path: the file, for the message.
        columns: name → [N] or [N, D] values, in the order in which they are reported.

    Raises:
        SpatialError: naming the file, how many Gaussians are concerned, the first of them and its property.
    """
    bad_rows = {
        name: ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
        for name, values in columns.items()
        if not np.isfinite(values).all()
    }
    if not bad_rows:
        return
    bad = np.logical_or.reduce(list(bad_rows.values()))
    first = int(np.argmax(bad))
    name = next(name for name, rows in bad_rows.items() if rows[first])
    raise SpatialError(
        f"{path}: {int(bad.sum())} of {len(bad)} Gaussians hold NaN or infinity, first in row {first}, "
        f"property '{name}'; remove those rows in the tool that wrote them."
    )


def to_gaussians(
    path: Path,
    *,
    means: Float[np.ndarray, "N 3"],
    quats: Float[np.ndarray, "N 4"],
    log_scales: Float[np.ndarray, "N 3"],
    logit_opacities: Float[np.ndarray, "N"],
    sh: Float[np.ndarray, "N K 3"],
    antialiased: bool,
) -> Gaussians:
    """Arrays as float32 Gaussians; SpatialError where they are not finite or there are none."""
    arrays = {"means": means, "quats": quats, "log_scales": log_scales, "logit_opacities": logit_opacities, "sh": sh}
    if len(means) == 0:
        raise SpatialError(f"{path}: holds no Gaussians; export it again.")
    require_finite(path, arrays)
    tensors = {name: torch.from_numpy(np.array(values, dtype=np.float32)) for name, values in arrays.items()}
    return Gaussians(**tensors, antialiased=antialiased)


def to_numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().to("cpu", torch.float32).numpy()


def require_writable(gaussians: Gaussians, path: Path) -> None:
    """SpatialError where what is to be written is not finite: better than a file that no viewer shows."""
    names = ("means", "quats", "log_scales", "logit_opacities", "sh")
    require_finite(path, {name: to_numpy(getattr(gaussians, name)) for name in names})


def with_sh_degree(gaussians: Gaussians, degree: int) -> Gaussians:
    """The same Gaussians with spherical harmonics of exactly ``degree``: cut off, or padded with zeros."""
    count = (degree + 1) ** 2
    sh = gaussians.sh[:, :count]
    padding = sh.new_zeros(sh.shape[0], count - sh.shape[1], 3)
    return replace(gaussians, sh=torch.cat([sh, padding], dim=1))


def limit_sh_degree(gaussians: Gaussians, degree: int, path: Path) -> Gaussians:
    """Cuts the spherical harmonics down to what a format can hold, with a warning if that loses anything."""
    if gaussians.sh_degree <= degree:
        return gaussians
    logger.warning(
        "%s: the format holds spherical harmonics up to degree %d; degree %d is cut off.",
        path,
        degree,
        gaussians.sh_degree,
    )
    return with_sh_degree(gaussians, degree)


def logit(opacities: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    """Inverse of the sigmoid; 0 and 1 give ∓13.8 rather than ∓∞, which renders the same."""
    clipped = np.clip(opacities.astype(np.float64), _LEAST_OPACITY, 1 - _LEAST_OPACITY)
    return np.log(clipped / (1 - clipped)).astype(np.float32)


def log_scale(scales: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    """Logarithm of linear scales; a flat Gaussian's zero becomes a very small number."""
    return np.log(np.where(scales < _LEAST_SCALE, np.float32(_LEAST_SCALE), scales)).astype(np.float32)


def sigmoid(logits: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    return 0.5 * (1 + np.tanh(0.5 * logits))


def unit_quats(quats: Float[np.ndarray, "N 4"]) -> Float[np.ndarray, "N 4"]:
    """Normalised quaternions (component order kept, w first); a zero quaternion becomes the identity."""
    norms = np.linalg.norm(quats, axis=1, keepdims=True)
    identity = np.array([[1, 0, 0, 0]], dtype=quats.dtype)
    return np.where(norms > 0, quats / np.where(norms > 0, norms, 1), identity)


def split_largest(quats: Float[np.ndarray, "N 4"]) -> tuple[Int[np.ndarray, "N"], Float[np.ndarray, "N 3"]]:
    """The packing "smallest three": which component is largest, and the others with that one made positive."""
    largest = np.abs(quats).argmax(axis=1)
    rows = np.arange(len(quats))
    positive = quats * np.where(quats[rows, largest] < 0, -1, 1)[:, None]
    return largest, positive[rows[:, None], _OTHERS[largest]]


def join_largest(largest: Int[np.ndarray, "N"], others: Float[np.ndarray, "N 3"]) -> Float[np.ndarray, "N 4"]:
    """Inverse of ``split_largest``: the missing component follows from unit length."""
    quats = np.empty((len(others), 4), dtype=np.float32)
    rows = np.arange(len(others))
    quats[rows[:, None], _OTHERS[largest]] = others
    quats[rows, largest] = np.sqrt(np.clip(1 - np.square(others).sum(axis=1), 0, None))
    return quats


_OTHERS = np.array([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]])


def morton_order(means: Float[np.ndarray, "N 3"]) -> Int[np.ndarray, "N"]:
    """Indices along a Z-order curve (10 bits an axis): neighbours in space become neighbours in the file."""
    low, high = means.min(axis=0), means.max(axis=0)
    cells = ((means - low) / np.where(high > low, high - low, 1) * 1023).astype(np.uint32)
    return np.argsort(_spread(cells[:, 0]) | _spread(cells[:, 1]) << 1 | _spread(cells[:, 2]) << 2, kind="stable")


def _spread(bits: UInt32[np.ndarray, "N"]) -> UInt32[np.ndarray, "N"]:
    """Puts two zero bits after each of ten bits."""
    bits = (bits | bits << 16) & 0x030000FF
    bits = (bits | bits << 8) & 0x0300F00F
    bits = (bits | bits << 4) & 0x030C30C3
    return (bits | bits << 2) & 0x09249249
