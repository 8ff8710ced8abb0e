"""Opacity and scale of Gaussians that are split into copies at one place (Kheradmand 2024, "3DGS as MCMC", eq. 9)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from spatial.kernels import native, reference
from spatial.kernels.registration import register, require_same_dtype, require_shape

MAX_COPIES = 51  # as the paper's own code


class Relocation(NamedTuple):
    opacities: Float[Tensor, "N"]
    scales: Float[Tensor, "N 3"]


def relocate_gaussians(
    opacities: Float[Tensor, "N"], scales: Float[Tensor, "N 3"], ratios: Int[Tensor, "N"]
) -> Relocation:
    """Opacity and scale of each of ``ratios`` copies that together look like the one Gaussian that they replace.

    Opacities become 1 − (1 − o)^(1/n), so that the copies' centre is as opaque as before, and scales shrink so that a
    line through the centre of the copies gathers as much opacity as before. Not differentiable.

    Args:
        opacities: in [0, 1].
        ratios: number of copies n, the original included; counted as 1 below 1 and as 51 beyond 51.
    """
    num = opacities.shape[0]
    require_shape("opacities", opacities, None)
    require_shape("scales", scales, num, 3)
    require_shape("ratios", ratios, num)
    require_same_dtype(opacities, scales=scales)
    call = _relocate if native.compiled() else reference.relocation.relocate_gaussians
    copies = ratios.clamp(1, MAX_COPIES).to(torch.int32)
    return Relocation(*call(opacities.detach().contiguous(), scales.detach().contiguous(), copies.contiguous()))


def _relocate_cpu(opacities, scales, ratios):
    new_opacities, new_scales = torch.empty_like(opacities), torch.empty_like(scales)
    native.function("relocate_gaussians", opacities)(
        opacities.shape[0], *map(native.address, (opacities, scales, ratios, new_opacities, new_scales))
    )
    return new_opacities, new_scales


_relocate = register(
    "relocate_gaussians(Tensor opacities, Tensor scales, Tensor ratios) -> (Tensor, Tensor)",
    cpu=_relocate_cpu,
    fake=lambda opacities, scales, ratios: (torch.empty_like(opacities), torch.empty_like(scales)),
)
