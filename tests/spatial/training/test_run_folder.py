"""What a run's folder accepts, refuses, keeps and writes."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from spatial.errors import SpatialError
from spatial.training.run_folder import RunFolder, read_config

CONFIG: dict[str, Any] = {
    "input": "photos",
    "out": None,
    "resume": False,
    "max_steps": 100,
    "exports": ["ply"],
    "model": {"sh_degree": 3, "densification": {"max_steps": 50}},
}


def open_run(path: Path | None, *, resume: bool = False, **changes: Any) -> RunFolder:
    return RunFolder(path, input="photos", config=CONFIG | changes, resume=resume, may_change=("exports",))


def test_writes_what_was_asked(tmp_path: Path) -> None:
    with open_run(tmp_path / "läuf 1") as run:
        run.write_metrics({"psnr": 27.5})
        logging.getLogger("spatial.somewhere").info("50 photos")
    stored = yaml.safe_load((run.path / "config.yaml").read_text("utf-8"))
    assert stored == CONFIG | {"out": str(run.path), "input": str(Path("photos").absolute())} == read_config(run.path)
    assert json.loads(run.metrics.read_text()) == {"psnr": 27.5}
    assert "INFO    spatial.somewhere: 50 photos" in run.log.read_text()
    logging.getLogger("spatial.somewhere").warning("after the run")
    assert "after the run" not in run.log.read_text()


def test_default_names_count_up_and_resume_takes_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_run(None).path == Path("runs/photos-1")
    assert open_run(None).path == Path("runs/photos-2")
    (tmp_path / "runs/photos-9").mkdir()
    assert open_run(None).path == Path("runs/photos-10")
    assert open_run(None, resume=True).path == Path("runs/photos-10")
    assert RunFolder(None, input="films/fox.mp4").path == Path("runs/fox-1")
    assert RunFolder(None, input=tmp_path / "other", resume=True).path == Path("runs/other-1")


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_text("dear")
    with pytest.raises(SpatialError, match="not empty and not a run; choose another --out"):
        open_run(tmp_path)
    with pytest.raises(SpatialError, match="is a file"):
        open_run(tmp_path / "holiday.jpg")
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]


@pytest.mark.parametrize(
    ("file", "word"), [("metrics.json", "finished"), ("checkpoints/step-00000001.ckpt", "unfinished")]
)
def test_an_earlier_run_is_not_overwritten(tmp_path: Path, file: str, word: str) -> None:
    run = open_run(tmp_path / "run")
    run.checkpoints.mkdir()
    (run.path / file).write_text("{}")
    with pytest.raises(SpatialError, match=rf"holds an? {word} run; go on with it by resume=true, or choose another"):
        open_run(run.path)
    assert open_run(run.path, resume=True).is_resumed


def test_a_run_that_came_to_nothing_may_be_repeated(tmp_path: Path) -> None:
    open_run(tmp_path / "run")
    assert not open_run(tmp_path / "run", max_steps=3).is_resumed
    assert read_config(tmp_path / "run")["max_steps"] == 3


def test_resuming_lets_only_some_settings_change(tmp_path: Path) -> None:
    path = open_run(tmp_path / "run").path
    grown = {"model": {"sh_degree": 3, "densification": {"max_steps": 150}}}
    open_run(path, resume=True, max_steps=200, exports=["spz"], **grown)
    assert read_config(path)["max_steps"] == 200
    with pytest.raises(SpatialError, match="max_steps=200; it may grow but not shrink to 100"):
        open_run(path, resume=True, **grown)
    changed = {"model": {"sh_degree": 2, "densification": {"max_steps": 150}}}
    with pytest.raises(SpatialError, match=r"made with model\.sh_degree=3, not 2; put it back"):
        open_run(path, resume=True, max_steps=200, **changed)
    with pytest.raises(SpatialError, match=r"was made from .*photos, not from .*others"):
        RunFolder(path, input="others", config=CONFIG, resume=True)
    assert read_config(path)["model"] == grown["model"], "a refused resume changes nothing"


def test_leftovers_of_a_killed_process_go(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    run.checkpoints.mkdir()
    for leftover in (run.path / ".scene.1a2b.tmp.ply", run.checkpoints / ".step-00000002.3c4d.tmp.ckpt"):
        leftover.write_text("half")
    (run.path / ".sparse.5e6f.tmp").mkdir()
    open_run(run.path, resume=True)
    assert sorted(path.name for path in run.path.rglob("*")) == ["checkpoints", "config.yaml"]


def test_bad_input_leaves_no_folder_behind(tmp_path: Path) -> None:
    with pytest.raises(SpatialError, match="no photos"), open_run(tmp_path / "run"):
        raise SpatialError("no photos in it")
    assert not (tmp_path / "run").exists()
    with pytest.raises(SpatialError), open_run(tmp_path / "run") as run:
        (run.path / "poses.txt").write_text("minutes of work")
        raise SpatialError("the disk is full")
    assert (tmp_path / "run" / "poses.txt").exists()
    assert "the disk is full" in run.log.read_text()


def test_an_unexpected_error_is_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ZeroDivisionError), open_run(tmp_path / "run") as run:
        _ = 1 / 0
    assert "Traceback" in run.log.read_text() and "ZeroDivisionError" in run.log.read_text()
    assert str(run.log) in caplog.text and "Traceback" not in caplog.text


@pytest.mark.parametrize("text", ["", "a: [", "\x00", "- 1"])
def test_damaged_config(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(SpatialError, match=r"config\.yaml is damaged"):
        read_config(tmp_path)
    with pytest.raises(SpatialError, match="is not a run"):
        read_config(tmp_path / "elsewhere")
