"""A run that is killed, stopped, damaged or prolonged ends bit for bit where an undisturbed one ends."""

from __future__ import annotations

import importlib.util
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import lightning
import pytest
import torch

from spatial.errors import SpatialError
from spatial.training.checkpoint_files import checkpoints, latest_checkpoint, load_checkpoint
from spatial.training.loggers import read_rows

SCRIPT = Path(__file__).with_name("tiny_training.py")
STEPS = 60


def _load_script() -> Any:
    spec = importlib.util.spec_from_file_location("tiny_training", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


train = _load_script().train


@pytest.fixture(scope="module", autouse=True)
def no_shape_checks() -> Iterator[None]:
    """Checking annotations draws from Python's random numbers, which these runs compare bit for bit."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ``STEPS`` steps that nothing happened to."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    train(run, max_steps=STEPS)
    return run


def assert_same_end(run: Path, expected: Path) -> None:
    """Weights, optimiser moments, every random state, loop counters and the logged curve are equal, exactly."""
    assert checkpoints(run / "checkpoints")[-1].name == f"step-{STEPS:08d}.ckpt"
    ours = load_checkpoint(checkpoints(run / "checkpoints")[-1])
    theirs = load_checkpoint(checkpoints(expected / "checkpoints")[-1])
    ours["state_dict"].pop("ballast"), theirs["state_dict"].pop("ballast")
    for key in ("global_step", "state_dict", "optimizer_states", "random_state"):
        assert_equal(ours[key], theirs[key], key)
    assert read_rows(run / "metrics.csv") == read_rows(expected / "metrics.csv")


def assert_equal(ours: Any, theirs: Any, where: str) -> None:
    if isinstance(theirs, torch.Tensor):
        assert torch.equal(ours, theirs), where
    elif isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), where
        for key in theirs:
            assert_equal(ours[key], theirs[key], f"{where}.{key}")
    elif isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs), where
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_equal(one, other, f"{where}[{index}]")
    else:
        assert ours == theirs, where


def kill_when(ready: Callable[[], bool], run: Path, **options: Any) -> None:
    """Trains in a process of its own, which gets SIGKILL as soon as ``ready()``.

    Forked, since a fresh interpreter would spend ten seconds importing for a second of training.
    """
    process = multiprocessing.get_context("fork").Process(target=train, args=(run,), kwargs=options)
    process.start()
    deadline = time.monotonic() + 90
    try:
        while not ready():
            assert process.is_alive(), "the run ended by itself"
            assert time.monotonic() < deadline, "the run never got so far"
            time.sleep(0.0005)
    finally:
        process.kill()
        process.join()


def test_killed_while_training(tmp_path: Path, undisturbed: Path) -> None:
    run = tmp_path / "run"
    two_saved = lambda: len(checkpoints(run / "checkpoints")) == 2  # noqa: E731
    kill_when(two_saved, run, max_steps=STEPS, every_steps=7, seconds_a_step=0.03)
    assert 7 <= load_checkpoint(checkpoints(run / "checkpoints")[-1])["global_step"] < STEPS
    train(run, max_steps=STEPS, resume=True)
    assert_same_end(run, undisturbed)


def test_killed_while_a_checkpoint_is_written(tmp_path: Path, undisturbed: Path) -> None:
    run = tmp_path / "run"
    folder = run / "checkpoints"

    def second_is_half_written() -> bool:
        return len(checkpoints(folder)) == 1 and any(path.stat().st_size > 0 for path in folder.glob(".*.tmp*"))

    kill_when(second_is_half_written, run, max_steps=STEPS, every_steps=20, ballast_mb=150)
    assert list(folder.glob(".*.tmp*")), "killed too late: the file was whole"
    assert [path.name for path in checkpoints(folder)] == ["step-00000020.ckpt"]
    train(run, max_steps=STEPS, resume=True, every_steps=1000, ballast_mb=150)
    assert_same_end(run, undisturbed)
    assert not list(folder.glob(".*.tmp*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_stopped_by_a_signal(tmp_path: Path, undisturbed: Path, number: signal.Signals) -> None:
    class SendAtStep23(lightning.Callback):
        def on_train_batch_start(self, trainer: lightning.Trainer, *_: Any) -> None:
            if trainer.global_step == 22:
                os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    saver = train(tmp_path / "run", max_steps=STEPS, callbacks=(SendAtStep23(),))
    assert saver.interrupted == {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C"}[number]
    assert checkpoints(tmp_path / "run" / "checkpoints")[-1].name == "step-00000023.ckpt"
    assert signal.getsignal(number) is before
    assert train(tmp_path / "run", max_steps=STEPS, resume=True).interrupted is None
    assert_same_end(tmp_path / "run", undisturbed)


def test_more_steps_than_at_first(tmp_path: Path, undisturbed: Path) -> None:
    train(tmp_path / "run", max_steps=STEPS // 2)
    train(tmp_path / "run", max_steps=STEPS, resume=True)
    assert_same_end(tmp_path / "run", undisturbed)


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path, undisturbed: Path) -> None:
    train(tmp_path / "run", max_steps=STEPS)
    train(tmp_path / "run", max_steps=STEPS, resume=True)
    assert_same_end(tmp_path / "run", undisturbed)


@pytest.mark.parametrize("damage", ["truncated", "empty", "one byte"])
def test_damaged_last_checkpoint(
    tmp_path: Path, undisturbed: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    train(run, max_steps=40)
    last = checkpoints(run / "checkpoints")[-1]
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 255
    last.write_bytes({"truncated": content[: len(content) // 2], "empty": b"", "one byte": content}[damage])
    with caplog.at_level(logging.WARNING):
        assert latest_checkpoint(run / "checkpoints") == checkpoints(run / "checkpoints")[0]
    assert last.name in caplog.text
    train(run, max_steps=STEPS, resume=True)
    assert_same_end(run, undisturbed)


def test_all_checkpoints_damaged(tmp_path: Path) -> None:
    for step in (1, 2):
        (tmp_path / f"step-{step:08d}.ckpt").write_bytes(b"not a zip")
    with pytest.raises(SpatialError, match="every checkpoint"):
        latest_checkpoint(tmp_path)


def test_two_newest_checkpoints_are_kept(undisturbed: Path) -> None:
    assert [path.name for path in checkpoints(undisturbed / "checkpoints")] == [
        "step-00000055.ckpt",
        "step-00000060.ckpt",
    ]


def test_a_checkpoint_with_code_inside_is_not_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "sprung",))

    torch.save({"state_dict": Trap()}, tmp_path / "step-00000001.ckpt")
    with pytest.raises(SpatialError, match="more than"):
        load_checkpoint(tmp_path / "step-00000001.ckpt")
    assert not (tmp_path / "sprung").exists()
