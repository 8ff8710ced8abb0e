"""A Lightning trainer that adds little to a step of ten milliseconds, and writes into a run folder."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence

import lightning
from lightning.pytorch.callbacks import Callback

from spatial.training.checkpoint_files import latest_checkpoint, load_checkpoint
from spatial.training.checkpoints import AtomicCheckpointIO, SaveCheckpoints
from spatial.training.loggers import CsvLogger, tensorboard_logger
from spatial.training.memory import keep_freed_memory
from spatial.training.progress import Progress
from spatial.training.run_folder import RunFolder


def make_trainer(
    run: RunFolder,
    *,
    max_steps: int,
    callbacks: Sequence[Callback] = (),
    checkpoint: SaveCheckpoints | None = None,
    log_every_steps: int = 25,
    accelerator: str = "auto",
) -> lightning.Trainer:
    """A trainer for one endless stream of batches on one device, its optimisation usually manual.

    What costs time at every step is off: Lightning's own bar, checkpoints and model summary, the sanity check,
    validation (call ``trainer.validate`` yourself), sampler replacement. Call ``trainer.fit`` with
    ``ckpt_path=latest_checkpoint(run.checkpoints)``, which is None for a new run.

    Args:
        run: where logs and checkpoints go.
        max_steps: steps of the optimiser, counted over all resumes.
        callbacks: yours; one of class `Progress` replaces the default one.
        checkpoint: how often to save; None for every minute.
        log_every_steps: for modules that use ``self.log``; better is what `CsvLogger` says.
        accelerator: as Lightning names it.
    """
    quiet_lightning()
    keep_freed_memory()
    saved = latest_checkpoint(run.checkpoints)
    first_step = int(load_checkpoint(saved)["global_step"]) if saved else 0
    own: list[Callback] = [checkpoint or SaveCheckpoints(run.checkpoints)]
    if not any(isinstance(callback, Progress) for callback in callbacks):
        own.append(Progress())
    return lightning.Trainer(
        max_steps=max_steps,
        max_epochs=-1,
        callbacks=[*callbacks, *own],
        plugins=[AtomicCheckpointIO()],
        logger=[
            CsvLogger(run.path / "metrics.csv", first_step=first_step),
            tensorboard_logger(run.path / "tensorboard", first_step=first_step),
        ],
        log_every_n_steps=log_every_steps,
        accelerator=accelerator,
        devices=1,
        default_root_dir=run.path,
        num_sanity_val_steps=0,
        limit_val_batches=0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        inference_mode=True,
    )


def quiet_lightning() -> None:
    """Drops Lightning's banners, tips and advice that cannot apply to an endless in-process loader."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers.*",
        ".*`IterableDataset` has `__len__` defined.*",
        ".*no `validation_step`.*",
    ):
        warnings.filterwarnings("ignore", message=message)
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"lightning\..*")
