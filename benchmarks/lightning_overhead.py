"""What Lightning adds to a training step: a run whose step does nothing, with everything that a real run has on.

To reach: at most a tenth of a step of ten milliseconds.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import lightning
import torch
from torch.utils.data import DataLoader, IterableDataset

from spatial.training.run_folder import RunFolder
from spatial.training.trainer import make_trainer


class Nothing(torch.optim.Optimizer):
    """An optimiser whose step is free, so that only the way to it is timed."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {})

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        return


class NullModule(lightning.LightningModule):
    """A module that does in a step what every module must: step its optimiser, and log now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.num_gaussians = 1
        self.times_s: list[float] = []

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return Nothing([self.weight])

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.times_s.append(time.perf_counter())
        self.optimizers().step()  # type: ignore[union-attr]
        if self.global_step % 25 == 0:
            for logger in self.loggers:
                logger.log_metrics({"train/loss": 0.5, "train/psnr": 20.0}, self.global_step)


class Stream(IterableDataset[torch.Tensor]):
    """The same batch for ever."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        batch = torch.zeros(1)
        while True:
            yield batch


def overhead_ms(steps: int = 2000) -> float:
    """Median milliseconds from one null step to the next."""
    module = NullModule()
    with tempfile.TemporaryDirectory() as folder, RunFolder(Path(folder) / "run") as run:
        trainer = make_trainer(run, max_steps=steps, accelerator="cpu")
        trainer.fit(module, DataLoader(Stream(), batch_size=None))
    times = torch.tensor(module.times_s, dtype=torch.float64)
    return float(times.diff().median() * 1000)


if __name__ == "__main__":
    measured = overhead_ms()
    sys.stdout.write("| what | measured | to reach |\n|---|---|---|\n")
    sys.stdout.write(f"| Lightning's share of a step of 10 ms | {measured:.2f} ms, {measured * 10:.1f} % | ≤ 10 % |\n")
