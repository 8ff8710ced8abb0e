"""How far training is: a bar on a terminal, a line now and then in a file; both too rare to cost anything."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from typing import Any

import lightning
from lightning.pytorch.callbacks import Callback

logger = logging.getLogger(__name__)

SHOWN = {"Gaussians": "num_gaussians", "PSNR": "psnr"}


class Progress(Callback):
    """Steps per second, time left, and a few numbers of the model.

    On a terminal a bar drawn at most four times a second; elsewhere a log line every ten seconds. Between two
    drawings a step costs one look at the clock.

    Args:
        shown: label -> an attribute of the LightningModule, or the name of a metric that it logs. Where there is
            neither (yet), the label is left out.
        title: what the bar says at its left.
        every_s: seconds between two drawings; None takes 0.25 on a terminal and 10 elsewhere.
    """

    def __init__(
        self, shown: Mapping[str, str] = SHOWN, *, title: str = "training", every_s: float | None = None
    ) -> None:
        self.shown = dict(shown)
        self.title = title
        self._is_terminal = sys.stderr.isatty()
        self.every_s = every_s if every_s is not None else (0.25 if self._is_terminal else 10.0)
        self._bar: Any = None
        self._rate = StepRate()

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self._rate = StepRate(trainer.global_step, time.monotonic())
        self._next_s = time.monotonic() + self.every_s
        if self._is_terminal:
            self._bar = _make_bar(self.title, trainer)

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now = time.monotonic()
        if now >= self._next_s:
            self._next_s = now + self.every_s
            self._draw(trainer, pl_module, now)

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self._draw(trainer, pl_module, time.monotonic())
        self._stop()

    def on_exception(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, exception: BaseException
    ) -> None:
        self._stop()

    def _draw(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, now: float) -> None:
        rate = self._rate.update(trainer.global_step, now)
        left_s = (trainer.max_steps - trainer.global_step) / rate if rate > 0 and trainer.max_steps > 0 else None
        words = [f"{rate:.1f} steps/s", *_numbers(self.shown, trainer, pl_module)]
        if left_s is not None:
            words.append(f"{duration(left_s)} left")
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=trainer.global_step, numbers=" · ".join(words))
            self._bar.refresh()
        else:
            logger.info("%s: step %d of %d · %s", self.title, trainer.global_step, trainer.max_steps, " · ".join(words))

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class StepRate:
    """Steps per second, smoothed over about five seconds, since one step's time follows the image that it drew."""

    def __init__(self, step: int = 0, time_s: float = 0.0) -> None:
        self._step, self._time_s, self._rate = step, time_s, 0.0

    def update(self, step: int, time_s: float) -> float:
        """The smoothed rate after ``step`` steps at the monotonic time ``time_s``."""
        elapsed_s = time_s - self._time_s
        if elapsed_s <= 0 or step == self._step:
            return self._rate
        latest = (step - self._step) / elapsed_s
        weight = 1.0 if self._rate == 0 else min(1.0, elapsed_s / 5.0)
        self._rate += weight * (latest - self._rate)
        self._step, self._time_s = step, time_s
        return self._rate


def duration(seconds: float) -> str:
    """42 s, 3 min 05 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _numbers(shown: Mapping[str, str], trainer: lightning.Trainer, module: lightning.LightningModule) -> list[str]:
    words = []
    for label, name in shown.items():
        value = getattr(module, name, None)
        if value is None:
            value = trainer.callback_metrics.get(name)
        if value is not None:
            number = float(value)
            words.append(f"{label} {int(number):,}" if number.is_integer() else f"{label} {number:.2f}")
    return words


def _make_bar(title: str, trainer: lightning.Trainer) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}"),
    ]
    # auto_refresh would start a thread that competes with the kernels for the interpreter.
    bar = Progress(*columns, console=Console(stderr=True), auto_refresh=False)
    total = trainer.max_steps if trainer.max_steps > 0 else None
    bar.add_task(title, total=total, completed=trainer.global_step, numbers="")
    bar.start()
    return bar
