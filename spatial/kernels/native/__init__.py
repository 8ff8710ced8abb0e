"""Finds the compiled kernels that suit this processor, and says once, clearly, where there are none."""

from __future__ import annotations

import functools
import importlib
import warnings
from types import ModuleType

import torch
from torch import Tensor

INSTRUCTION_SETS = ("avx512", "avx2", "baseline")  # best first


@functools.cache
def compiled() -> ModuleType | None:
    """The compiled kernels for the best instruction set of this processor; None, with one warning, where none is built."""
    for instruction_set in available():
        return load(instruction_set)
    warnings.warn(
        "spatial's compiled kernels are missing, so operations run on their PyTorch references, which are correct but "
        "hundreds of times slower. Install a C++20 compiler (Debian: apt install g++) and run `pip install -e .` again.",
        RuntimeWarning,
        stacklevel=2,
    )
    return None


def available() -> list[str]:
    """Instruction sets that are compiled and that this processor runs, best first."""
    try:
        baseline = load("baseline")
    except ImportError:
        return []
    return [name for name in INSTRUCTION_SETS if baseline.supports(name) and _is_built(name)]


def load(instruction_set: str) -> ModuleType:
    """The module compiled for one instruction set. Calling it on a processor that lacks the set ends the process."""
    return importlib.import_module(f"spatial.kernels.native.kernels_{instruction_set}")


def _is_built(instruction_set: str) -> bool:
    return importlib.util.find_spec(f"spatial.kernels.native.kernels_{instruction_set}") is not None


def function(name: str, like: Tensor):
    """The compiled function ``name`` for the dtype of ``like``, with as many threads as PyTorch may use."""
    module = compiled()
    assert module is not None
    module.set_num_threads(torch.get_num_threads())
    return getattr(module, name + _SUFFIXES[like.dtype])


def address(tensor: Tensor | None) -> int:
    """Address of a contiguous tensor's first element; 0 stands for a missing one."""
    return 0 if tensor is None else tensor.data_ptr()


_SUFFIXES = {torch.float32: "_f32", torch.float64: "_f64"}
