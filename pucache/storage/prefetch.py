"""Computing the next items of an iterable in a thread while the caller works on the current one."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def prefetch(items: Iterable[T], ahead: int = 1) -> Generator[T, None, None]:
    """Yield the items of an iterable in order; one thread computes up to ``ahead`` items in advance.

    Only that thread advances the iterable. An exception that the iterable raises reaches the caller in
    place of the item. When the generator is closed, the item being computed is completed first, and those
    not yet begun are dropped.

    Parameters
    ----------
    items : iterable
    ahead : int
        At least 1.

    Yields
    ------
    object
    """
    source = iter(items)
    pending = deque[Future[tuple[bool, T | None]]]()

    def next_item() -> tuple[bool, T | None]:
        for item in source:
            return True, item
        return False, None

    pool = ThreadPoolExecutor(1)
    try:
        while True:
            while len(pending) <= ahead:
                pending.append(pool.submit(next_item))
            exists, item = pending.popleft().result()
            if not exists:
                return
            yield item  # type: ignore[misc]
    finally:
        pool.shutdown(cancel_futures=True)
        getattr(source, "close", lambda: None)()  # a generator releases what it holds now
