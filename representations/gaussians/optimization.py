"""Adam whose parameters are rows of Gaussians: only visible rows move, and rows come and go with their moments."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from spatial.kernels.adam import adam_step


class VisibleAdam(torch.optim.Optimizer):
    """Adam (Kingma 2015) in which every parameter is [N, …] and a row that no camera saw keeps value and moments.

    Args:
        groups: one parameter each: {"params": [p], "name": …, "lr": …}; "lr_scales" [K] optionally gives factors of lr
            for the first K numbers of a row, the rest of the row standing still.
    """

    def __init__(self, groups: list[dict], *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-15):
        super().__init__(groups, dict(lr=1e-3, betas=betas, eps=eps, lr_scales=None, step=0))
        for group in self.param_groups:
            (parameter,) = group["params"]
            self.state[parameter] = {"exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}

    @torch.no_grad()
    def step(self, closure: Callable | None = None, *, visible: Bool[Tensor, "N"] | None = None):
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            (parameter,) = group["params"]
            if parameter.grad is None:
                continue
            group["step"] += 1
            state = self.state[parameter]
            adam_step(
                parameter.data, parameter.grad.contiguous(), state["exp_avg"], state["exp_avg_sq"], step=group["step"],
                lr=group["lr"], betas=group["betas"], eps=group["eps"], visible=visible, lr_scales=group["lr_scales"],
            )  # fmt: skip
        return loss

    @torch.no_grad()
    def take_rows(self, index: Int[Tensor, "M"], fresh: Bool[Tensor, "M"]) -> None:
        """Every parameter becomes ``parameter[index]``; moments follow, and begin at zero where ``fresh``."""
        for group in self.param_groups:
            (parameter,) = group["params"]
            parameter.data = parameter.data[index]
            parameter.grad = None
            for name, moment in self.state[parameter].items():
                rows = moment[index]
                rows[fresh] = 0
                self.state[parameter][name] = rows

    @torch.no_grad()
    def forget(self, parameter: Tensor, rows: Tensor) -> None:
        """Sets the moments of some rows of one parameter to zero, after its values were written over."""
        for moment in self.state[parameter].values():
            moment[rows] = 0
