"""Copies that look like one Gaussian; see ``spatial.kernels.relocation``."""

from __future__ import annotations

import math

import torch
from torch import Tensor

MAX_COPIES = 51
STEP, NUM_STEPS = 0.05, 120


def relocate_gaussians(opacities: Tensor, scales: Tensor, ratios: Tensor) -> tuple[Tensor, Tensor]:
    """Twin of ``spatial.kernels.relocation.relocate_gaussians``."""
    copies = ratios.clamp(1, MAX_COPIES).to(opacities.dtype)
    shared = -torch.expm1(torch.log1p(-opacities) / copies)
    integral = opacity_integral(shared, copies)
    factor = torch.where(integral > 0, opacities / integral, torch.ones_like(opacities))
    return shared, scales * factor[:, None]


def opacity_integral(opacities: Tensor, copies: Tensor) -> Tensor:
    """2/√π ∫₀^∞ 1 − (1 − p exp(−x²))ⁿ dx by the trapezoidal rule: the paper's double sum, whose terms cancel, in a form
    that does not (with 1/√j = 2/√π ∫₀^∞ exp(−j x²) dx)."""
    x = torch.arange(NUM_STEPS + 1, dtype=opacities.dtype, device=opacities.device) * STEP
    absorbed = -torch.expm1(copies[:, None] * torch.log1p(-opacities[:, None] * torch.exp(-(x**2))))
    return 2 / math.sqrt(math.pi) * STEP * (absorbed.sum(-1) - 0.5 * absorbed[:, 0])
