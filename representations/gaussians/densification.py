"""Adaptive density control: where the image asks for more Gaussians, and which ones go (Kerbl 2023, sec. 5.2; AbsGS).

A strategy has three methods: ``prepare`` on what a render left before the backward pass, ``observe`` after it, and
``update`` after the optimiser's step, which may change the number of Gaussians. Its tensors are buffers, so that a
checkpoint carries them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from representations.gaussians.model import GaussianModel
from representations.gaussians.optimization import VisibleAdam
from spatial.geometry.quaternions import rotation_matrices


class DefaultDensification(nn.Module):
    """Clones small and splits large Gaussians whose image position has a large gradient; prunes what stays faint.

    Args:
        max_gaussians: their number never exceeds this; the largest gradients are served first.
        grad_threshold: mean image gradient in normalised device coordinates; of absolute values where ``absgrad``.
        start, stop: fractions of the training in which Gaussians come and go.
        every: steps between two changes.
        small: a Gaussian below this share of the scene's extent is cloned, above it split.
        min_opacity: fainter ones are pruned.
        max_scale: ones larger than this share of the extent are pruned.
    """

    def __init__(
        self, *, max_gaussians: int, grad_threshold: float = 2e-4, absgrad: bool = True, start: float = 0.05,
        stop: float = 0.6, every: int = 100, small: float = 0.01, min_opacity: float = 0.005, max_scale: float = 0.5,
        growth: float = 0.3,
    ):  # fmt: skip
        super().__init__()
        self.max_gaussians, self.grad_threshold, self.absgrad = max_gaussians, grad_threshold, absgrad
        self.start, self.stop, self.every = start, stop, every
        self.small, self.min_opacity, self.max_scale, self.growth = small, min_opacity, max_scale, growth
        self.gradient_sums: Tensor
        self.counts: Tensor
        self.register_buffer("gradient_sums", torch.zeros(0))
        self.register_buffer("counts", torch.zeros(0))

    def prepare(self, meta: dict[str, Any]) -> None:
        meta["means2d"].retain_grad()

    @torch.no_grad()
    def observe(self, meta: dict[str, Any]) -> None:
        """Adds up how strongly each visible Gaussian is pulled across the image."""
        means2d = meta["means2d"]
        if len(self.counts) != means2d.shape[1]:
            self.gradient_sums = means2d.new_zeros(means2d.shape[1])
            self.counts = means2d.new_zeros(means2d.shape[1])
        gradient = means2d.absgrad if self.absgrad else means2d.grad
        pull = (gradient * gradient.new_tensor([meta["width"] / 2, meta["height"] / 2])).norm(dim=-1)
        self.gradient_sums += pull.sum(0)
        self.counts += (meta["radii"][..., 0] > 0).sum(0)

    @torch.no_grad()
    def update(
        self, step: int, max_steps: int, model: GaussianModel, optimizer: VisibleAdam, *, extent: float,
        generator: torch.Generator,
    ) -> None:  # fmt: skip
        """Every ``every`` steps: grow, then prune. ``extent``: the scene's size in world units."""
        if step % self.every or not self.start * max_steps <= step <= self.stop * max_steps or not len(self.counts):
            return
        self._grow(model, optimizer, extent, generator)
        self._prune(model, optimizer, extent)
        self.gradient_sums, self.counts = self.gradient_sums.new_zeros(0), self.counts.new_zeros(0)

    def _grow(self, model: GaussianModel, optimizer: VisibleAdam, extent: float, generator: torch.Generator) -> None:
        pull = self.gradient_sums / self.counts.clamp_min(1)
        room = min(self.max_gaussians - len(model), int(self.growth * len(model)))
        wanted = (pull > self.grad_threshold).nonzero()[:, 0]
        if room <= 0 or not len(wanted):
            return
        wanted = wanted[pull[wanted].argsort(descending=True, stable=True)[:room]].sort().values
        is_large = model.log_scales[wanted].max(-1).values.exp() > self.small * extent
        index = torch.cat([torch.arange(len(model)), wanted])
        fresh = torch.zeros(len(index), dtype=torch.bool)
        fresh[-len(wanted) :] = True
        old_rows = wanted[is_large]
        new_rows = len(model) + is_large.nonzero()[:, 0]
        optimizer.take_rows(index, fresh)
        split_in_place(model, optimizer, old_rows, new_rows, generator)

    def _prune(self, model: GaussianModel, optimizer: VisibleAdam, extent: float) -> None:
        keep = model.logit_opacities.sigmoid() >= self.min_opacity
        keep &= model.log_scales.max(-1).values.exp() <= self.max_scale * extent
        keep &= model.means.isfinite().all(-1)
        if not keep.all():
            index = keep.nonzero()[:, 0]
            optimizer.take_rows(index, torch.zeros(len(index), dtype=torch.bool))


def split_in_place(
    model: GaussianModel, optimizer: VisibleAdam, rows: Tensor, twins: Tensor, generator: torch.Generator
) -> None:
    """Rows and their copies ``twins`` become two smaller Gaussians, drawn from the old one (scale / 1.6)."""
    means = model.means.data[rows]
    offsets = [sample_inside(model, rows, generator) for _ in range(2)]
    for target, offset in zip((rows, twins), offsets, strict=True):
        model.means.data[target] = means + offset
        model.log_scales.data[target] -= math.log(1.6)
    for parameter in (model.means, model.log_scales):
        optimizer.forget(parameter, rows)


def sample_inside(model: GaussianModel, rows: Tensor, generator: torch.Generator) -> Float[Tensor, "M 3"]:
    """Offsets drawn from each Gaussian's own distribution."""
    normal = torch.randn(len(rows), 3, generator=generator) * model.log_scales.data[rows].exp()
    return (rotation_matrices(model.quats.data[rows]) @ normal[..., None])[..., 0]
