"""3DGS as Markov chain Monte Carlo (Kheradmand 2024): a fixed budget, dead Gaussians move to where living ones are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from representations.gaussians.model import GaussianModel
from representations.gaussians.optimization import VisibleAdam
from spatial.geometry.quaternions import rotation_matrices
from spatial.kernels.relocation import relocate_gaussians


class McmcDensification(nn.Module):
    """Relocates the faint, grows by a share every ``every`` steps up to the budget, and adds noise to positions.

    Args:
        max_gaussians: the budget.
        start, stop: shares of the training between which Gaussians move and come.
        growth: least share of their number that comes at each change.
        full: share of the training by which the budget is reached, however few Gaussians and steps there are.
        min_opacity: fainter ones are dead.
        noise: strength of the exploration, times the learning rate of positions.
    """

    absgrad = False

    def __init__(
        self, *, max_gaussians: int, start: float = 0.02, stop: float = 0.85, every: int = 100, growth: float = 0.05,
        full: float = 0.5, min_opacity: float = 0.005, noise: float = 5e5,
    ):  # fmt: skip
        super().__init__()
        self.max_gaussians, self.start, self.stop, self.every = max_gaussians, start, stop, every
        self.growth, self.full, self.min_opacity, self.noise = growth, full, min_opacity, noise

    def prepare(self, meta: dict[str, Any]) -> None:
        """Nothing: the strategy needs no image gradients."""

    def observe(self, meta: dict[str, Any]) -> None:
        """Nothing."""

    @torch.no_grad()
    def update(
        self, step: int, max_steps: int, model: GaussianModel, optimizer: VisibleAdam, *, extent: float,
        generator: torch.Generator,
    ) -> None:  # fmt: skip
        if step % self.every == 0 and self.start * max_steps <= step <= self.stop * max_steps:
            self._relocate_dead(model, optimizer, generator)
            changes_left = max(1.0, (self.full * max_steps - step) / self.every)
            needed = (self.max_gaussians / len(model)) ** (1 / changes_left) - 1
            self._grow(model, optimizer, generator, share=max(self.growth, min(needed, 1.0)))
        self._add_noise(model, optimizer.param_groups[0]["lr"], generator)

    def _relocate_dead(self, model: GaussianModel, optimizer: VisibleAdam, generator: torch.Generator) -> None:
        opacities = model.logit_opacities.data.sigmoid()
        dead = (opacities <= self.min_opacity).nonzero()[:, 0]
        alive = (opacities > self.min_opacity).nonzero()[:, 0]
        if not len(dead) or not len(alive):
            return
        sources = alive[torch.multinomial(opacities[alive], len(dead), replacement=True, generator=generator)]
        self._share(model, optimizer, sources)
        for parameter in model.parameters():
            parameter.data[dead] = parameter.data[sources]
            optimizer.forget(parameter, dead)

    def _grow(
        self, model: GaussianModel, optimizer: VisibleAdam, generator: torch.Generator, *, share: float
    ) -> None:  # fmt: skip
        num = min(int(share * len(model)), self.max_gaussians - len(model))
        if num <= 0:
            return
        opacities = model.logit_opacities.data.sigmoid()
        sources = torch.multinomial(opacities, num, replacement=True, generator=generator)
        self._share(model, optimizer, sources)
        fresh = torch.zeros(len(model) + num, dtype=torch.bool)
        fresh[-num:] = True
        optimizer.take_rows(torch.cat([torch.arange(len(model)), sources]), fresh)

    def _share(self, model: GaussianModel, optimizer: VisibleAdam, sources: Tensor) -> None:
        """Each source's opacity and scale become those with which all its copies together look like the old one."""
        ratios = torch.bincount(sources, minlength=len(model))[sources] + 1
        opacities, scales = relocate_gaussians(
            model.logit_opacities.data[sources].sigmoid(), model.log_scales.data[sources].exp(), ratios
        )
        opacities = opacities.clamp(self.min_opacity, 1 - 1e-6)
        model.logit_opacities.data[sources] = torch.logit(opacities)
        model.log_scales.data[sources] = scales.log()
        for parameter in (model.logit_opacities, model.log_scales):
            optimizer.forget(parameter, sources)

    def _add_noise(self, model: GaussianModel, lr: float, generator: torch.Generator) -> None:
        """Exploration along each Gaussian's own axes, only where it is faint (eq. 9)."""
        gate = torch.sigmoid(-100 * (model.logit_opacities.data.sigmoid() - (1 - 0.995)))
        noise = torch.randn(len(model), 3, generator=generator) * (gate * lr * self.noise)[:, None]
        half = rotation_matrices(model.quats.data) * model.log_scales.data.exp()[:, None, :]
        model.means.data += (half @ (half.mT @ noise[..., None]))[..., 0]
