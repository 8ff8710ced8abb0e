"""The command line, killed or stopped at any moment and run again, ends bit for bit where an undisturbed run ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spatial.cli.main import main
from spatial.io.gaussian_files import load_gaussians
from spatial.training.checkpoint_files import checkpoints, latest_checkpoint, load_checkpoint

ROOT = Path(__file__).resolve().parents[1]
STEPS = 60
# Checkpoints after each step, and Gaussians that come and go within the few steps.
SETTINGS = ["sh_degree=1", "video_seconds=0", "checkpoint_every_s=0.0", "+model.densification.every=10"]


def reconstruct(capture: Path, run: Path, *more: str, steps: int = STEPS) -> int:
    return main(["reconstruct", str(capture), "--out", str(run), f"max_steps={steps}", *SETTINGS, *more])


@pytest.fixture(scope="module")
def undisturbed(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    assert reconstruct(tiny_capture, run) == 0
    return run


def kill_when(ready: Callable[[], bool], capture: Path, run: Path) -> None:
    """Runs the command in a process of its own; stops it when ``ready()``, and if that still holds then, kills it."""
    words = ["reconstruct", str(capture), "--out", str(run), f"max_steps={STEPS}", *SETTINGS]
    command = [sys.executable, "-m", "spatial.cli", *words]
    with open(run.with_suffix(".log"), "wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 180
            while True:
                assert process.poll() is None, f"ended by itself: {run.with_suffix('.log').read_text()}"
                assert time.monotonic() < deadline, "never got so far"
                if ready():
                    process.send_signal(signal.SIGSTOP)
                    if ready():
                        return
                    process.send_signal(signal.SIGCONT)
                time.sleep(0.0005)
        finally:
            process.kill()
            process.wait()


def steps_saved(run: Path) -> int:
    found = checkpoints(run / "checkpoints")
    return int(found[-1].stem.partition("-")[2]) if found else 0


def half_written(run: Path) -> list[Path]:
    return [path for path in (run / "checkpoints").glob(".*.tmp*") if path.stat().st_size > 0]


def test_killed_while_a_checkpoint_is_written(tiny_capture: Path, undisturbed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    kill_when(lambda: steps_saved(run) >= 12 and bool(half_written(run)), tiny_capture, run)
    assert half_written(run) and 12 <= steps_saved(run) < STEPS and not (run / "scene.ply").exists()
    assert reconstruct(tiny_capture, run, "--resume") == 0
    assert (run / "scene.ply").read_bytes() == (undisturbed / "scene.ply").read_bytes()
    assert not half_written(run)
    assert (run / "metrics.csv").read_text() == (undisturbed / "metrics.csv").read_text()


@pytest.mark.slow
def test_killed_while_training(tiny_capture: Path, undisturbed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    kill_when(lambda: steps_saved(run) >= 25 and not half_written(run), tiny_capture, run)
    assert 25 <= steps_saved(run) < STEPS
    assert reconstruct(tiny_capture, run, "--resume") == 0
    assert (run / "scene.ply").read_bytes() == (undisturbed / "scene.ply").read_bytes()


def test_more_steps_than_at_first(tiny_capture: Path, tmp_path: Path) -> None:
    """Schedules follow max_steps: 20 steps that grow to 30 are like 20 of 20, then 10 of 30, each time they are run."""
    written = []
    for name in ("one", "other"):
        assert reconstruct(tiny_capture, tmp_path / name, steps=20) == 0
        assert reconstruct(tiny_capture, tmp_path / name, "--resume", steps=30) == 0
        assert steps_saved(tmp_path / name) == 30
        written.append((tmp_path / name / "scene.ply").read_bytes())
    assert written[0] == written[1]


def test_fewer_steps_or_other_settings_are_refused(
    tiny_capture: Path, undisturbed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (undisturbed / "scene.ply").read_bytes()
    assert reconstruct(tiny_capture, undisturbed, "--resume", steps=STEPS - 1) == 2
    assert f"max_steps={STEPS}; it may grow but not shrink" in capsys.readouterr().err
    assert reconstruct(tiny_capture, undisturbed, "--resume", "model.sh_lr=0.5") == 2
    assert "model.sh_lr" in capsys.readouterr().err
    assert reconstruct(tiny_capture, undisturbed) == 2
    assert "holds a finished run; go on with it by resume=true" in capsys.readouterr().err
    assert (undisturbed / "scene.ply").read_bytes() == before


def test_ctrl_c_saves_and_exports_what_there_is(
    tiny_capture: Path, undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    stop = threading.Event()

    def press_ctrl_c() -> None:
        while not stop.wait(0.005):
            if steps_saved(run) >= 10:
                os.kill(os.getpid(), signal.SIGINT)
                return

    thread = threading.Thread(target=press_ctrl_c)
    thread.start()
    try:
        code = reconstruct(tiny_capture, run)
    finally:
        stop.set()
        thread.join()
    assert code == 0, capsys.readouterr().err
    done = steps_saved(run)
    assert 10 <= done < STEPS
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["interrupted"] == "Ctrl-C" and metrics["psnr"] > 5
    assert "Stopped by Ctrl-C" in (run / "report.html").read_text("utf-8")
    assert metrics["num_gaussians"] == len(load_gaussians(run / "scene.ply"))
    assert load_checkpoint(latest_checkpoint(run / "checkpoints"))["global_step"] == done

    assert reconstruct(tiny_capture, run, "--resume") == 0
    assert (run / "scene.ply").read_bytes() == (undisturbed / "scene.ply").read_bytes()
    assert json.loads((run / "metrics.json").read_text())["interrupted"] is None
