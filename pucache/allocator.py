"""The allocator trap: the one place where pucache tells glibc how to handle large tensors.

glibc maps every block above 128 KiB afresh, lets the kernel zero it page by page, and unmaps it when
it is freed. An activation of a forward pass is megabytes, lives for a millisecond and comes back at
once, so on the CPU half and more of the time goes into page faults. And threads get heaps of their
own of at most 64 MiB, beyond which blocks are mapped again whatever the thresholds say. So: one heap
for all threads, nothing mapped, nothing given back. Nothing needs to be set around the process;
``benchmarks/speed/embed.py`` measures the difference.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of mallopt(3)


@functools.cache
def keep_freed_memory() -> None:
    """Let glibc keep large freed blocks, in one heap, instead of returning them to the kernel.

    Does nothing off glibc, or where the user set MALLOC_* or GLIBC_TUNABLES themselves. The memory that
    stays with the process is what its busiest moment needed.
    """
    settings = ("MALLOC_", "GLIBC_TUNABLES")
    if not sys.platform.startswith("linux") or any(name.startswith(settings) for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)
        mallopt(_MMAP_THRESHOLD, 1 << 30) or mallopt(_MMAP_THRESHOLD, 32 << 20)  # the most that glibc before 2.35 takes
        mallopt(_TRIM_THRESHOLD, -1)  # never: any finite size helps or not by the luck of the heap's layout
