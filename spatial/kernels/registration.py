"""How an operation becomes a PyTorch operator: schema, CPU implementation, fake, autograd, in one call."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def register(
    schema: str,
    *,
    cpu: Callable,
    fake: Callable,
    setup_context: Callable | None = None,
    backward: Callable | None = None,
) -> Callable:
    """Registers ``spatial::name`` and returns the callable operator.

    Args:
        schema: "name(Tensor x, ...) -> Tensor", as torch.library writes it.
        cpu: implementation on contiguous CPU tensors.
        fake: shapes and dtypes only, for torch.compile.
        setup_context, backward: as torch.library.register_autograd takes them; without them no gradient is defined.
    """
    name = schema.split("(")[0]
    torch.library.define(f"spatial::{name}", schema[len(name) :], tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.impl(f"spatial::{name}", "CPU")(cpu)
    torch.library.register_fake(f"spatial::{name}")(fake)
    if backward is not None:
        torch.library.register_autograd(f"spatial::{name}", backward, setup_context=setup_context)
    return getattr(torch.ops.spatial, name).default


def require_shape(name: str, tensor: Tensor, *shape: int | None) -> None:
    """Raises ValueError unless the trailing dimensions are ``shape`` (None: any)."""
    actual = tuple(tensor.shape)
    if len(actual) != len(shape) or any(
        want is not None and got != want for got, want in zip(actual, shape, strict=True)
    ):
        wanted = ", ".join("*" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} must be [{wanted}], got {list(actual)}")


def require_same_dtype(first: Tensor, **tensors: Tensor | None) -> None:
    """Raises TypeError unless all are of the first's dtype, float32 or float64."""
    if first.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"kernels run in float32 or float64, got {first.dtype}")
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype != first.dtype:
            raise TypeError(f"{name} is {tensor.dtype}, the other inputs are {first.dtype}: convert one of them")
