"""Lightning's part of a step stays small: the benchmark's own measurement, shortened."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "lightning_overhead.py"


def test_a_null_step_stays_below_a_tenth_of_ten_milliseconds() -> None:
    """About 0.4 ms on an idle core of 2026; the median of the best of three, so that a busy machine does not decide."""
    spec = importlib.util.spec_from_file_location("lightning_overhead", BENCHMARK)
    assert spec and spec.loader
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    torch.set_num_threads(1)
    assert min(benchmark.overhead_ms(steps=300) for _ in range(3)) < 1.0
