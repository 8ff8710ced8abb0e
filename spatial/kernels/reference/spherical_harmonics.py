"""Real spherical harmonics with the Condon-Shortley phase; see ``spatial.kernels.spherical_harmonics``."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def spherical_harmonics(degree: int, dirs: Tensor, coeffs: Tensor, masks: Tensor | None = None) -> Tensor:
    """Twin of ``spatial.kernels.spherical_harmonics.spherical_harmonics``."""
    bases = sh_bases(degree, F.normalize(dirs, dim=-1, eps=1e-30))
    colors = (bases[..., None] * coeffs[..., : bases.shape[-1], :]).sum(-2)
    return colors if masks is None else torch.where(masks[..., None], colors, torch.zeros_like(colors))


def sh_bases(degree: int, dirs: Tensor) -> Tensor:
    """Values [..., (degree + 1)²] of the bases at unit directions [..., 3]."""
    x, y, z = dirs.unbind(-1)
    xx, yy, zz = x * x, y * y, z * z
    bands = [
        [torch.full_like(x, 0.28209479177387814)],
        [-0.4886025119029199 * y, 0.4886025119029199 * z, -0.4886025119029199 * x],
        [
            1.0925484305920792 * x * y,
            -1.0925484305920792 * y * z,
            0.31539156525252005 * (2 * zz - xx - yy),
            -1.0925484305920792 * x * z,
            0.5462742152960396 * (xx - yy),
        ],
        [
            -0.5900435899266435 * y * (3 * xx - yy),
            2.890611442640554 * x * y * z,
            -0.4570457994644658 * y * (4 * zz - xx - yy),
            0.3731763325901154 * z * (2 * zz - 3 * xx - 3 * yy),
            -0.4570457994644658 * x * (4 * zz - xx - yy),
            1.445305721320277 * z * (xx - yy),
            -0.5900435899266435 * x * (xx - 3 * yy),
        ],
        [
            2.5033429417967046 * x * y * (xx - yy),
            -1.7701307697799304 * y * z * (3 * xx - yy),
            0.9461746957575601 * x * y * (7 * zz - 1),
            -0.6690465435572892 * y * z * (7 * zz - 3),
            0.10578554691520431 * (zz * (35 * zz - 30) + 3),
            -0.6690465435572892 * x * z * (7 * zz - 3),
            0.47308734787878004 * (xx - yy) * (7 * zz - 1),
            -1.7701307697799304 * x * z * (xx - 3 * yy),
            0.6258357354491761 * (xx * (xx - 3 * yy) - yy * (3 * xx - yy)),
        ],
    ]
    return torch.stack([basis for band in bands[: degree + 1] for basis in band], dim=-1)
