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
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from ..errors import OutputError, one_line
from ..storage.atomic import replacing
from ..threads import thread_defaults

_PATIENCE = (0.0, 0.0, 1.0, 4.0, 15.0, 60.0)  # seconds before a start, after so many deaths without a ranking between
_GRACE = 2.0  # seconds that the child has to end by itself
RANKING = "ranking.npz"
_LABELLED, _CONFIRMED, _NEGATIVE = 2, 1, -1


@dataclass(frozen=True)
class RankingResult:
    """What a fit says about every row of a cache."""

    scores: np.ndarray  # float32 (n,); higher is more likely positive; known rows have scores too
    posterior: np.ndarray | None  # float32 (n,); None without a head, and with fewer than ten positives
    expected: float  # mean posterior of the rows whose label is not known, in (0, 1); NaN without a posterior
    seconds: float  # that it took


@dataclass(frozen=True)
class Setup:
    """What the child needs first: files of the cache, and the rows that share a picture with another one."""

    paths: tuple[str, ...]
    rows: np.ndarray  # int64 (m,)
    groups: np.ndarray  # number of their group, int64 (m,)
    seed: int
    device: str

    @classmethod
    def of(cls, paths: tuple[str, ...], groups: np.ndarray | None, seed: int, device: str) -> Setup:
        """From the group number of each row, int64 (n,), or None."""
        if groups is None:
            return cls(paths, np.empty(0, np.int64), np.empty(0, np.int64), seed, device)
        _, group, size = np.unique(groups, return_inverse=True, return_counts=True)
        rows = np.flatnonzero(size[group] > 1)
        return cls(paths, rows, groups[rows].astype(np.int64), seed, device)

    def all_groups(self, n: int) -> np.ndarray:
        """Group number of each row, int64 (n,)."""
        groups = np.arange(n) + n
        _, groups[self.rows] = np.unique(self.groups, return_inverse=True)
        return groups


@dataclass(frozen=True)
class KnownLabels:
    """Labels to train on: the known rows alone, of which there are few."""

    serial: int  # of the last entry of the log that they rest on
    rows: np.ndarray  # int32 (k,)
    values: np.ndarray  # what is known of each, int8 (k,)

    @classmethod
    def of(cls, serial: int, s: np.ndarray, reviewed: np.ndarray) -> KnownLabels:
        """From the labels of all rows, int8 (n,) each."""
        values = np.where(s == 1, np.int8(_LABELLED), reviewed).astype(np.int8)
        rows = np.flatnonzero(values)
        return cls(serial, rows.astype(np.int32), values[rows])

    @property
    def has_positive(self) -> bool:
        """Whether a positive is known."""
        return bool((self.values > 0).any())

    def labels(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """s and reviewed of all rows, int8 (n,) each."""
        s, reviewed = np.zeros(n, np.int8), np.zeros(n, np.int8)
        s[self.rows[self.values == _LABELLED]] = 1
        reviewed[self.rows] = np.where(self.values == _LABELLED, 0, self.values)
        return s, reviewed


@dataclass(frozen=True)
class Ranked:
    """A ranking by the labels of a serial number; several may follow each other, each better than the last."""

    serial: int
    result: RankingResult


@dataclass(frozen=True)
class Failed:
    """What went wrong, on one line."""

    message: str


@dataclass(frozen=True)
class Idle:
    """Nothing is left to do for the labels of a serial number."""

    serial: int


class Trainer:
    """Trains in a child process and hands over every ranking; a context manager that ends the process.

    Parameters
    ----------
    paths : sequence of str or Path
        Files of the cache.
    on_ranking : callable of (RankingResult, int)
        Called with a ranking and the serial number of its labels, in a thread of the trainer. Several rankings of one
        serial number may follow each other, each better than the last; none is older than one before it.
    on_error : callable of str, optional
        Called with one line when something fails. Default: ignore.
    groups : ndarray of int64, (n,), optional
        Number of each row's group of images that show the same picture.
    seed : int
    device : str
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        on_ranking: Callable[[RankingResult, int], None],
        on_error: Callable[[str], None] | None = None,
        *,
        groups: np.ndarray | None = None,
        seed: int = 0,
        device: str = "auto",
    ):
        self._setup = Setup.of(tuple(map(str, paths)), groups, seed, device)
        self._on_ranking, self._on_error = on_ranking, on_error
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self._newest: KnownLabels | None = None
        self._submitted = self._sent = self._finished = self._ranked = -1
        self._closing = threading.Event()
        self._deaths = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._run, name="pucache-trainer", daemon=True)
        self._thread.start()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def submit(self, serial: int, s: np.ndarray, reviewed: np.ndarray) -> None:
        """Train on these labels as soon as possible; returns at once.

        Parameters
        ----------
        serial : int
            Of the last entry of the log that the labels rest on; labels with a number that is not above that of all
            labels before are ignored.
        s, reviewed : ndarray of int8, (n,)
            As for `pucache.labels.labels.Labels`. Without a positive there is nothing to train on.
        """
        labels = KnownLabels.of(serial, s, reviewed)
        with self._lock:
            if serial <= self._submitted:
                return
            self._submitted, self._newest = serial, labels if labels.has_positive else None
        self._send_newest()

    @property
    def busy(self) -> bool:
        """Whether a ranking, or a better one, by the newest labels is still to come."""
        with self._lock:
            return self._newest is not None and self._newest.serial > self._finished

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
        """Send the newest labels to the child, whose receiver takes them at once; without one, its start does."""
        with self._sending:
            labels = self._newest
            if self._connection is None or labels is None or labels.serial <= self._sent:
                return
            with contextlib.suppress(OSError):  # the child is gone, as the thread will see
                self._connection.send(labels)
                self._sent = labels.serial

    # --- in the thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.wait(_PATIENCE[min(self._deaths, len(_PATIENCE) - 1)]):
            try:
                child, connection = self._start()
            except OSError as error:
                self._deaths += 1
                self._report(f"training cannot start: {one_line(error)}")
                continue
            self._send_newest()
            self._receive_all(connection)
            with self._sending:
                self._connection = None
                connection.close()
            status = _ended(child)
            self._deaths += 1
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
        with self._sending:
            self._connection, self._sent = ours, -1
            with contextlib.suppress(OSError):
                ours.send(self._setup)
        return child, ours

    def _receive_all(self, connection: Connection) -> None:
        """Take what the child sends, until it has ended."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                message = connection.recv()
                if isinstance(message, Ranked):
                    self._deaths = 0
                    self._hand_over(message)
                elif isinstance(message, Failed):
                    self._report(message.message)
                elif isinstance(message, Idle):
                    with self._lock:
                        self._finished = max(self._finished, message.serial)

    def _hand_over(self, message: Ranked) -> None:
        if message.serial < self._ranked:
            return
        self._ranked = message.serial
        try:
            self._on_ranking(message.result, message.serial)
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
            expected=np.float64(result.expected),
            serial=np.int64(serial),
        )


def kept_ranking(folder: Path, identifier: str, n: int) -> tuple[RankingResult, int] | None:
    """The kept ranking of `n` rows and the number of its last entry; None where there is none, or a damaged one."""
    try:
        with open(folder / RANKING, "rb") as stream, np.load(stream, allow_pickle=False) as values:
            if str(values["identifier"]) != identifier:
                return None
            scores, posterior = values["scores"], values["posterior"]
            expected, serial = float(values["expected"]), int(values["serial"])
    except Exception:  # numpy and zipfile raise almost anything on damaged files
        return None
    shapes_fit = scores.shape == (n,) and posterior.shape in ((n,), (0,))
    if not shapes_fit or scores.dtype != np.float32 or posterior.dtype != np.float32 or np.isnan(scores).any():
        return None
    return RankingResult(scores, posterior if len(posterior) else None, expected, 0.0), serial
