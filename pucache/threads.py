"""Number of threads for numerical work on the CPU, and limits on the libraries that start them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from threadpoolctl import ThreadpoolController

from .devices import cores

VALUES_PER_THREAD = 1 << 26  # values of X that a second thread is worth its synchronisation for


def threads_for(values: int) -> int:
    """Threads for passes over so many values: one per `VALUES_PER_THREAD`, at most the cores of this process.

    A thread that waits for another at every product is slower than none on a busy machine, where each
    has to wait for its turn; on a small matrix it is slower on an idle one too.
    """
    return max(1, min(cores(), values // VALUES_PER_THREAD))


@contextmanager
def limited_threads(values: int) -> Iterator[None]:
    """Let torch use `threads_for` the values, and BLAS one thread.

    With one runtime in use, no threads of another spin beside it. A lower limit that is in force
    already, such as ``OMP_NUM_THREADS=1``, is kept.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(min(before, threads_for(values)))
    try:
        with _controller().limit(limits=1, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)


@cache
def _controller() -> ThreadpoolController:
    """Libraries are looked up once per process, as that takes milliseconds."""
    return ThreadpoolController()
