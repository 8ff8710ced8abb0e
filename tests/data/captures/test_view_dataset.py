"""The data set's items, its memory, and an order that a resumed run continues."""

from __future__ import annotations

import gc
import threading
import time

import lightning
import numpy as np
import pytest
import torch

from data.captures.byte_cache import ByteCache
from data.captures.datamodule import CaptureDataModule
from data.captures.dataset import ViewDataset, split_views
from spatial.errors import SpatialError
from spatial.structures import Camera, View


class CountingLoad:
    """Pixels that tell the view; counts decodes."""

    def __init__(self, value: int) -> None:
        self.value, self.calls, self.thread = value, 0, 0

    def __call__(self, scale: float):
        self.calls, self.thread = self.calls + 1, threading.get_ident()
        height, width = round(48 * scale), round(64 * scale)
        mask = np.ones((height, width), bool) if self.value % 2 else None
        return np.full((height, width, 3), self.value, np.uint8), mask


def make_views(count: int) -> list[View]:
    K = torch.tensor([[50.0, 0, 30], [0, 52, 20], [0, 0, 1]], dtype=torch.float64)
    pose = torch.eye(4, dtype=torch.float64)
    return [View(f"{i:03d}.jpg", Camera(K, pose, 64, 48), load=CountingLoad(i)) for i in range(count)]


def test_item(tmp_path):
    item = ViewDataset(make_views(4), scale=0.5)[3]
    assert item.image.shape == (24, 32, 3) and item.image.dtype == torch.uint8 and (item.image == 3).all()
    assert item.mask.shape == (24, 32) and item.mask.dtype == torch.bool
    assert item.K.tolist() == [[25, 0, 15], [0, 26, 10], [0, 0, 1]] and item.K.dtype == torch.float32
    assert torch.equal(item.viewmat, torch.eye(4)) and (item.index, item.name) == (3, "003.jpg")
    assert ViewDataset(make_views(4))[2].mask is None


def test_memory_is_bounded_and_the_least_recently_used_goes_first():
    views = make_views(6)
    dataset = ViewDataset(views, cache_bytes=3 * 48 * 64 * 4)
    for index in (0, 2, 4, 0, 1):  # 2 goes when 1 comes; masks weigh too
        dataset[index]
    before = [view.load.calls for view in views]
    for index in (0, 4, 1):
        dataset[index]
    assert [view.load.calls for view in views] == before
    dataset[2]
    assert views[2].load.calls == 2


def test_cache_counts_replacements_and_refuses_what_is_too_large():
    cache: ByteCache[str] = ByteCache(10)
    cache.put("a", "x", 4)
    cache.put("a", "y", 6)
    cache.put("big", "z", 11)
    assert cache.num_bytes == 6 and cache.get("a") == "y" and "big" not in cache


def test_prefetched_views_are_decoded_once_in_the_background():
    views = make_views(8)
    dataset = ViewDataset(views, ahead=8)
    dataset.prefetch(range(8))
    values = [int(dataset[i].image[0, 0, 0]) for i in range(8)]
    dataset.close()
    assert values == list(range(8))
    assert [view.load.calls for view in views] == [1] * 8
    assert threading.get_ident() not in {view.load.thread for view in views}


def test_failure_while_fetching_ahead_is_raised_where_the_view_is_asked_for():
    views = make_views(2)

    def failing(scale):
        raise SpatialError("photo is gone")

    object.__setattr__(views[1], "load", failing)
    dataset = ViewDataset(views)
    dataset.prefetch([1])
    with pytest.raises(SpatialError, match="photo is gone"):
        dataset[1]
    assert dataset[0].index == 0
    dataset.close()


def test_split_holds_out_every_eighth_by_name_with_the_first():
    views = make_views(20)
    train, held_out = split_views(views[::-1])
    assert [view.name for view in held_out] == ["000.jpg", "008.jpg", "016.jpg"] and len(train) == 17
    assert not {view.name for view in train} & {view.name for view in held_out}
    assert split_views(views, every=0) == (views, [])


class Recorder(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[str] = []

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, batch, batch_idx):
        self.seen.append(batch.name)
        return self.weight.sum() * 0


def run(module: Recorder, data: CaptureDataModule, max_steps: int, checkpoint: str | None = None) -> lightning.Trainer:
    trainer = lightning.Trainer(
        max_steps=max_steps, logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu",
        enable_model_summary=False, barebones=False,
    )  # fmt: skip
    trainer.fit(module, data, ckpt_path=checkpoint)
    return trainer


def test_each_pass_sees_every_view_and_a_resumed_run_goes_on_with_the_same_views(tmp_path):
    whole = Recorder()
    run(whole, CaptureDataModule(make_views(12), seed=3), 25)
    train = {f"{i:03d}.jpg" for i in range(12)} - {"000.jpg", "008.jpg"}
    assert set(whole.seen[:10]) == set(whole.seen[10:20]) == train and whole.seen[:10] != whole.seen[10:20]

    first, second = Recorder(), Recorder()
    run(first, CaptureDataModule(make_views(12), seed=3), 13).save_checkpoint(tmp_path / "a.ckpt")
    run(second, CaptureDataModule(make_views(12), seed=3), 25, str(tmp_path / "a.ckpt"))
    assert first.seen + second.seen == whole.seen
    other = Recorder()
    run(other, CaptureDataModule(make_views(12), seed=4), 25)
    assert other.seen != whole.seen


def test_a_cached_step_costs_little():
    data = CaptureDataModule(make_views(16))
    batches = iter(data.train_dataloader())
    for _ in range(30):
        next(batches)
    gc.collect()
    times = []
    for _ in range(400):
        start = time.perf_counter()
        next(batches)
        times.append(time.perf_counter() - start)
    assert np.median(times) < 300e-6  # about 30 µs on a quiet machine


def test_holding_out_everything_is_an_error():
    with pytest.raises(SpatialError, match="hold_out_every=0"):
        CaptureDataModule(make_views(1))
