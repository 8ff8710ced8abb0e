"""Files are whole or not there, whatever goes wrong while they are written."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from spatial.errors import SpatialError
from spatial.io.atomic import atomic_path, make_folder, write_error, write_json_atomic, write_text_atomic


def in_child(function: Callable[[], None]) -> None:
    """Runs ``function`` in a forked process, so that what it does to its own rights and limits stays there."""

    def body() -> None:
        torch.set_num_threads(1)  # the child has none of the parent's OpenMP threads, and would wait for them
        try:
            function()
        except BaseException:
            os._exit(1)
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=body)
    process.start()
    process.join()
    assert process.exitcode == 0


def test_replaces_the_old_file_at_the_end_only(tmp_path: Path) -> None:
    target = tmp_path / "scene.ply"
    target.write_text("old")
    with atomic_path(target) as temporary:
        temporary.write_text("new")
        assert temporary.parent == tmp_path and temporary.suffix == ".ply"
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: type[BaseException]) -> None:
    target = tmp_path / "scene.ply"
    target.write_text("old")
    with pytest.raises(error), atomic_path(target) as temporary:
        temporary.write_text("half")
        raise error
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_appears_at_once(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "sparse") as temporary:
        temporary.mkdir()
        (temporary / "cameras.txt").write_text("x")
        assert not (tmp_path / "sparse").exists()
    assert (tmp_path / "sparse" / "cameras.txt").read_text() == "x"


def test_json_without_nan(tmp_path: Path) -> None:
    content = {"psnr": float("nan"), "views": [1.5, float("inf")], "name": "Füchse", "out": Path("run"), "none": None}
    write_json_atomic(tmp_path / "metrics.json", content)
    text = (tmp_path / "metrics.json").read_text("utf-8")
    assert "Füchse" in text
    assert json.loads(text) == {"psnr": None, "views": [1.5, None], "name": "Füchse", "out": "run", "none": None}


def test_disk_full_while_writing(tmp_path: Path) -> None:
    """A limit on the size of files stops a real write in the middle, as a full disk does."""
    (tmp_path / "last.ckpt").write_text("old")

    def child() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        for save in (
            lambda file: file.write(bytes(1_000_000)),
            lambda file: torch.save({"w": torch.zeros(1_000_000)}, file),
        ):
            with pytest.raises(SpatialError, match=r"cannot write .*last\.ckpt.*another disk"):  # noqa: SIM117
                with atomic_path(tmp_path / "last.ckpt") as temporary, temporary.open("wb") as file:
                    save(file)

    in_child(child)
    assert [path.name for path in tmp_path.iterdir()] == ["last.ckpt"]
    assert (tmp_path / "last.ckpt").read_text() == "old"


def test_full_disk_by_its_number() -> None:
    message = str(write_error(OSError(errno.ENOSPC, "No space left on device"), "run/scene.ply"))
    assert message.startswith("cannot write run/scene.ply: no space left")
    assert write_error(OSError(errno.ENOENT, "no such file"), "run/scene.ply") is None


def test_folder_without_the_right_to_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    for parent in list(tmp_path.parents)[:3]:
        parent.chmod(parent.stat().st_mode | 0o055)  # pytest's own folders are closed to other users

    def child() -> None:
        if os.geteuid() == 0:
            os.setresuid(65534, 65534, 65534)
        with pytest.raises(SpatialError, match=r"cannot write .*a\.txt: permission denied"):
            write_text_atomic(tmp_path / "a.txt", "x")
        with pytest.raises(SpatialError, match=r"cannot write .*new/deep: permission denied"):
            make_folder(tmp_path / "new" / "deep")

    in_child(child)
    tmp_path.chmod(0o755)


def test_a_file_in_the_way_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(SpatialError, match="is a file"):
        make_folder(tmp_path / "run")
    with pytest.raises(SpatialError, match="is a file"):
        make_folder(tmp_path / "run" / "checkpoints")
