"""What the benchmarks share: the machine in a line, tables, the fox, and a way to say why one is skipped."""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import psutil
import torch

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))  # a clone is enough, installed or not
from spatial.kernels import native  # noqa: E402

GOAL_HEADER = ("what", "measured", "to reach")  # run_all.py gathers the tables with these columns


def parser(description: str | None) -> argparse.ArgumentParser:
    """Options that every benchmark has."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "--data", type=Path, default=REPOSITORY.parent / "shared" / "data", help="folder of real captures"
    )
    made.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="of the kernels and PyTorch")
    return made


def begin(description: str | None, arguments: argparse.Namespace) -> None:
    """Sets the threads and names the machine, without which no number means anything.

    PyTorch's idle OpenMP threads would spin for the cores that the kernels' own pool works on; `spatial` puts them to
    sleep by a variable that is read when the process starts, hence the new start.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.execve(
            sys.executable,
            [sys.executable, *sys.argv],
            {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "2000", "KINETO_LOG_LEVEL": "99"},
        )
    torch.set_num_threads(arguments.threads)
    show(f"{(description or '').splitlines()[0]}\n{machine(arguments.threads)}\n")


def machine(threads: int) -> str:
    """Processor, memory, kernels, versions, and how busy the machine is at this moment."""
    sets = native.available()
    load = f"load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "load unknown"
    return (
        f"{processor()}, {threads} of {os.cpu_count()} cores, {psutil.virtual_memory().total / 1e9:.0f} GB, kernels "
        f"{sets[0] if sets else 'missing (PyTorch reference)'}, torch {torch.__version__}, {load}, "
        f"{time.strftime('%Y-%m-%d %H:%M')}"
    )


def processor() -> str:
    path = Path("/proc/cpuinfo")
    names = [line for line in path.read_text().splitlines() if line.startswith("model name")] if path.exists() else []
    return names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine()


def show(text: str = "") -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A Markdown table whose columns also line up in a terminal."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    show("\n".join(lines) + "\n")


def goals(*rows: tuple[str, str, str]) -> None:
    """What was measured beside what is to be reached."""
    table(GOAL_HEADER, rows)


def skip(reason: str) -> NoReturn:
    show(f"skipped: {reason}")
    raise SystemExit(0)


def require_data(arguments: argparse.Namespace, relative: str) -> Path:
    """A file or folder of the real captures; the benchmark is skipped where it is absent."""
    path = arguments.data / relative
    if not path.exists():
        skip(f"{path} is not on this machine; give the folder that holds {relative.split('/')[0]}/ by --data")
    return path


def child_environment() -> dict[str, str]:
    """For subprocesses: the packages of this clone, whether installed or not."""
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def median_ms(function: Callable[[], object], *, repeats: int, warm_up: int = 2) -> float:
    """Median milliseconds of one call."""
    for _ in range(warm_up):
        function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)
