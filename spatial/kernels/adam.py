"""Adam on the rows that a step has seen (Kingma 2015; "selective" as in Taming 3DGS, Mallick 2024)."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from spatial.kernels import native, reference
from spatial.kernels.registration import require_same_dtype


def adam_step(
    parameter: Float[Tensor, "N *rest"],
    gradient: Float[Tensor, "N *rest"],
    exp_avg: Float[Tensor, "N *rest"],
    exp_avg_sq: Float[Tensor, "N *rest"],
    *,
    step: int,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-15,
    visible: Bool[Tensor, "N"] | None = None,
    lr_scales: Float[Tensor, "K"] | None = None,
) -> None:
    """One step of Adam in place. Rows where ``visible`` is False keep their value and moments.

    Args:
        step: number of this step, from 1: the bias corrections are 1 − betaˢᵗᵉᵖ.
        lr_scales: factors of ``lr`` for the first K numbers of each (flattened) row; the numbers beyond K, and their
            moments, stay as they are.

    Raises:
        ValueError: on a tensor that is not contiguous (it is changed in place), or of another shape.
        TypeError: on lr_scales of another dtype.
    """
    require_same_dtype(parameter, lr_scales=lr_scales)
    state = {"parameter": parameter, "gradient": gradient, "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}
    for name, tensor in state.items():
        if tensor.shape != parameter.shape or not tensor.is_contiguous() or tensor.dtype != parameter.dtype:
            raise ValueError(f"{name} must be contiguous {parameter.dtype} {list(parameter.shape)}, got {tensor.dtype} "
                             f"{list(tensor.shape)}")  # fmt: skip
    if not native.compiled():
        reference.adam.adam_step(
            parameter,
            gradient,
            exp_avg,
            exp_avg_sq,
            step=step,
            lr=lr,
            betas=betas,
            eps=eps,
            visible=visible,
            lr_scales=lr_scales,
        )
        return
    visible = None if visible is None else visible.contiguous()
    lr_scales = None if lr_scales is None else lr_scales.contiguous()
    rows = parameter.shape[0]
    row_size = parameter.numel() // max(rows, 1)
    native.function("adam", parameter)(
        rows, row_size,
        *map(native.address, (visible, parameter, gradient, exp_avg, exp_avg_sq)),
        lr, *betas, eps, 1 - betas[0] ** step, 1 - betas[1] ** step, row_size if lr_scales is None else len(lr_scales),
        native.address(lr_scales),
    )  # fmt: skip
