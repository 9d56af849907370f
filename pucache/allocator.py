"""Settings of glibc's memory allocator for tensors of many megabytes.

By default glibc maps every block above 128 KiB anew, has the kernel zero it page by page, and unmaps it
when it is freed. The activations of a forward pass are megabytes and live for a millisecond, so on the
CPU page faults take half of the time and more. Threads get heaps of at most 64 MiB each, beyond which
blocks are mapped anew whatever the thresholds. The remedy: one heap for all threads, nothing mapped, and
nothing returned to the kernel. docs/results/decisions.md has the difference.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # parameters of mallopt(3)
_MAX_MMAP_THRESHOLD_BEFORE_2_35 = 32 << 20  # bytes that glibc before 2.35 accepts


@functools.cache
def keep_freed_memory() -> None:
    """Make glibc keep large freed blocks, in one heap, instead of returning them to the kernel.

    Does nothing without glibc, or where the user has set MALLOC_* or GLIBC_TUNABLES. The process keeps as
    much memory as its peak needed.
    """
    settings = ("MALLOC_", "GLIBC_TUNABLES")
    if not sys.platform.startswith("linux") or any(name.startswith(settings) for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)
        mallopt(_MMAP_THRESHOLD, 1 << 30) or mallopt(_MMAP_THRESHOLD, _MAX_MMAP_THRESHOLD_BEFORE_2_35)
        mallopt(_TRIM_THRESHOLD, -1)  # never trim: whether a finite threshold helps depends on the heap's layout
