"""A run small enough to kill: every source of randomness that a real one draws from, in weights that grow in number."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
from torch.utils.data import DataLoader

from spatial.training.checkpoint_files import latest_checkpoint
from spatial.training.checkpoints import SaveCheckpoints
from spatial.training.run_folder import RunFolder
from spatial.training.step_sampler import StepSampler
from spatial.training.trainer import make_trainer


class Jitter:
    """A plain object with a generator, as a densification strategy is."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)


class Tiny(lightning.LightningModule):
    def __init__(self, *, seconds_a_step: float = 0.0, ballast_mb: int = 0) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.weights = torch.nn.Parameter(torch.zeros(64))
        self.register_buffer("ballast", torch.zeros(ballast_mb * 2**18))
        self.generator = torch.Generator().manual_seed(7)
        self.jitter = Jitter(8)
        self.seconds_a_step = seconds_a_step

    @property
    def num_gaussians(self) -> int:
        return len(self.weights)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        # Comes before the weights are loaded and the optimiser is made: the moment to take the saved size.
        self.weights.data = torch.empty_like(checkpoint["state_dict"]["weights"])

    def grow(self, rows: int) -> None:
        """Adds weights in the middle of training, with moments of zero, as densification does."""
        optimizer: Any = self.optimizers()
        self.weights.data = torch.cat([self.weights.data, torch.randn(rows, generator=self.generator)])
        self.weights.grad = None
        state = optimizer.optimizer.state[self.weights]
        for name in ("exp_avg", "exp_avg_sq"):
            state[name] = torch.cat([state[name], torch.zeros(rows)])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam([self.weights], lr=0.1)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        if self.global_step in (20, 40):
            self.grow(16)
        count = len(self.weights)
        noise = torch.randn(count) + torch.randn(count, generator=self.generator)
        noise += torch.randn(count, generator=self.jitter.generator)
        noise += random.random() + float(np.random.rand())
        loss = ((self.weights - batch.float() - noise) ** 2).mean()
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        if self.global_step % 5 == 0:
            for logger in self.loggers:
                logger.log_metrics({"train/loss": float(loss.detach())}, self.global_step)
        time.sleep(self.seconds_a_step)


class Numbers(lightning.LightningDataModule):
    def train_dataloader(self) -> DataLoader:
        first_step = self.trainer.global_step if self.trainer else 0
        sampler = StepSampler(7, seed=3, first_step=first_step)
        return DataLoader(torch.arange(7), sampler=sampler, batch_size=None)  # type: ignore[arg-type]


def train(
    path: Path,
    *,
    max_steps: int,
    resume: bool = False,
    every_steps: int = 5,
    seconds_a_step: float = 0.0,
    ballast_mb: int = 0,
    callbacks: tuple[lightning.Callback, ...] = (),
) -> SaveCheckpoints:
    """Trains or goes on; returns the callback that saved."""
    torch.set_num_threads(1)
    lightning.seed_everything(11, verbose=False)
    with RunFolder(path, config={"max_steps": max_steps}, resume=resume) as run:
        saver = SaveCheckpoints(run.checkpoints, every_steps=every_steps)
        trainer = make_trainer(
            run, max_steps=max_steps, checkpoint=saver, callbacks=callbacks, log_every_steps=5, accelerator="cpu"
        )
        module = Tiny(seconds_a_step=seconds_a_step, ballast_mb=ballast_mb)
        trainer.fit(module, datamodule=Numbers(), ckpt_path=latest_checkpoint(run.checkpoints))
        return saver
