"""Time to quality: the fox at 270×480 with the poses given, every 8th photo held out (7 photos), mean PSNR in dB.

`reconstruct` runs as for a user, its configuration composed by the command line; a clock that stands still during
evaluations watches its training. Two runs: how soon 25.1 dB are reached, and what 300 s of training give.
"""

from __future__ import annotations

import logging
import shlex
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from hydra.utils import instantiate
from tables import begin, goals, parser, require_data, show, table

from representations.gaussians.evaluation import evaluate_views
from representations.gaussians.reconstruction import Split
from representations.gaussians.training import LitGaussians
from spatial.cli.arguments import parse_arguments
from spatial.cli.compose import compose_config, resolved
from spatial.cli.main import _build
from spatial.cli.verbs import read_verb

TARGET_DB, LONG_S = 25.1, 300.0


class Point(NamedTuple):
    """Where training was when the held-out photos were measured."""

    step: int
    seconds: float
    psnr: float
    num_gaussians: int


class Clock:
    """Wraps a run's ``data`` and ``model``: measures the held-out photos at times, and ends training early.

    Args:
        measure_at: seconds of training at which to measure.
        enough: ends the training when this is true of a measurement.
    """

    def __init__(self, measure_at: list[float], enough: Callable[[Point], bool]) -> None:
        self.measure_at, self.enough = list(measure_at), enough
        self.points: list[Point] = []
        self.excluded_s = 0.0

    def data(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*positional: Any, **options: Any) -> Any:
            data = make(*positional, **options)
            self.split = Split.of(data)
            return data

        return made

    def model(self, make: Callable[..., LitGaussians]) -> Callable[..., LitGaussians]:
        def made(*positional: Any, **options: Any) -> LitGaussians:
            module = make(*positional, **options)
            module.on_train_start = partial(self._start, module)  # type: ignore[method-assign]
            module.on_train_batch_end = partial(self._look, module)  # type: ignore[method-assign]
            module.on_train_end = partial(self._measure, module)  # type: ignore[method-assign]
            return module

        return made

    def _start(self, module: LitGaussians) -> None:
        self.began = time.perf_counter()

    def _look(self, module: LitGaussians, *_: Any) -> None:
        now = time.perf_counter() - self.began - self.excluded_s
        if self.measure_at and now >= self.measure_at[0]:
            while self.measure_at and now >= self.measure_at[0]:
                self.measure_at.pop(0)
            module.trainer.should_stop = self.enough(self._measure(module))

    def _measure(self, module: LitGaussians) -> Point:
        start = time.perf_counter()
        psnr = evaluate_views(
            module.model.gaussians(), self.split.held_out, scale=self.split.scale, with_lpips=False
        ).psnr
        seconds = start - self.began - self.excluded_s
        point = Point(module.trainer.global_step, seconds, psnr or 0.0, len(module.model))
        if not self.points or point.step > self.points[-1].step:
            self.points.append(point)
        self.excluded_s += time.perf_counter() - start
        return point


def run(project: Path, settings: list[str], clock: Clock) -> list[Point]:
    """Trains by the users' configuration and returns the curve."""
    verb = read_verb("reconstruct")
    words = ["reconstruct", str(project), "load_capture.max_image_size=480", "video_seconds=0", *settings]
    config = resolved(compose_config(verb, parse_arguments(words)), verb)
    built = _build(config)
    data, model = (instantiate(config[name], _convert_="all") for name in ("data", "model"))
    with tempfile.TemporaryDirectory() as folder:
        built(out=str(Path(folder) / "run"), data=clock.data(data), model=clock.model(model), config=config)
    return clock.points


def curve(points: list[Point]) -> None:
    rows = [[f"{p.seconds:.1f}", p.step, f"{p.psnr:.2f}", f"{p.num_gaussians:,}"] for p in points]
    table(["seconds of training", "step", "held-out PSNR, dB", "Gaussians"], rows)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--fast", default="quality=draft", help="settings of the run to 25.1 dB")
    options.add_argument("--long", default="quality=standard", help="settings of the run of 300 s")
    options.add_argument("--every", type=float, default=2.0, help="seconds of training between measurements, first run")
    options.add_argument("--seconds", type=float, default=LONG_S, help="of the second run; 0 for none")
    arguments = options.parse_args()
    begin(__doc__, arguments)
    project = require_data(arguments, "fox/sparse/0")
    logging.getLogger("spatial").setLevel(logging.WARNING)

    ticks = [arguments.every * i for i in range(1, 1000)]
    points = run(project, shlex.split(arguments.fast), Clock(ticks, lambda point: point.psnr >= TARGET_DB))
    show(f"{arguments.fast}, until {TARGET_DB} dB\n")
    curve(points)
    reached = next((point for point in points if point.psnr >= TARGET_DB), None)
    best = max(points, key=lambda point: point.psnr)
    measured = (
        f"{reached.seconds:.1f} s (step {reached.step})" if reached else f"not reached; {best.psnr:.2f} dB at most"
    )
    rows = [(f"fox 270×480, held out every 8th: time to {TARGET_DB} dB", measured, "≤ 20 s")]

    if arguments.seconds:
        ticks = [arguments.seconds * share for share in (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)]
        clock = Clock(ticks, lambda point: point.seconds >= arguments.seconds)
        points = run(project, shlex.split(arguments.long), clock)
        show(f"{arguments.long}, {arguments.seconds:.0f} s\n")
        curve(points)
        last = points[-1]
        measured = f"{last.psnr:.2f} dB after {last.seconds:.0f} s ({last.num_gaussians:,} Gaussians, step {last.step})"
        rows.append(("the same, PSNR after 5 minutes", measured, "≥ 27.5 dB"))
    goals(*rows)


if __name__ == "__main__":
    main()
