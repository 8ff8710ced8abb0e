"""Files that are whole or not there: written under a temporary name in the same folder, flushed to disk, then renamed.

A reader never sees half a file, a crash leaves the previous one, and an error names the file and what to do.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from spatial.errors import SpatialError

REMEDIES = {
    errno.ENOSPC: "no space left on the disk; free some, or write to another disk",
    errno.EDQUOT: "your disk quota is used up; free some, or write to another disk",
    errno.EFBIG: "the file is larger than this disk or your limits allow; write to another disk",
    errno.EACCES: "permission denied; choose a folder that you may write to",
    errno.EPERM: "permission denied; choose a folder that you may write to",
    errno.EROFS: "the disk is read-only; choose a folder that you may write to",
    errno.ENOTDIR: "a part of the path is a file, not a folder; choose another folder",
}


def write_error(error: OSError, path: str | os.PathLike[str]) -> SpatialError | None:
    """The sentence for a user whose disk refused ``path``; None where the error is not about the disk or its rights."""
    remedy = REMEDIES.get(error.errno or 0)
    return SpatialError(f"cannot write {os.fspath(path)}: {remedy}") if remedy else None


@contextlib.contextmanager
def disk_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turns a full or read-only disk met while writing ``path`` into a `SpatialError` that names it."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        # torch.save answers a failed write with a RuntimeError about its archive, raised while the OSError is handled.
        refusal = error if isinstance(error, OSError) else error.__context__
        translated = write_error(refusal, path) if isinstance(refusal, OSError) else None
        if translated is None:
            raise
        raise translated from error


def make_folder(path: str | os.PathLike[str]) -> Path:
    """Creates the folder with its parents, or says why that cannot be."""
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise SpatialError(f"{folder} is a file; choose another name for the output folder")
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a temporary path beside ``path``; on leaving without an error it becomes ``path``, flushed to the disk.

    The temporary name keeps the suffix, since many writers choose the format by it. It may be made a folder: the folder
    then replaces ``path``, which must be absent or empty.

    Raises:
        SpatialError: the disk is full or read-only. Whatever else the body raises passes through. In each case the
            temporary file is removed and the old ``path`` is untouched.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.stem}.{secrets.token_hex(4)}.tmp{target.suffix}")
    with disk_errors(target):
        try:
            yield temporary
            _flush(temporary)
            os.replace(temporary, target)
            _flush(target.parent)
        except BaseException:
            _remove(temporary)
            raise


def write_json_atomic(path: str | os.PathLike[str], content: Any) -> None:
    """Writes ``content`` as JSON; numbers that JSON cannot hold (NaN, infinities) become null."""
    write_text_atomic(path, json.dumps(_finite(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_text_atomic(path: str | os.PathLike[str], text: str) -> None:
    """Writes ``text`` as UTF-8."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, "utf-8")


def _finite(content: Any) -> Any:
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, Mapping):
        return {str(key): _finite(value) for key, value in content.items()}
    if isinstance(content, Sequence) and not isinstance(content, str):
        return [_finite(value) for value in content]
    if isinstance(content, os.PathLike):
        return os.fspath(content)
    return content


def _flush(path: Path) -> None:
    """fsync, so that the rename cannot reach the disk before the bytes do."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir():
        import shutil

        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
