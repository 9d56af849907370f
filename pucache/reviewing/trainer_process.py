"""What the child process of the trainer runs: it receives labels, fits, and sends rankings.

One thread receives labels and keeps the newest alone; the main thread fits, one fit at a time. When the server is
gone the receiver reads the end of the pipe and ends the process at once, also within a fit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from multiprocessing.connection import Connection

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..errors import one_line
from ..neighbours.graph import NeighbourGraph, cached_graph
from .ranker import Ranker

Update = tuple[int, np.ndarray, np.ndarray]  # serial number, s, reviewed
NICE, _GRAPH_NICE = 5, 15  # the server, and in this process the fits, go first
MOST_PAIRS = 1 << 34  # rows times rows; in larger piles neighbours would take minutes and gigabytes
_FITS_BEFORE_CHOICE = 3  # with newer labels all the time, a choice that is due waits for so many fits


class _Child:
    """Fits the newest labels of each session, one fit at a time, and sends the rankings.

    Where the server is gone, the process ends.
    """

    def __init__(self, connection: Connection):
        self._connection, self._sending = connection, threading.Lock()
        self._changed = threading.Condition()
        self._newest: dict[int, Update] = {}  # by session
        self._waiting: dict[int, None] = {}  # sessions to be fitted, in order
        self._preferred = -1  # session whose page is open
        self._graph: NeighbourGraph | None = None
        self._rankers: dict[int, Ranker] = {}
        self._postponed: Counter[int] = Counter()  # fits without a choice that was due, by session

    def receive(self) -> None:
        """Receive until the server is gone; in a thread of its own."""
        try:
            while True:
                session, *update = self._connection.recv()
                with self._changed:
                    if update:
                        self._newest[session], self._waiting[session] = tuple(update), None
                    else:
                        self._preferred = session
                    self._changed.notify()
        except (EOFError, OSError):
            os._exit(0)

    def send(self, *message: object) -> None:
        """Send a message, from any thread."""
        try:
            with self._sending:
                self._connection.send(message)
        except OSError:
            os._exit(0)

    def run(self, paths: Sequence[str], groups: np.ndarray | None, seed: int, device: str) -> None:
        """Fit for ever."""
        cache = EmbeddingCache(*paths)
        ranker = Ranker(cache, groups=groups, seed=seed, device=device)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                session = self._preferred if self._preferred in self._waiting else next(iter(self._waiting))
                del self._waiting[session]
                serial, s, reviewed = self._newest[session]
            try:
                if not self._rankers:
                    self._rankers[session] = ranker
                    self.send("ranked", session, serial, ranker.similarity(s, reviewed))
                    if len(cache) ** 2 <= MOST_PAIRS:
                        threading.Thread(target=self._find_graph, args=(cache, device), daemon=True).start()
                if session not in self._rankers:
                    self._rankers[session] = Ranker(
                        cache, groups=groups, seed=seed, device=device, features=ranker.features
                    )
                self._fit(session, serial, s, reviewed)
            except Exception as error:
                self.send("failed", f"training failed: {one_line(error)}")
            self.send("idle", session, serial)

    def _fit(self, session: int, serial: int, s: np.ndarray, reviewed: np.ndarray) -> None:
        ranker = self._rankers[session]
        ranker.graph = self._graph
        due = ranker.choice_is_due(s, reviewed)
        at_once = due and self._postponed[session] >= _FITS_BEFORE_CHOICE
        self.send("ranked", session, serial, ranker.fit(s, reviewed, choose=at_once))
        self._postponed[session] = (self._postponed[session] + 1) * (due and not at_once)
        if due and not at_once and session not in self._waiting:
            self.send("ranked", session, serial, ranker.fit(s, reviewed, choose=True))
            self._postponed[session] = 0

    def _find_graph(self, cache: EmbeddingCache, device: str) -> None:
        """Read the graph beside the cache, or make it; in a thread of its own."""
        with contextlib.suppress(OSError, AttributeError):  # threads have their own priority on Linux alone
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _GRAPH_NICE)
        try:
            graph = cached_graph(cache, device=device)
            with self._changed:
                self._graph = graph
                self._waiting |= dict.fromkeys(self._newest)
                self._changed.notify()
        except Exception as error:
            self.send("failed", f"neighbours do not count: {one_line(error)}")


def train_for(descriptor: int) -> None:
    """Train for the `Trainer` at the other end of a pipe; what the child runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends this process
    with contextlib.suppress(OSError):
        os.nice(NICE)
    connection = Connection(descriptor)
    child = _Child(connection)
    child.send("ready")
    try:
        setup = connection.recv()
    except (EOFError, OSError):
        return
    threading.Thread(target=child.receive, daemon=True).start()
    try:
        child.run(*setup)
    except Exception as error:
        child.send("failed", f"training cannot start: {one_line(error)}")
        time.sleep(0.1)  # the reader of the pipe may end this process first
