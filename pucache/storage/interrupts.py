"""Deferring Ctrl-C and SIGTERM during operations that an exception must not interrupt."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred_signals() -> Iterator[Callable[[], None]]:
    """Defer SIGINT and SIGTERM to the end of the block.

    An exception that a signal handler raises within a callback from HDF5 corrupts HDF5's state; within a training step
    it leaves the network partly updated. The function that is yielded runs the handler of a signal that has arrived;
    call it where an exception does no harm. Outside the main thread, where Python runs no signal handlers, nothing is
    changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    pending: list[tuple[int, FrameType | None]] = []
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {number: handler for number, handler in previous.items() if callable(handler)}

    def deliver() -> None:
        if pending:
            number, frame = pending.pop()
            handlers[signal.Signals(number)](number, frame)

    for number in handlers:
        signal.signal(number, lambda number, frame: pending.append((number, frame)))
    try:
        yield deliver
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        deliver()
