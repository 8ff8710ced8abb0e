"""Every random state that a training step can draw from, as plain values that a checkpoint may hold."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn


def random_state(module: nn.Module) -> dict[str, Any]:
    """States of Python's, NumPy's and torch's global generators, and of each `torch.Generator` that ``module`` holds.

    Generators are found as attributes of the module, of its submodules, and of the plain objects that these hold
    (a densification strategy's generator, say).
    """
    numpy_state: Any = np.random.get_state(legacy=True)
    name, keys, position, has_gauss, cached = numpy_state
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(keys.astype(np.int64)), int(position), int(has_gauss), float(cached)),
        "torch": torch.get_rng_state(),
        "generators": {name: generator.get_state() for name, generator in generators(module)},
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore_random_state(state: Mapping[str, Any], module: nn.Module) -> None:
    """Sets what `random_state` returned; ``module`` must hold the same generators."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
    for name, generator in generators(module):
        generator.set_state(state["generators"][name])


def generators(module: nn.Module) -> Iterator[tuple[str, torch.Generator]]:
    """Dotted names and generators, each generator once, in an order that only the module's structure decides."""
    seen: set[int] = set()
    for prefix, part in module.named_modules():
        for name, value in _attributes(part):
            found = [(name, value), *((f"{name}.{inner}", held) for inner, held in _attributes(value))]
            for path, candidate in found:
                if isinstance(candidate, torch.Generator) and id(candidate) not in seen:
                    seen.add(id(candidate))
                    yield f"{prefix}.{path}".lstrip("."), candidate


def _attributes(value: Any) -> list[tuple[str, Any]]:
    """An object's own attributes; none for what has no ``__dict__``. Modules' children live elsewhere."""
    return list(getattr(value, "__dict__", {}).items())
