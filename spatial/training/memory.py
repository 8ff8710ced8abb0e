"""Memory of a training: how much there is, and that a step's is kept for the next."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import psutil

# glibc's mallopt: never map a block by itself, and give back the heap's end only beyond 2 GB
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Memory that this process may still take: the machine's, or what a container leaves where that is less."""
    available = psutil.virtual_memory().available
    try:
        limit, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return min(available, max(0, int(limit) - int(used))) if limit != "max" else available
    except (OSError, ValueError):
        return available


def keep_freed_memory() -> None:
    """From here on, memory that a step frees stays with the process, for the next step to use.

    By default glibc maps blocks of 32 MB and more afresh each time: 500,000 Gaussians have SH gradients of 96 MB, whose
    pages the system would clear in every step, at a quarter of the step's time. Elsewhere than on glibc, nothing happens.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
