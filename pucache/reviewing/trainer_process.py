"""The child process that trains: `python -m pucache.reviewing.trainer_process NUMBER_OF_A_FILE_DESCRIPTOR`.

One thread receives labels and keeps the newest alone; the main thread fits, one fit at a time. When the server is
gone the receiver reads the end of the pipe and ends the process at once, also within a fit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection

from ..cache.embedding_cache import EmbeddingCache
from ..errors import one_line
from ..neighbours.graph import NeighbourGraph, cached_graph
from .training_messages import Failed, Idle, Job, Ranked, Setup

NICE, _GRAPH_NICE = 5, 15  # the server, and in this process the fits, go first
MOST_PAIRS = 1 << 34  # rows times rows; in larger piles neighbours would take minutes and gigabytes
_FITS_BEFORE_CHOICE = 3  # with newer labels all the time, a choice that is due waits for so many fits


class Inbox:
    """The newest job, and the graph when it is there; filled by other threads.

    Parameters
    ----------
    connection : Connection
        To the server.
    """

    def __init__(self, connection: Connection):
        self._connection, self._changed = connection, threading.Condition()
        self._job: Job | None = None
        self._graph: NeighbourGraph | None = None

    def receive(self) -> None:
        """Receive until the server is gone; then end the process."""
        try:
            while True:
                job = self._connection.recv()
                with self._changed:
                    self._job = job
                    self._changed.notify()
        except (EOFError, OSError):
            os._exit(0)

    def put_graph(self, graph: NeighbourGraph) -> None:
        """Hand over the graph."""
        with self._changed:
            self._graph = graph
            self._changed.notify()

    def wait(self) -> None:
        """Wait for a job or for the graph."""
        with self._changed:
            self._changed.wait_for(lambda: self._job is not None or self._graph is not None)

    def take_job(self) -> Job | None:
        """The newest job, once."""
        with self._changed:
            job, self._job = self._job, None
            return job

    def take_graph(self) -> NeighbourGraph | None:
        """The graph, once."""
        with self._changed:
            graph, self._graph = self._graph, None
            return graph

    @property
    def has_job(self) -> bool:
        """Whether newer labels wait."""
        with self._changed:
            return self._job is not None


class Outbox:
    """Sends from any thread; where the server is gone, the process ends.

    Parameters
    ----------
    connection : Connection
    """

    def __init__(self, connection: Connection):
        self._connection, self._lock = connection, threading.Lock()

    def send(self, message: Ranked | Failed | Idle) -> None:
        """Send a message."""
        try:
            with self._lock:
                self._connection.send(message)
        except OSError:
            os._exit(0)


class Training:
    """Fits one job after the other and sends the rankings.

    Parameters
    ----------
    outbox : Outbox
    inbox : Inbox
    setup : Setup
    """

    def __init__(self, outbox: Outbox, inbox: Inbox, setup: Setup):
        from .ranker import Ranker  # imports torch

        self._outbox, self._inbox = outbox, inbox
        self._cache = EmbeddingCache(*setup.paths)
        self._n, self._device = len(self._cache), setup.device
        groups = setup.all_groups(self._n)
        self._ranker = Ranker(self._cache, groups=groups, seed=setup.seed, device=setup.device)
        self._fits = self._postponed = 0

    def run(self) -> None:
        """Serve for ever."""
        job: Job | None = None
        while True:
            self._inbox.wait()
            graph, newer = self._inbox.take_graph(), self._inbox.take_job()
            if graph is not None:
                self._ranker.graph = graph
            job = newer or job
            if job is not None:
                self._serve(job)

    def _serve(self, job: Job) -> None:
        try:
            self._fit(job)
        except Exception as error:
            self._outbox.send(Failed(f"training failed: {one_line(error)}"))
        self._outbox.send(Idle(job.serial))

    def _fit(self, job: Job) -> None:
        s, reviewed = job.labels(self._n)
        if not self._fits:
            self._outbox.send(Ranked(job.serial, self._ranker.similarity(s, reviewed)))
            if self._n**2 <= MOST_PAIRS:
                threading.Thread(target=self._find_graph, daemon=True).start()
        self._fits += 1
        due = self._ranker.choice_is_due(s, reviewed)
        at_once = due and self._postponed >= _FITS_BEFORE_CHOICE
        self._outbox.send(Ranked(job.serial, self._ranker.fit(s, reviewed, choose=at_once)))
        self._postponed = self._postponed + 1 if due and not at_once else 0
        if due and not at_once and not self._inbox.has_job:
            self._outbox.send(Ranked(job.serial, self._ranker.fit(s, reviewed, choose=True)))
            self._postponed = 0

    def _find_graph(self) -> None:
        """In a thread of its own: read the graph beside the cache, or make it."""
        with contextlib.suppress(OSError, AttributeError):  # threads have their own priority on Linux alone
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _GRAPH_NICE)
        try:
            self._inbox.put_graph(cached_graph(self._cache, device=self._device))
        except Exception as error:
            self._outbox.send(Failed(f"neighbours do not count: {one_line(error)}"))


def main(descriptor: int) -> None:
    """Serve the process at the other end of a pipe.

    Parameters
    ----------
    descriptor : int
        Of the pipe; its first message is a `Setup`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends this process
    with contextlib.suppress(OSError):
        os.nice(NICE)
    connection = Connection(descriptor)
    try:
        setup = connection.recv()
    except (EOFError, OSError):
        return
    inbox, outbox = Inbox(connection), Outbox(connection)
    threading.Thread(target=inbox.receive, daemon=True).start()
    try:
        training = Training(outbox, inbox, setup)
    except Exception as error:
        outbox.send(Failed(f"training cannot start: {one_line(error)}"))
        time.sleep(0.1)  # the reader of the pipe may end this process first
        return
    training.run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
