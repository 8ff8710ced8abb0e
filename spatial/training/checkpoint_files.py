"""The checkpoints in a folder: which there are, whether they are whole, and what is in them."""

from __future__ import annotations

import logging
import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spatial.errors import SpatialError

logger = logging.getLogger(__name__)

PATTERN = re.compile(r"step-(\d+)\.ckpt")


def checkpoints(folder: str | Path) -> list[Path]:
    """The checkpoints in ``folder``, oldest first; files that a killed process left half-written have other names."""
    found = [(int(match[1]), path) for path in Path(folder).glob("*.ckpt") if (match := PATTERN.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def latest_checkpoint(folder: str | Path) -> Path | None:
    """The newest checkpoint that is whole, or None where there is none yet.

    A damaged newest one is named in a warning and the one before it taken.

    Raises:
        SpatialError: there are checkpoints and all are damaged.
    """
    found = checkpoints(folder)
    for path in reversed(found):
        damage = _damage(path)
        if damage is None:
            return path
        logger.warning("%s is damaged (%s); trying the one before it", path, damage)
    if found:
        raise SpatialError(f"every checkpoint in {folder} is damaged; start again with another --out")
    return None


def load_checkpoint(path: str | Path) -> Mapping[str, Any]:
    """Reads a checkpoint's tensors and plain values on the CPU; its "state_dict" holds the weights.

    Raises:
        SpatialError: the file is damaged, or holds more than tensors and plain values.
    """
    damage = _damage(Path(path))
    if damage is not None:
        raise SpatialError(f"{path} is damaged ({damage}); use the checkpoint before it")
    import torch  # here, since a run's folder is also looked at by commands that need no torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise SpatialError(f"{path} holds more than tensors and plain values; it was not read, use another") from error


def _damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, by the checksums of its zip members: nothing in it is executed."""
    try:
        with zipfile.ZipFile(path) as archive:
            member = archive.testzip()
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        return str(error) or type(error).__name__
    return None if member is None else f"wrong checksum in {member}"
