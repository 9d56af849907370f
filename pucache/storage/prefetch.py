"""Computing the next items of an iterable in a thread while the caller works on the current one."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def prefetch(items: Iterable[T], ahead: int = 1) -> Generator[T, None, None]:
    """Yield the items of an iterable in order; one thread, which alone advances it, computes the next ones meanwhile.

    At most `ahead` items wait, besides the one that is computed.

    An exception that the iterable raises reaches the caller in place of the item. When the generator is closed, the
    item being computed is completed first.
    """
    source = iter(items)

    def next_item() -> tuple[bool, T | None]:
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
