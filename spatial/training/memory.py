"""Memory between the steps of a training: kept, because the kernel's zeroing of fresh pages costs more than the arithmetic."""

from __future__ import annotations

import ctypes
import sys

# glibc's mallopt: never map a block by itself, and give back the heap's end only beyond 2 GB
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def keep_freed_memory() -> None:
    """From here on, memory that a step frees stays with the process, for the next step to use.

    By default glibc maps blocks of 32 MB and more afresh each time: 500,000 Gaussians have SH gradients of 96 MB, whose
    pages the system would clear in every step, at a quarter of the step's time. Elsewhere than on glibc, nothing happens.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
