"""Curves, progress and the order of photos."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spatial.training.loggers import CsvLogger, read_rows, tensorboard_logger
from spatial.training.progress import Progress, StepRate, duration
from spatial.training.random_state import generators
from spatial.training.step_sampler import StepSampler


def test_rows_with_a_metric_that_comes_later(tmp_path: Path) -> None:
    log = CsvLogger(tmp_path / "metrics.csv", flush_rows=2)
    log.log_metrics({"loss": 1.0, "epoch": 0}, 1)
    log.log_metrics({"psnr": 20.0}, 1)
    log.log_metrics({"loss": 0.5}, 2)
    log.log_metrics({"count": 7.0}, 3)
    log.finalize("success")
    assert read_rows(tmp_path / "metrics.csv") == [
        {"step": "1", "loss": "1.0", "psnr": "20.0", "count": ""},
        {"step": "2", "loss": "0.5", "psnr": "", "count": ""},
        {"step": "3", "loss": "", "psnr": "", "count": "7.0"},
    ]


def test_rows_after_the_checkpoint_come_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    first = CsvLogger(path)
    for step in (10, 20, 30):
        first.log_metrics({"loss": float(step)}, step)
    first.save()
    path.write_text(path.read_text() + "40,4")  # a line that a killed process did not finish
    second = CsvLogger(path, first_step=20)
    second.log_metrics({"loss": -30.0}, 30)
    second.finalize("success")
    assert [(row["step"], row["loss"]) for row in read_rows(path)] == [("10", "10.0"), ("20", "20.0"), ("30", "-30.0")]


def test_tensorboard_files_are_readable(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = tensorboard_logger(tmp_path)
    log.log_metrics({"train/psnr": 21.5}, 25)
    log.finalize("success")
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/psnr")] == [(25, 21.5)]


@given(st.integers(1, 40), st.integers(0, 2**31), st.integers(0, 200))
def test_order_depends_on_seed_and_step_alone(num_items: int, seed: int, first_step: int) -> None:
    def take(sampler: StepSampler, count: int) -> list[int]:
        return [index for index, _ in zip(sampler, range(count), strict=False)]

    before = torch.get_rng_state()
    whole = take(StepSampler(num_items, seed=seed), first_step + 50)
    assert take(StepSampler(num_items, seed=seed, first_step=first_step), 50) == whole[first_step:]
    for start in range(0, len(whole) - num_items + 1, num_items):
        assert sorted(whole[start : start + num_items]) == list(range(num_items))
    assert torch.equal(before, torch.get_rng_state())


def test_passes_differ() -> None:
    sampler = StepSampler(50, seed=0)
    assert len({tuple(sampler.permutation(epoch)) for epoch in range(20)}) == 20
    assert sampler.permutation(1) != StepSampler(50, seed=1).permutation(0)


def test_generators_are_found_once_each() -> None:
    module = torch.nn.Sequential(torch.nn.Dropout())
    shared = torch.Generator()
    module.generator = shared  # type: ignore[assignment]
    module[0].strategy = SimpleNamespace(generator=torch.Generator(), same=shared)  # type: ignore[assignment]
    assert [name for name, _ in generators(module)] == ["generator", "0.strategy.generator"]


def test_rate_follows_the_clock() -> None:
    rate = StepRate(100, 50.0)
    assert rate.update(110, 51.0) == pytest.approx(10.0)
    assert rate.update(110, 52.0) == pytest.approx(10.0)
    assert 10.0 < rate.update(150, 53.0) < 20.0
    for second in range(54, 100):
        latest = rate.update(150 + (second - 53) * 20, float(second))
    assert latest == pytest.approx(20.0, rel=1e-3)


@pytest.mark.parametrize(("seconds", "words"), [(0.4, "0 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")])
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_log_lines_away_from_a_terminal(caplog: pytest.LogCaptureFixture, without_shape_checks: None) -> None:
    trainer = cast(
        Any, SimpleNamespace(global_step=0, max_steps=1000, callback_metrics={"val/psnr": torch.tensor(25.0)})
    )
    module = cast(Any, SimpleNamespace(num_gaussians=12345, psnr=24.567))
    progress = Progress({"Gaussians": "num_gaussians", "PSNR": "psnr", "held out": "val/psnr", "x": "x"}, every_s=0.05)
    with caplog.at_level(logging.INFO):
        progress.on_train_start(trainer, module)
        start = time.monotonic()
        while time.monotonic() - start < 0.12:
            trainer.global_step += 1
            progress.on_train_batch_end(trainer, module, None, None, 0)
    assert len(caplog.messages) == 2, "drawn by the clock, not by the step"
    assert "Gaussians 12,345 · PSNR 24.57 · held out 25 · " in caplog.messages[0]
    assert " x " not in caplog.messages[0]
