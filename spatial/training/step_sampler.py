"""An endless shuffled order in which the position is the step: nothing to save, nothing to fast-forward."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import Sampler


class StepSampler(Sampler[int]):
    """Yields item indices for ever: each pass is a fresh permutation, made from the seed and the number of the pass.

    Which item step ``s`` sees depends on the seed and ``s`` alone. A resumed run passes
    ``first_step=trainer.global_step`` (already restored when Lightning asks for the loader) and sees what the
    undisturbed run saw. It draws from no global generator.

    Args:
        num_items: number of items; at least 1.
        seed: any integer.
        first_step: the step of the first index yielded.
    """

    def __init__(self, num_items: int, *, seed: int = 0, first_step: int = 0) -> None:
        self.num_items = num_items
        self.seed = seed
        self.first_step = first_step

    def __iter__(self) -> Iterator[int]:
        epoch, position = divmod(self.first_step, self.num_items)
        while True:
            yield from self.permutation(epoch)[position:]
            epoch, position = epoch + 1, 0

    def permutation(self, epoch: int) -> list[int]:
        """The order of pass ``epoch``."""
        # Two large odd multipliers keep (seed, epoch) and (seed + 1, epoch - 1) apart.
        mixed = (self.seed * 0x9E3779B97F4A7C15 + epoch * 0xBF58476D1CE4E5B9) % (1 << 63)
        generator = torch.Generator().manual_seed(mixed)
        return torch.randperm(self.num_items, generator=generator).tolist()
