"""Checkpoints that survive: whole or absent on disk, two kept, and enough inside to go on bit for bit.

A checkpoint is Lightning's own (weights, optimiser moments, loop counters, callbacks' and data's states) with every
random state added. It is always written right after a step, never between epochs, so that a run that resumes, or whose
``max_steps`` grew, goes through the very steps that an undisturbed run goes through.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.io import CheckpointIO

from spatial.io.atomic import atomic_path, make_folder
from spatial.training.checkpoint_files import checkpoints
from spatial.training.random_state import random_state, restore_random_state
from spatial.training.stop_signals import StopSignals

logger = logging.getLogger(__name__)


class AtomicCheckpointIO(CheckpointIO):
    """Writes to a temporary name, flushes, renames; reads tensors and plain values only, never code."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        make_folder(Path(path).parent)
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            torch.save(checkpoint, file)

    def load_checkpoint(self, path: str | Path, map_location: Any = None, weights_only: bool | None = None) -> Any:
        return torch.load(path, map_location=map_location or "cpu", weights_only=True)

    def remove_checkpoint(self, path: str | Path) -> None:
        Path(path).unlink(missing_ok=True)


class SaveCheckpoints(Callback):
    """Saves every so often, at the last step, and when asked to stop; then stops the training in order.

    SIGTERM and the first Ctrl-C end the current step, save, and let ``trainer.fit`` return as if it were done;
    ``interrupted`` then holds the signal's name. A second Ctrl-C raises KeyboardInterrupt at once.

    Args:
        folder: where ``step-00001234.ckpt`` files go.
        every_s: seconds between two checkpoints; 0 saves after each step.
        every_steps: steps between two checkpoints, beside the seconds; None for seconds alone.
        keep: number of newest checkpoints to keep.
    """

    def __init__(
        self, folder: str | Path, *, every_s: float = 60.0, every_steps: int | None = None, keep: int = 2
    ) -> None:
        self.folder = Path(folder)
        self.every_s = every_s
        self.every_steps = every_steps
        self.keep = keep
        self.interrupted: str | None = None
        self._signals = StopSignals()
        self._saved_at_s = time.monotonic()
        self._random_state: dict[str, Any] | None = None

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self.interrupted = None
        self._saved_at_s = time.monotonic()
        self._signals.install()

    def on_train_batch_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        # As late as can be: whatever Lightning and the loader drew while starting up must not count.
        if self._random_state is not None:
            restore_random_state(self._random_state, pl_module)
            self._random_state = None

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step, stop = trainer.global_step, self._signals.received
        is_last = trainer.max_steps != -1 and step >= trainer.max_steps
        is_due = time.monotonic() - self._saved_at_s >= self.every_s
        is_due = is_due or (self.every_steps is not None and step % self.every_steps == 0)
        if is_last or is_due or stop:
            self._save(trainer)
        if stop and not is_last:
            logger.warning("%s: stopping after step %d; what there is gets saved", stop, step)
            self.interrupted = stop
            trainer.should_stop = True

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self._signals.restore()

    def on_exception(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, exception: BaseException
    ) -> None:
        self._signals.restore()

    def on_save_checkpoint(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint["random_state"] = random_state(pl_module)

    def on_load_checkpoint(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._random_state = checkpoint["random_state"]

    def _save(self, trainer: lightning.Trainer) -> None:
        for curve in trainer.loggers:  # else a killed process leaves a gap in the curves before this step
            curve.save()
        trainer.save_checkpoint(self.folder / f"step-{trainer.global_step:08d}.ckpt")
        for old in checkpoints(self.folder)[: -self.keep]:
            old.unlink(missing_ok=True)
        self._saved_at_s = time.monotonic()
