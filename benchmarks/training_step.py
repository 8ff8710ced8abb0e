"""One training step, operation by operation: the fox at 270×480 with 12, 100 and 500 thousand Gaussians.

The step is the users' own (forward, L1 + SSIM, backward, Adam on visible rows, absolute image gradients), without
Lightning. The total is timed bare; its split comes from PyTorch's profiler in further steps, and what no operation
accounts for is Python, autograd and small PyTorch operations.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch
from steps import Fox, bare_module, load_fox, multiplied
from tables import begin, goals, median_ms, parser, require_data, show, table
from torch.profiler import ProfilerActivity, profile

from representations.gaussians.rendering import rasterization
from spatial.io.gaussian_files import load_gaussians
from spatial.kernels import native
from spatial.structures import Gaussians

OPERATIONS = {
    "projection": "spatial::project_gaussians", "spherical harmonics": "spatial::spherical_harmonics",
    "tile intersection": "spatial::intersect_tiles", "rasterisation": "spatial::rasterize_gaussians",
    "L1 + SSIM": "spatial::l1_ssim", "L1 + SSIM, backward": "spatial::l1_ssim_vjp",
    "rasterisation, backward": "spatial::rasterize_gaussians_vjp",
    "spherical harmonics, backward": "spatial::spherical_harmonics_vjp",
    "projection, backward": "spatial::project_gaussians_vjp", "Adam": "Optimizer.step#VisibleAdam.step",
}  # fmt: skip
GOALS_MS = {12: 15, 100: 50, 500: 200}  # by thousands of Gaussians


def split_of_a_step(gaussians: Gaussians, fox: Fox, *, steps: int) -> dict[str, float]:
    """Median milliseconds of a step, in all and by operation."""
    module = bare_module(gaussians, fox).start()
    turn = iter(range(1 << 30))

    def step() -> None:
        index = next(turn)
        module.training_step(fox.batches[index % len(fox.batches)], index)

    total = median_ms(step, repeats=steps, warm_up=4)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(max(3, steps // 2)):
            step()
    times = defaultdict(list)
    for event in profiler.events():
        times[event.name].append(event.cpu_time_total / 1000)
    split = {name: statistics.median(times[key]) for name, key in OPERATIONS.items()}
    return {"whole step": total, **split, "Python, autograd, the rest": max(0.0, total - sum(split.values()))}


def pairs_per_pixel(gaussians: Gaussians, fox: Fox) -> float:
    """How many Gaussians a pixel's tile lists, on average: what rasterisation has to look at."""
    lengths = []
    for batch in fox.batches:
        height, width, _ = batch.image.shape
        with torch.no_grad():
            _, _, meta = rasterization(
                gaussians.means, gaussians.quats, gaussians.scales, gaussians.opacities, gaussians.sh,
                batch.viewmat[None], batch.K[None], width, height, sh_degree=0,
            )  # fmt: skip
        lengths.append(len(meta["flatten_ids"]) * 256 / (width * height))
    return statistics.mean(lengths)


def reference_ms(gaussians: Gaussians, fox: Fox) -> tuple[float, float]:
    """The same small step (every tenth Gaussian, 68×120) by the kernels and by the PyTorch reference."""
    names = ("means", "quats", "log_scales", "logit_opacities", "sh")
    few = Gaussians(*(getattr(gaussians, name)[::10].contiguous() for name in names))
    small = []
    for batch in fox.batches:
        image = batch.image[::4, ::4].contiguous()
        small.append(batch._replace(image=image, K=batch.K * torch.tensor([[0.25], [0.25], [1.0]])))
    tiny = fox._replace(batches=small)
    module = bare_module(few, tiny).start()
    turn = iter(range(1 << 30))

    def step() -> None:
        index = next(turn)
        module.training_step(tiny.batches[index % len(tiny.batches)], index)

    fast = median_ms(step, repeats=20)
    with patch.object(native, "compiled", lambda: None):
        return fast, median_ms(step, repeats=3, warm_up=1)


def opensplat_ms(binary: Path, project: Path, threads: int) -> float:
    """Milliseconds a step of OpenSplat at a quarter of the resolution: 250 steps less 50, so that loading cancels."""
    seconds = {}
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        for name in ("images", "sparse"):  # without transforms.json, which it would prefer
            (folder / name).symlink_to(project.resolve() / name)
        for steps in (50, 250):
            command = [binary.resolve(), folder, "--cpu", "-n", str(steps), "-d", "4", "-o", folder / "out.ply"]
            start = time.perf_counter()
            subprocess.run(
                [str(word) for word in command], check=True, cwd=work, stdout=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            )  # fmt: skip
            seconds[steps] = time.perf_counter() - start
    return (seconds[250] - seconds[50]) / 200 * 1000


def scene_of(arguments: argparse.Namespace) -> Gaussians:
    path = arguments.scene or require_data(arguments, "splats/fox_opensplat.ply")
    scene = load_gaussians(path / "scene.ply" if path.is_dir() else path)
    return replace(scene, sh=scene.sh.contiguous())  # a PLY's columns are channel by channel


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--scene", type=Path, help="a trained scene of the fox (a run's folder or a splat file)")
    options.add_argument("--thousands", type=int, nargs="+", default=[12, 100, 500], help="numbers of Gaussians")
    options.add_argument("--steps", type=int, default=60, help="steps that are timed at 12 thousand; fewer for more")
    options.add_argument("--opensplat-binary", type=Path, help="OpenSplat's program, to run in turn on the same photos")
    arguments = options.parse_args()
    begin(__doc__, arguments)
    project = require_data(arguments, "fox/sparse/0")
    fox, scene = load_fox(project), scene_of(arguments)
    splits, labels = {}, []
    for thousands in arguments.thousands:
        gaussians = scene if thousands * 1000 <= 1.1 * len(scene) else multiplied(scene, thousands * 1000)
        splits[thousands] = split_of_a_step(gaussians, fox, steps=max(8, arguments.steps * 12 // thousands))
        labels.append(f"{len(gaussians):,} Gaussians, {pairs_per_pixel(gaussians, fox):.0f} per pixel")
    show(f"fox at {fox.size}, medians in ms; 'per pixel': Gaussians that a pixel's tile lists\n")
    table(
        ["operation", *labels],
        [[name, *(f"{split[name]:.2f}" for split in splits.values())] for name in next(iter(splits.values()))],
    )
    fast, slow = reference_ms(scene, fox)
    show(
        f"a step with {len(scene) // 10:,} Gaussians at 1/4 of that size: kernels {fast:.1f} ms, "
        f"PyTorch reference {slow:.0f} ms ({slow / fast:.0f}×)\n"
    )
    rows = [
        (
            f"a training step, fox {fox.size}, {thousands} k Gaussians",
            f"{split['whole step']:.1f} ms",
            f"≤ {GOALS_MS[thousands]} ms" if thousands in GOALS_MS else "–",
        )
        for thousands, split in splits.items()
    ]
    if arguments.opensplat_binary:
        peer = opensplat_ms(arguments.opensplat_binary, project.parents[1], arguments.threads)
        rows.append(("the same by OpenSplat, in the same run", f"{peer:.0f} ms", "–"))
    goals(*rows)


if __name__ == "__main__":
    main()
