"""Adam on visible rows; see ``spatial.kernels.adam``."""

from __future__ import annotations

import torch
from torch import Tensor


def adam_step(
    parameter: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-15,
    visible: Tensor | None = None,
    lr_scales: Tensor | None = None,
) -> None:
    """Twin of ``spatial.kernels.adam.adam_step``."""
    if lr_scales is not None:
        columns = len(lr_scales)
        parameter, gradient, exp_avg, exp_avg_sq = (
            t.view(t.shape[0], -1)[:, :columns] for t in (parameter, gradient, exp_avg, exp_avg_sq)
        )
    rates = lr if lr_scales is None else lr * lr_scales
    rows = slice(None) if visible is None else visible
    with torch.no_grad():
        first = betas[0] * exp_avg[rows] + (1 - betas[0]) * gradient[rows]
        second = betas[1] * exp_avg_sq[rows] + (1 - betas[1]) * gradient[rows] ** 2
        exp_avg[rows], exp_avg_sq[rows] = first, second
        denominator = (second / (1 - betas[1] ** step)).sqrt() + eps
        parameter[rows] -= rates / (1 - betas[0] ** step) * first / denominator
