"""The trainer: a child process that turns labels into rankings, and the thread that looks after it.

The newest labels win: what is submitted while a fit runs waits, and only the newest of it is kept. A child process
that dies is started again and gets the newest labels. It ends by itself when this process is gone.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path

import numpy as np

from ..errors import one_line
from ..threads import thread_defaults
from .ranking_result import RankingResult
from .training_messages import Failed, Idle, Job, Ranked, Setup

_PATIENCE = (0.0, 0.0, 1.0, 4.0, 15.0, 60.0)  # seconds before a start, after so many deaths without a ranking between
_GRACE = 2.0  # seconds that the child has to end by itself


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
        Called with one line when something fails.
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
        self._on_ranking, self._on_error = on_ranking, on_error or _ignore
        self._lock = threading.Lock()
        self._newest: Job | None = None
        self._submitted = self._sent = self._finished = self._ranked = -1
        self._closing = False
        self._deaths = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)
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
        job = Job.of(serial, s, reviewed)
        with self._lock:
            if self._closing or serial <= self._submitted:
                return
            self._submitted, self._newest = serial, job if job.has_positive else None
            self._wake()

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
        """End the child process and the thread."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            self._wake()
        self._thread.join(_GRACE)
        child = self._child
        if self._thread.is_alive() and child is not None:  # waits for a child that does not read
            child.kill()
        self._thread.join()
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: it will wake
            os.write(self._wake_writer, b"\0")

    # --- in the thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_closing():
                if self._connection is None:
                    self._start()
                self._serve()
        finally:
            self._end()

    def _is_closing(self) -> bool:
        with self._lock:
            return self._closing

    def _start(self) -> None:
        self._rest(_PATIENCE[min(self._deaths, len(_PATIENCE) - 1)])
        if self._is_closing():
            return
        ours, its = Pipe()
        try:
            self._child = _start_child(its.fileno())
        except OSError as error:
            ours.close()
            self._deaths += 1
            self._report(f"training cannot start: {one_line(error)}")
            return
        finally:
            its.close()
        self._connection, self._sent = ours, -1
        self._send(self._setup)

    def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._is_closing():
            wait([self._wake_reader], left)
            self._drain()

    def _serve(self) -> None:
        """Send the newest labels, and wait for what comes first: newer ones, or a message of the child."""
        with self._lock:
            job = self._newest if self._newest is not None and self._newest.serial > self._sent else None
        if job is not None:
            self._sent = job.serial
            self._send(job)
        if self._connection is None:
            return
        for ready in wait([self._connection, self._wake_reader]):
            if ready is self._connection:
                self._receive()
            else:
                self._drain()

    def _drain(self) -> None:
        if wait([self._wake_reader], 0):
            os.read(self._wake_reader, 1 << 16)

    def _send(self, message: object) -> None:
        assert self._connection is not None
        try:
            self._connection.send(message)
        except OSError:
            self._lost()

    def _receive(self) -> None:
        assert self._connection is not None
        try:
            message = self._connection.recv()
        except (EOFError, OSError):
            self._lost()
            return
        if isinstance(message, Ranked):
            self._deaths = 0
            if message.serial >= self._ranked:
                self._hand_over(message)
        elif isinstance(message, Failed):
            self._report(message.message)
        elif isinstance(message, Idle):
            self._finish(message.serial)

    def _finish(self, serial: int) -> None:
        with self._lock:
            self._finished = max(self._finished, serial)

    def _hand_over(self, message: Ranked) -> None:
        self._ranked = message.serial
        try:
            self._on_ranking(message.result, message.serial)
        except Exception as error:
            self._report(f"a ranking was not taken: {one_line(error)}")

    def _report(self, message: str) -> None:
        with contextlib.suppress(Exception):
            self._on_error(message)

    def _lost(self) -> None:
        """The child process has ended."""
        status = self._end()
        self._deaths += 1
        if not self._is_closing():
            self._report(f"the training process ended ({status}); it is started again")

    def _end(self) -> str:
        """Close the pipe, which ends the child; wait for it, so that no zombie stays; say how it ended."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._child is None:
            return "not started"
        try:
            code = self._child.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._child.kill()
            code = self._child.wait()
        return f"signal {-code}" if code < 0 else f"exit status {code}"


def _start_child(descriptor: int) -> subprocess.Popen[bytes]:
    # -P: no module of the working directory is imported
    command = [sys.executable, "-P", "-m", "pucache.reviewing.trainer_process", str(descriptor)]
    # instead, pucache is imported from where this process has it
    modules = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**thread_defaults(), **os.environ, "PYTHONPATH": os.pathsep.join(modules)}
    return subprocess.Popen(  # noqa: S603 - our own module; no shell
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=environment,
        pass_fds=[descriptor],
        process_group=0,  # Ctrl-C is for this process, which ends the child
    )


def _ignore(message: str) -> None:
    """No one listens."""
