"""Finding the image that a model names: other case, other extension, other folder, nested or not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from spatial.io.images import HEIF_SUFFIXES, IMAGE_SUFFIXES


class ImageIndex:
    """The images below a folder, found by the name that a model gives them.

    Args:
        root: folder; names are relative to it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names = _image_names(root)
        self._by_lower = {name.lower(): name for name in reversed(self.names)}
        self._by_stem = {_stem(name): name for name in reversed(self.names)}

    def find(self, name: str) -> Path | None:
        """The file called ``name``, exactly or but for case, or with another extension; None where there is none."""
        clean = PurePosixPath(name.replace("\\", "/")).as_posix()
        exact = self.root / clean
        if exact.is_file():
            return exact
        found = self._by_lower.get(clean.lower()) or self._by_stem.get(_stem(clean))
        return self.root / found if found else None

    def count(self, names: Sequence[str]) -> int:
        return sum(self.find(name) is not None for name in names)


def _stem(name: str) -> str:
    pure = PurePosixPath(name)
    known = pure.suffix.lower() in IMAGE_SUFFIXES | HEIF_SUFFIXES
    return (pure.with_suffix("") if known else pure).as_posix().lower()


def _image_names(root: Path) -> list[str]:
    names = []
    for folder, folders, files in os.walk(root, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        below = Path(folder).relative_to(root)
        for name in sorted(files):
            if not name.startswith(".") and Path(name).suffix.lower() in IMAGE_SUFFIXES | HEIF_SUFFIXES:
                names.append((below / name).as_posix())
    return names
