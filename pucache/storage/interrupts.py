"""Deferring Ctrl-C and SIGTERM while an exception would do harm: in HDF5, a training step or an import."""

from __future__ import annotations

import inspect
import signal
import sys
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


def raise_after_imports(error: BaseException) -> None:
    """Raise `error` now, or where modules are being imported, once the outermost import has ended.

    C++ that initialises a module calls Python; an exception that a signal handler raises there ends the process by
    abort, or comes out as an ImportError. Called by a signal handler, in the main thread.
    """
    if not _is_importing(inspect.currentframe()):
        raise error

    def watch(frame: FrameType, event: str, argument: object) -> None:
        if event == "return" and _is_import(frame) and not _is_importing(frame.f_back):
            sys.setprofile(None)
            raise error

    sys.setprofile(watch)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None and not _is_import(frame):
        frame = frame.f_back
    return frame is not None


def _is_import(frame: FrameType) -> bool:
    code = frame.f_code
    return code.co_name == "_find_and_load" and code.co_filename == "<frozen importlib._bootstrap>"
