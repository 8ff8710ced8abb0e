"""Lightning's side of a capture: one view a step, in an order that depends on the seed and the step alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import lightning
from torch.utils.data import DataLoader, Sampler

from data.captures.dataset import ViewBatch, ViewDataset, split_views
from spatial.errors import SpatialError
from spatial.structures import View
from spatial.training.step_sampler import StepSampler


class CaptureDataModule(lightning.LightningDataModule):
    """Batches are single `ViewBatch`es: for training without end and shuffled, for validation the held-out in order.

    Args:
        views: the capture's views.
        hold_out_every: every n-th view by name is held out, the first included; 0 trains on all.
        scale: at most 1, of the views' own size.
        cache_bytes: decoded images kept in memory, training and held-out together.
        seed: of the order.
    """

    def __init__(
        self,
        views: Sequence[View],
        *,
        hold_out_every: int = 8,
        scale: float = 1.0,
        cache_bytes: int = 1 << 30,
        seed: int = 0,
    ) -> None:
        super().__init__()
        train, held_out = split_views(views, every=hold_out_every)
        if not train:
            raise SpatialError(f"no view is left for training of {len(views)}; set data.hold_out_every=0")
        share = cache_bytes * len(train) // len(views)
        self.train_views = ViewDataset(train, scale=scale, cache_bytes=share)
        self.held_out_views = ViewDataset(held_out, scale=scale, cache_bytes=cache_bytes - share)
        self.hold_out_every = hold_out_every
        self.seed = seed

    def train_dataloader(self) -> DataLoader[ViewBatch]:
        first_step = self.trainer.global_step if self.trainer is not None else 0
        order = StepSampler(len(self.train_views), seed=self.seed, first_step=first_step)
        return _plain_loader(self.train_views, _AnnouncedOrder(order, self.train_views))

    def val_dataloader(self) -> DataLoader[ViewBatch]:
        return _plain_loader(self.held_out_views, None)

    def teardown(self, stage: str) -> None:
        self.train_views.close()
        self.held_out_views.close()


class _AnnouncedOrder(Sampler[int]):
    """Yields what ``order`` yields, having told the data set of the next few, so that they are decoded meanwhile."""

    def __init__(self, order: StepSampler, views: ViewDataset) -> None:
        self.order = order
        self.views = views

    def __iter__(self) -> Iterator[int]:
        indices = iter(self.order)
        coming = deque(next(indices) for _ in range(self.views.ahead))
        while True:
            current = coming.popleft()
            coming.append(next(indices))
            self.views.prefetch(coming)
            yield current


def _plain_loader(views: ViewDataset, sampler: Sampler[int] | None) -> DataLoader[ViewBatch]:
    """No worker processes and no collation: a step costs a look-up."""
    return DataLoader(views, batch_size=None, sampler=sampler, collate_fn=_as_it_is, num_workers=0)


def _as_it_is(item: Any) -> Any:
    return item
