"""Lightning's share of a training step: the same steps in a bare loop and through the Trainer, in turns.

Both run the users' `training_step` on the fox at 270×480; the Trainer has on all that a real run has
(run folder, logs, progress, checkpoints, data loader). Turns alternate, so that a busy machine slows both alike.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from itertools import islice, pairwise
from pathlib import Path

from steps import Fox, bare_module, load_fox
from tables import begin, goals, parser, require_data, table
from training_step import scene_of

from data.captures.datamodule import CaptureDataModule
from representations.gaussians.training import LitGaussians
from spatial.structures import Gaussians
from spatial.training.run_folder import RunFolder
from spatial.training.step_sampler import StepSampler
from spatial.training.trainer import make_trainer


class TimedGaussians(LitGaussians):
    """The real module at the end of its schedules, noting when each step begins."""

    def on_fit_start(self) -> None:
        self.begins: list[float] = []

    def training_step(self, batch, batch_idx):
        self.begins.append(time.perf_counter())
        super().training_step(batch, batch_idx)

    def _steps_done(self) -> int:
        super()._steps_done()  # its cost belongs to the Trainer's side
        return self.schedule_steps


def through_trainer(gaussians: Gaussians, fox: Fox, steps: int) -> float:
    """Median milliseconds from the beginning of one step to that of the next."""
    module = bare_module(gaussians, fox, TimedGaussians)
    data = CaptureDataModule(fox.views, hold_out_every=0)
    for index in range(len(data.train_views)):
        _ = data.train_views[index]  # decoded now: it is not Lightning's
    with tempfile.TemporaryDirectory() as folder, RunFolder(Path(folder) / "run") as run:
        make_trainer(run, max_steps=steps, accelerator="cpu").fit(module, datamodule=data)
    return _median_gap_ms(module.begins)


def in_a_bare_loop(gaussians: Gaussians, fox: Fox, steps: int) -> float:
    module = bare_module(gaussians, fox).start()
    begins = []
    for step, index in enumerate(islice(StepSampler(len(fox.batches)), steps)):  # the data module's order
        begins.append(time.perf_counter())
        module.training_step(fox.batches[index], step)
    return _median_gap_ms(begins)


def _median_gap_ms(begins: list[float]) -> float:
    gaps = [after - before for before, after in pairwise(begins)]
    return 1000 * statistics.median(gaps[10:])


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--scene", type=Path, help="a trained scene of the fox (a run's folder or a splat file)")
    options.add_argument("--steps", type=int, default=150, help="of each turn")
    options.add_argument("--turns", type=int, default=5, help="of both")
    arguments = options.parse_args()
    begin(__doc__, arguments)
    fox, scene = load_fox(require_data(arguments, "fox/sparse/0"), num_batches=1000), scene_of(arguments)
    turns = []
    for _ in range(arguments.turns):
        turns.append((in_a_bare_loop(scene, fox, arguments.steps), through_trainer(scene, fox, arguments.steps)))
    table(["turn", "bare loop, ms", "Trainer, ms"], [[i + 1, f"{a:.2f}", f"{b:.2f}"] for i, (a, b) in enumerate(turns)])
    bare, trainer = (statistics.median(column) for column in zip(*turns, strict=True))
    added = statistics.median(b - a for a, b in turns)
    measured = f"{added:.2f} ms of {trainer:.2f} ms, {100 * added / trainer:.1f} % (bare {bare:.2f} ms)"
    goals((f"Lightning's share of a step, fox {fox.size}, {len(scene):,} Gaussians", measured, "≤ 10 %"))


if __name__ == "__main__":
    main()
