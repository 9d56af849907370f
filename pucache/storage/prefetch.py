"""Making the next item of an iterator in a thread while the caller works on the one before."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def prefetch(items: Iterable[T], ahead: int = 1) -> Iterator[T]:
    """Yield the items of an iterable in order, up to ``ahead`` of them made in advance by one thread.

    The iterable is advanced by that thread alone. An exception that it raises reaches the caller in
    place of the item. When the generator is closed, the item being made is completed first.

    Parameters
    ----------
    items : iterable
    ahead : int
        At least 1.

    Yields
    ------
    object
    """
    source, waiting = iter(items), deque[Future[tuple[bool, T | None]]]()

    def make() -> tuple[bool, T | None]:
        for item in source:
            return True, item
        return False, None

    with ThreadPoolExecutor(1) as thread:
        while True:
            while len(waiting) <= ahead:
                waiting.append(thread.submit(make))
            there, item = waiting.popleft().result()
            if not there:
                return
            yield item  # type: ignore[misc]
