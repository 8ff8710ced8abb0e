"""Scaling of the kernels from one thread to two: the operations of a training step on the fox at 270×480."""

from __future__ import annotations

from pathlib import Path

import torch
from steps import load_fox, multiplied
from tables import begin, goals, parser, require_data, table
from training_step import scene_of, split_of_a_step


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--scene", type=Path, help="a trained scene of the fox (a run's folder or a splat file)")
    options.add_argument("--thousands", type=int, default=100, help="number of Gaussians")
    options.add_argument("--steps", type=int, default=12)
    arguments = options.parse_args()
    begin(__doc__, arguments)
    fox, scene = load_fox(require_data(arguments, "fox/sparse/0")), scene_of(arguments)
    gaussians = multiplied(scene, arguments.thousands * 1000)
    splits = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        splits.append(split_of_a_step(gaussians, fox, steps=arguments.steps))
    rows = [
        [
            name,
            f"{splits[0][name]:.2f}",
            f"{splits[1][name]:.2f}",
            f"{splits[0][name] / max(1e-6, splits[1][name]):.2f}×",
        ]
        for name in splits[0]
    ]
    table([f"{len(gaussians):,} Gaussians, ms", "1 thread", "2 threads", "faster by"], rows)
    gain = splits[0]["whole step"] / splits[1]["whole step"]
    goals(("a training step with 2 threads against 1, 100 k Gaussians", f"{gain:.2f}×", "all cores used"))


if __name__ == "__main__":
    main()
