"""When Ctrl-C and SIGTERM may strike."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred_signals() -> Iterator[Callable[[], None]]:
    """Let Ctrl-C and SIGTERM wait; yields what lets them through, to be called where an exception does no harm.

    Raised within a call that HDF5 makes back to us, one leaves it in disorder; within a step of training,
    a network half way to the next.
    """
    if threading.current_thread() is not threading.main_thread():  # where Python handles no signals
        yield lambda: None
        return
    came: list[tuple[int, FrameType | None]] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {number: handler for number, handler in before.items() if callable(handler)}

    def let_through() -> None:
        if came:
            number, frame = came.pop()
            handlers[signal.Signals(number)](number, frame)

    for number in handlers:
        signal.signal(number, lambda number, frame: came.append((number, frame)))
    try:
        yield let_through
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        let_through()
