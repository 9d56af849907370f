"""Threads: their number for numerical work on the CPU, limits on the libraries that start them, and work ahead.

Threads that wait for each other after every product are slower than one thread on a busy machine,
where each of them waits for its turn, and on small matrices also on an idle one. So products have one
thread unless they are large, long sums are divided among threads that meet once at the end
(`worker_threads`), one threading runtime is in use at a time, and threads sleep while they wait.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ContextDecorator, contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from .devices import cores

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

T = TypeVar("T")
RunAll = Callable[[Sequence[Callable[[], Any]]], Iterator[Any]]

VALUES_PER_THREAD = 1 << 24  # products of a step from which on one more thread pays for its synchronisation


def thread_defaults() -> dict[str, str]:
    """Environment variables that numerical libraries read when they are loaded.

    Threads sleep while they wait, OpenBLAS has one thread, and OpenMP as many as the cores that this
    process may use (a container's quota counts).
    """
    return {
        "OMP_NUM_THREADS": str(cores()),
        "OMP_WAIT_POLICY": "PASSIVE",
        "KMP_BLOCKTIME": "0",
        "OPENBLAS_NUM_THREADS": "1",
    }


def set_thread_defaults() -> None:
    """Set `thread_defaults` in the environment; variables that are set already are left alone."""
    for name, value in thread_defaults().items():
        os.environ.setdefault(name, value)


def threads_for(values: int) -> int:
    """Threads for a step of so many products: one per `VALUES_PER_THREAD`, at most the cores of this process."""
    return max(1, min(cores(), values // VALUES_PER_THREAD))


class _OneBlasThread(ContextDecorator):
    """Limit BLAS to one thread, so that products of numpy have the same bits whatever the number of threads.

    The limit holds for the process. It is lifted when the last of several overlapping uses ends.
    """

    def __init__(self) -> None:
        self._lock, self._uses, self._limit = threading.Lock(), 0, cast(Any, None)

    def __enter__(self) -> None:
        with self._lock:
            if not self._uses:
                self._limit = _libraries(len(sys.modules)).limit(limits=1, user_api="blas")
            self._uses += 1

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._uses -= 1
            if not self._uses:
                self._limit.restore_original_limits()


one_blas_thread = _OneBlasThread()  # around a block, or as a decorator


class _TorchThreads(threading.local):
    """Limits of torch that this thread is within, the innermost last; empty outside."""

    def __init__(self) -> None:
        self.limits: list[int] = []


_torch_threads = _TorchThreads()
_unlimited: list[int] = []  # threads that torch had before each of the limits that are in force in any thread
_unlimited_lock = threading.Lock()


@contextmanager
def limited_threads(values: int) -> Iterator[int]:
    """Let torch use `threads_for` the values at most, and BLAS one thread; several threads may do so at the same time.

    `values` are the multiplications of one step. Yields the threads that the process allows: those of torch before the
    limit, and no more than its cores.
    """
    import torch

    with one_blas_thread:
        with _unlimited_lock:
            before = _unlimited[0] if _unlimited else torch.get_num_threads()
            _unlimited.append(before)
        allowed, limits = min(before, cores()), _torch_threads.limits
        try:
            limits.append(min(allowed, threads_for(values)))
            torch.set_num_threads(limits[-1])
            yield allowed
        finally:
            limits.pop()
            with _unlimited_lock:
                torch.set_num_threads(limits[-1] if limits else before)
                _unlimited.pop()


@contextmanager
def worker_threads(count: int) -> Iterator[RunAll]:
    """Yield a function that runs tasks in `count` threads and yields their results in order.

    Torch has one thread in each of them, flushes denormals and records no gradients. With one thread, tasks run in the
    calling thread.
    """
    if count < 2:
        yield lambda tasks: (task() for task in tasks)
        return
    import torch

    def prepare() -> None:
        torch.set_num_threads(1)
        torch.set_flush_denormal(True)

    def without_gradients(task: Callable[[], T]) -> T:
        with torch.inference_mode():
            return task()

    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(count, initializer=prepare) as pool:
            yield lambda tasks: pool.map(without_gradients, tasks)
    finally:
        torch.set_num_threads(before)  # what a worker sets is also the default of threads to come


@lru_cache(maxsize=1)
def _libraries(modules: int) -> ThreadpoolController:
    """The loaded libraries, looked up again when further modules have been imported: that takes milliseconds."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


Item = TypeVar("Item")


def prefetch(items: Iterable[Item], ahead: int = 1) -> Generator[Item, None, None]:
    """Yield the items of an iterable in order; one thread, which alone advances it, computes the next ones meanwhile.

    At most `ahead` items wait, besides the one that is computed.

    An exception that the iterable raises reaches the caller in place of the item. When the generator is closed, the
    item being computed is completed first.
    """
    source = iter(items)

    def next_item() -> tuple[bool, Item | None]:
        for item in source:
            return True, item
        return False, None

    pool = ThreadPoolExecutor(1)
    try:
        pending = deque(pool.submit(next_item) for _ in range(ahead))
        while True:
            pending.append(pool.submit(next_item))
            exists, item = pending.popleft().result()
            if not exists:
                return
            yield item  # type: ignore[misc]
    finally:
        pool.shutdown(cancel_futures=True)
        getattr(source, "close", lambda: None)()  # a generator releases what it holds now
