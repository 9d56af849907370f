"""The trainer: a child process that turns labels into rankings, and the thread that looks after it.

The newest labels win: what comes while a fit runs waits, and only the newest of it is kept. A child process that dies
is started again and gets the newest labels. In the child one thread receives labels, and the main thread fits, one fit
at a time; when the server is gone the receiver reads the end of the pipe and ends the process at once, also within a
fit. Only there torch is imported.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..errors import OutputError, one_line
from ..neighbours.graph import NeighbourGraph, cached_graph
from ..storage.atomic import replacing
from ..threads import thread_defaults
from .session_folder import RANKING

if TYPE_CHECKING:
    from .ranker import Ranker

Update = tuple[int, np.ndarray, np.ndarray]  # serial number, s, reviewed
NICE, _GRAPH_NICE = 5, 15  # the server, and in this process the fits, go first
MOST_PAIRS = 1 << 34  # rows times rows; in larger piles neighbours would take minutes and gigabytes
_FITS_BEFORE_CHOICE = 3  # with newer labels all the time, a choice that is due waits for so many fits
_PATIENCE = (0.0, 0.0, 1.0, 4.0, 15.0, 60.0)  # seconds before a start, after so many deaths without a ranking between
_GRACE = 2.0  # seconds that the child has to end by itself


@dataclass(frozen=True)
class RankingResult:
    """What a fit says about every row of a cache."""

    scores: np.ndarray  # float32 (n,); higher is more likely positive; known rows have scores too
    posterior: np.ndarray | None  # float32 (n,); None without a head, and with fewer than ten positives
    seconds: float  # that it took
    doubted: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    """Known rows that heads without them contradict, worst first, int64; none without a posterior."""


class Trainer:
    """Trains for all sessions of a cache in one child process; a context manager that ends the process.

    The child says ("ready",), then gets the files, groups, seed and device, then again and again (session, serial, s,
    reviewed), or (session,) for the one to train first, which a thread of its own takes at once. It answers ("ranked",
    session, serial, result), ("failed", message), and ("idle", session, serial) where nothing is left to do for these
    labels.

    `paths` are the files of the cache, `groups` int64 (n,) the group of images that show the same picture of each row.
    `on_ranking` has a function for each session, called with a ranking and the serial number of its labels in a thread
    of the trainer: several of one number may follow each other, each better than the last; none is older than one
    before it. `on_error` gets one line when something fails.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        on_ranking: Sequence[Callable[[RankingResult, int], None]],
        on_error: Callable[[str], None] | None = None,
        *,
        groups: np.ndarray | None = None,
        seed: int = 0,
        device: str = "auto",
    ):
        self._setup = tuple(map(str, paths)), groups, seed, device
        self._on_ranking, self._on_error = on_ranking, on_error
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self._newest: dict[int, tuple[int, int, np.ndarray, np.ndarray]] = {}  # session, serial, s, reviewed
        self._submitted, self._sent, self._finished, self._ranked = ([-1] * len(on_ranking) for _ in range(4))
        self._preferred: int | None = None  # session whose page is open
        self._closing = threading.Event()
        self._deaths = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None  # to a child that is ready
        self._thread = threading.Thread(target=self._run, name="pucache-trainer", daemon=True)
        self._thread.start()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def submit(self, serial: int, s: np.ndarray, reviewed: np.ndarray, session: int = 0) -> None:
        """Train on these labels, with a positive, as soon as possible; returns at once.

        `serial` is that of the last entry of the log that the labels rest on; where it is not above that of all labels
        of this session before, they are ignored.
        """
        with self._lock:
            if serial <= self._submitted[session]:
                return
            self._submitted[session] = serial
            self._newest[session] = session, serial, s, reviewed
        self._send_newest()

    def prefer(self, session: int) -> None:
        """Train this session before others that wait, from now on."""
        with self._sending, contextlib.suppress(OSError):  # a child that is not ready learns it at its start
            self._preferred = session
            if self._connection is not None:
                self._connection.send((session,))

    def busy(self, session: int = 0) -> bool:
        """Whether a ranking, or a better one, by the newest labels of a session is still to come."""
        with self._lock:
            return session in self._newest and self._newest[session][1] > self._finished[session]

    @property
    def process_id(self) -> int | None:
        """Number of the child process; None where there is none at the moment."""
        child = self._child
        return child.pid if child is not None and child.poll() is None else None

    def close(self) -> None:
        """End the child process and the thread; closing twice is allowed."""
        with self._lock:
            self._closing.set()
            child = self._child
        if child is not None:
            child.kill()  # it keeps nothing that is not written as a whole
        self._thread.join()

    def _send_newest(self) -> None:
        """Send newer labels to the child; without one that is ready, its start does."""
        with self._sending, contextlib.suppress(OSError):  # the child may be gone, as the thread will see
            for session, serial, s, reviewed in list(self._newest.values()):
                if self._connection is not None and serial > self._sent[session]:
                    self._connection.send((session, serial, s, reviewed))
                    self._sent[session] = serial

    # --- in the thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.wait(_PATIENCE[min(self._deaths, len(_PATIENCE) - 1)]):
            self._deaths += 1
            try:
                child, connection = self._start()
            except OSError as error:
                self._report(f"training cannot start: {one_line(error)}")
                continue
            with connection, contextlib.suppress(EOFError, OSError):  # the child has ended
                while True:
                    self._take(connection, *connection.recv())
            with self._sending:
                self._connection = None
            status = _ended(child)
            if not self._closing.is_set():
                self._report(f"the training process ended ({status}); it is started again")

    def _start(self) -> tuple[subprocess.Popen[bytes], Connection]:
        ours, its = Pipe()
        try:
            with its, self._lock:
                self._child = child = _start_child(its.fileno())
                if self._closing.is_set():
                    child.kill()
        except OSError:
            ours.close()
            raise
        return child, ours

    def _take(self, connection: Connection, what: str, *values: Any) -> None:
        """Take a message of the child."""
        if what == "ready":
            connection.send(self._setup)
            with self._sending:
                self._connection, self._sent = connection, [-1] * len(self._on_ranking)
                if self._preferred is not None:
                    connection.send((self._preferred,))
            self._send_newest()
        elif what == "failed":
            self._report(*values)
        else:
            session, serial, *result = values
            if what == "idle":
                with self._lock:
                    self._finished[session] = max(self._finished[session], serial)
            elif serial >= self._ranked[session]:
                self._deaths, self._ranked[session] = 0, serial
                try:
                    self._on_ranking[session](*result, serial)
                except Exception as error:
                    self._report(f"a ranking was not taken: {one_line(error)}")

    def _report(self, message: str) -> None:
        with contextlib.suppress(Exception):
            if self._on_error is not None:
                self._on_error(message)


def _start_child(descriptor: int) -> subprocess.Popen[bytes]:
    # -P: no module of the working directory is imported
    imports = "from pucache.reviewing.ranker import Ranker; from pucache.reviewing.trainer import train_for"
    start = f"{imports}; train_for({descriptor}, Ranker)"
    # instead, pucache is imported from where this process has it
    modules = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**thread_defaults(), **os.environ, "PYTHONPATH": os.pathsep.join(modules)}
    return subprocess.Popen(  # noqa: S603 - our own module; no shell
        [sys.executable, "-P", "-c", start],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=environment,
        pass_fds=[descriptor],
        process_group=0,  # Ctrl-C is for this process, which ends the child
    )


def _ended(child: subprocess.Popen[bytes]) -> str:
    """Wait for a child whose pipe is closed, so that no zombie stays; say how it ended."""
    try:
        code = child.wait(_GRACE)
    except subprocess.TimeoutExpired:
        child.kill()
        code = child.wait()
    return f"signal {-code}" if code < 0 else f"exit status {code}"


# --- in the child process ----------------------------------------------------------------------


class _Child:
    """Fits the newest labels of each session, one fit at a time, and sends the rankings."""

    def __init__(self, connection: Connection, ranker: type[Ranker]):
        self._connection, self._sending, self._ranker = connection, threading.Lock(), ranker
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
        ranker = self._ranker(cache, groups=groups, seed=seed, device=device)
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
                    self._rankers[session] = self._ranker(
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


def train_for(descriptor: int, ranker: type[Ranker]) -> None:
    """Train for the `Trainer` at the other end of a pipe; what the child runs, which alone imports `ranker`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends this process
    with contextlib.suppress(OSError):
        os.nice(NICE)
    connection = Connection(descriptor)
    child = _Child(connection, ranker)
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


# --- the last ranking ---------------------------------------------------------------------------


def keep_ranking(folder: Path, identifier: str, result: RankingResult, serial: int) -> None:
    """Keep the last ranking of a session in its folder, so that a server that starts again shows images at once.

    `identifier` is of session and cache, `serial` the number of the last entry of the log that the ranking rests on. A
    ranking that cannot be written is not kept: the trainer makes a newer one within seconds.
    """
    posterior = np.empty(0, np.float32) if result.posterior is None else result.posterior
    with contextlib.suppress(OutputError), replacing(folder / RANKING) as temporary, open(temporary, "wb") as stream:
        np.savez(
            stream,
            identifier=np.array(identifier),
            scores=result.scores,
            posterior=posterior,
            serial=np.int64(serial),
        )


def kept_ranking(folder: Path, identifier: str, n: int) -> tuple[RankingResult, int] | None:
    """The kept ranking of `n` rows and the number of its last entry; None where there is none, or a damaged one."""
    try:
        with open(folder / RANKING, "rb") as stream, np.load(stream, allow_pickle=False) as values:
            if str(values["identifier"]) != identifier:
                return None
            scores, posterior, serial = values["scores"], values["posterior"], int(values["serial"])
    except Exception:  # numpy and zipfile raise almost anything on damaged files
        return None
    shapes_fit = scores.shape == (n,) and posterior.shape in ((n,), (0,))
    if not shapes_fit or scores.dtype != np.float32 or posterior.dtype != np.float32 or np.isnan(scores).any():
        return None
    return RankingResult(scores, posterior if len(posterior) else None, 0.0), serial
