"""Mask files beside photos: white pixels belong to the scene, black ones do not.

Layouts, for the photo ``images/a/b.jpg``: ``masks/a/b.jpg.png`` (COLMAP), ``masks/a/b.png``, ``masks/a/b.jpg``, and
``images/a/b_mask.png`` or ``masks/a/b_mask.png``. The ``masks`` folder lies beside the image root or inside it.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from data.captures.photos import MASK_FOLDERS

MASK_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff")


def find_mask(photo: Path, name: str) -> Path | None:
    """The mask file of a photo whose path below the image root is ``name``; None where there is none."""
    beside = _first_existing(photo.with_name(photo.stem + "_mask" + suffix) for suffix in MASK_SUFFIXES)
    if beside is not None:
        return beside
    below = PurePosixPath(name)
    root = photo.parents[len(below.parts) - 1]
    for folder in (base / masks for base in (root, root.parent) for masks in sorted(MASK_FOLDERS, reverse=True)):
        if not folder.is_dir():
            continue
        stems = (below.name, below.stem, below.stem + "_mask")
        found = _first_existing(folder / below.parent / (stem + suffix) for stem in stems for suffix in MASK_SUFFIXES)
        exact = folder / below
        if found is not None or exact.is_file():
            return found or exact
    return None


def _first_existing(candidates) -> Path | None:
    return next((path for path in candidates if path.is_file()), None)
