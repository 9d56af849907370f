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
from multiprocessing.connection import Connection

from ..cache.embedding_cache import EmbeddingCache
from ..errors import one_line
from ..neighbours.graph import NeighbourGraph, cached_graph
from .ranker import Ranker
from .trainer import Failed, Idle, KnownLabels, Ranked, Setup

NICE, _GRAPH_NICE = 5, 15  # the server, and in this process the fits, go first
MOST_PAIRS = 1 << 34  # rows times rows; in larger piles neighbours would take minutes and gigabytes
_FITS_BEFORE_CHOICE = 3  # with newer labels all the time, a choice that is due waits for so many fits


class _Server:
    """The server, as the child sees it: one thread receives and keeps the newest labels alone.

    Where the server is gone, the process ends.
    """

    def __init__(self, connection: Connection):
        self._connection, self._sending = connection, threading.Lock()
        self._changed = threading.Condition()
        self._labels: KnownLabels | None = None
        self._graph: NeighbourGraph | None = None

    def receive(self) -> None:
        """Receive until the server is gone; in a thread of its own."""
        try:
            while True:
                self._put(self._connection.recv(), None)
        except (EOFError, OSError):
            os._exit(0)

    def send(self, message: Ranked | Failed | Idle) -> None:
        """Send a message, from any thread."""
        try:
            with self._sending:
                self._connection.send(message)
        except OSError:
            os._exit(0)

    def find_graph(self, cache: EmbeddingCache, device: str) -> None:
        """Read the graph beside the cache, or make it; in a thread of its own."""
        with contextlib.suppress(OSError, AttributeError):  # threads have their own priority on Linux alone
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _GRAPH_NICE)
        try:
            self._put(None, cached_graph(cache, device=device))
        except Exception as error:
            self.send(Failed(f"neighbours do not count: {one_line(error)}"))

    def _put(self, labels: KnownLabels | None, graph: NeighbourGraph | None) -> None:
        with self._changed:
            self._labels, self._graph = labels or self._labels, graph or self._graph
            self._changed.notify()

    def take(self) -> tuple[KnownLabels | None, NeighbourGraph | None]:
        """Wait for newer labels or for the graph; each is taken once."""
        with self._changed:
            self._changed.wait_for(lambda: self._labels is not None or self._graph is not None)
            taken = self._labels, self._graph
            self._labels = self._graph = None
            return taken

    @property
    def has_newer(self) -> bool:
        """Whether newer labels wait."""
        with self._changed:
            return self._labels is not None


class _Training:
    """Fits the newest labels, one fit at a time, and sends the rankings."""

    def __init__(self, server: _Server, setup: Setup):
        self._server, self._device = server, setup.device
        self._cache = EmbeddingCache(*setup.paths)
        groups = setup.all_groups(len(self._cache))
        self._ranker = Ranker(self._cache, groups=groups, seed=setup.seed, device=setup.device)
        self._fits = self._postponed = 0

    def run(self) -> None:
        """Serve for ever."""
        labels: KnownLabels | None = None
        while True:
            newer, graph = self._server.take()
            if graph is not None:
                self._ranker.graph = graph
            labels = newer or labels
            if labels is None:
                continue
            try:
                self._fit(labels)
            except Exception as error:
                self._server.send(Failed(f"training failed: {one_line(error)}"))
            self._server.send(Idle(labels.serial))

    def _fit(self, known: KnownLabels) -> None:
        n, send = len(self._cache), self._server.send
        s, reviewed = known.labels(n)
        if not self._fits:
            send(Ranked(known.serial, self._ranker.similarity(s, reviewed)))
            if n**2 <= MOST_PAIRS:
                threading.Thread(target=self._server.find_graph, args=(self._cache, self._device), daemon=True).start()
        self._fits += 1
        due = self._ranker.choice_is_due(s, reviewed)
        at_once = due and self._postponed >= _FITS_BEFORE_CHOICE
        send(Ranked(known.serial, self._ranker.fit(s, reviewed, choose=at_once)))
        self._postponed = self._postponed + 1 if due and not at_once else 0
        if due and not at_once and not self._server.has_newer:
            send(Ranked(known.serial, self._ranker.fit(s, reviewed, choose=True)))
            self._postponed = 0


def train_for(descriptor: int) -> None:
    """Train for the process at the other end of a pipe, whose first message is a `Setup`; what the child runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends this process
    with contextlib.suppress(OSError):
        os.nice(NICE)
    connection = Connection(descriptor)
    try:
        setup = connection.recv()
    except (EOFError, OSError):
        return
    server = _Server(connection)
    threading.Thread(target=server.receive, daemon=True).start()
    try:
        training = _Training(server, setup)
    except Exception as error:
        server.send(Failed(f"training cannot start: {one_line(error)}"))
        time.sleep(0.1)  # the reader of the pipe may end this process first
        return
    training.run()
