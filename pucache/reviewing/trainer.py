"""The trainer: a child process that turns labels into rankings, and the thread that looks after it.

The newest labels win: what comes while a fit runs waits, and only the newest of it is kept. A child process that dies
is started again and gets the newest labels. `pucache.reviewing.trainer_process` is what it runs: only there torch is
imported.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import OutputError, one_line
from ..storage.atomic import replacing
from ..threads import thread_defaults
from .session_folder import RANKING

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
    start = f"from pucache.reviewing.trainer_process import train_for; train_for({descriptor})"
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
