"""Views as training examples: decoded once, kept while they fit, fetched ahead by one thread where they do not."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor
from torch.utils.data import Dataset

from data.captures.byte_cache import ByteCache
from spatial.structures import View


class ViewBatch(NamedTuple):
    """One photo with its camera.

    Attributes:
        image: [H, W, 3] uint8, display sRGB, undistorted.
        mask: [H, W] True where the pixel belongs to the scene; None where all do.
        viewmat: [4, 4] float32 ``camera_from_world``.
        K: [3, 3] float32, pixels of ``image``.
        index: position in the data set.
        name: of the view.
    """

    image: UInt8[Tensor, "H W 3"]
    mask: Bool[Tensor, "H W"] | None
    viewmat: Float[Tensor, "4 4"]
    K: Float[Tensor, "3 3"]
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody wants of a batch
    name: str


class ViewDataset(Dataset[ViewBatch]):
    """The views at one scale. What an item holds depends on the view and the scale alone, never on the cache.

    Args:
        views: photos with poses.
        scale: at most 1, of the views' own size.
        cache_bytes: decoded images kept in memory; the least recently used make room. Safe to share between threads.
        ahead: views that `prefetch` decodes in the background at most.
    """

    def __init__(
        self, views: Sequence[View], *, scale: float = 1.0, cache_bytes: int = 1 << 30, ahead: int = 4
    ) -> None:
        self.views = list(views)
        self.scale = scale
        self.ahead = ahead
        self._cache: ByteCache[ViewBatch] = ByteCache(cache_bytes)
        self._coming: dict[int, Future[ViewBatch]] = {}
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return len(self.views)

    def __getitem__(self, index: int) -> ViewBatch:
        item = self._cache.get(index)
        if item is not None:
            return item
        with self._lock:
            coming = self._coming.get(index)
        return coming.result() if coming is not None else self._load(index)

    def prefetch(self, indices: Iterable[int]) -> None:
        """Starts decoding the views that will be asked for next and are not in memory; returns at once."""
        for index in indices:
            if index in self._cache:
                continue
            with self._lock:
                if index in self._coming or len(self._coming) >= self.ahead:
                    continue
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="views")
                self._coming[index] = self._pool.submit(self._load_ahead, index)

    def close(self) -> None:
        """Ends the background thread. The data set stays usable."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            self._coming.clear()

    def _load_ahead(self, index: int) -> ViewBatch:
        try:
            return self._load(index)
        finally:
            with self._lock:
                self._coming.pop(index, None)

    def _load(self, index: int) -> ViewBatch:
        view = self.views[index]
        image, mask = view.load(self.scale)
        camera = view.camera.resized(image.shape[1], image.shape[0])
        item = ViewBatch(
            image=torch.from_numpy(np.array(image, copy=None if image.flags.writeable else True)),
            mask=None if mask is None else torch.from_numpy(mask),
            viewmat=camera.camera_from_world.float(),
            K=camera.K.float(),
            index=index,
            name=view.name,
        )
        self._cache.put(index, item, image.nbytes + (0 if mask is None else mask.nbytes))
        return item


def split_views(views: Sequence[View], *, every: int = 8) -> tuple[list[View], list[View]]:
    """(for training, held out): by sorted name every ``every``-th is held out, the first included; 0 holds out none.

    The field's protocol (Mip-NeRF 360, 3DGS): numbers compare only between runs that split alike.
    """
    ordered = sorted(views, key=lambda view: view.name)
    if every <= 0:
        return ordered, []
    return (
        [view for index, view in enumerate(ordered) if index % every],
        [view for index, view in enumerate(ordered) if index % every == 0],
    )
