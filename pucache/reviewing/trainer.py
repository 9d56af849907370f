"""The trainer: a child process that turns labels into rankings, and the thread that asks it, one question at a time.

The newest labels win: what comes while a fit runs waits, and only the newest of it is asked for. Where a better ranking
by the same labels is to come, it is asked for once nothing newer waits. A child process that dies is started again.
When the server is gone, the child reads the end of its pipe and ends, at the latest after the fit under way. Only there
torch is imported.
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
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..errors import OutputError, one_line
from ..neighbours.graph import NeighbourGraph, cached_graph
from ..retrieval.scorers import Similarity
from ..storage.atomic import replacing
from ..threads import thread_defaults
from ..training.ranking_result import RankingResult
from .session_folder import RANKING

if TYPE_CHECKING:
    from ..training.ranker import Ranker

NICE, _GRAPH_NICE = 5, 15  # the server, and in the child the fits, go first
MOST_PAIRS = 1 << 34  # rows times rows; in larger piles neighbours would take minutes and gigabytes
_FITS_BEFORE_CHOICE = 3  # with newer labels all the time, a choice that is due waits for so many fits
_PATIENCE = (0.0, 0.0, 1.0, 4.0, 15.0, 60.0)  # seconds before a start, after so many deaths without a ranking between
_GRAPH_SECONDS = 0.2  # for which the child waits for the graph before it says that a better ranking is to come


class Question(NamedTuple):
    """Labels of a session to rank by."""

    session: int
    serial: int  # of the last entry of the log that the labels rest on
    s: np.ndarray
    reviewed: np.ndarray
    again: bool = False  # whether these labels were ranked by before


class Answer(NamedTuple):
    """What the child says."""

    result: RankingResult | None = None
    better: bool = False  # whether to ask again with the same labels brings a better ranking
    failure: str = ""


class Trainer:
    """Trains for all sessions of a cache in one child process; a context manager that ends the process.

    `paths` are the files of the cache, `groups` int64 (n,) the group of images that show the same picture of each row.
    `on_ranking` has a function for each session, called with a ranking and the serial number of its labels in a thread
    of the trainer: several of one number may follow each other, each better than the last; none is older than one
    before it. `on_error` gets one line when something fails.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        on_ranking: Sequence[Callable[[RankingResult, int], None]],
        on_error: Callable[[str], None] = lambda message: None,
        *,
        groups: np.ndarray | None = None,
        device: str = "auto",
    ):
        self._setup = tuple(map(str, paths)), groups, device
        self._on_ranking, self._on_error = on_ranking, on_error
        self._changed = threading.Condition()
        self._questions: dict[int, Question] = {}  # newest of each session that is not answered for good
        self._submitted = [-1] * len(on_ranking)
        self._preferred = -1  # session whose page is open
        self._closing, self._deaths = False, 0
        self._child: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="pucache-trainer", daemon=True)
        self._thread.start()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def submit(self, serial: int, s: np.ndarray, reviewed: np.ndarray, session: int = 0) -> None:
        """Train on these labels, with a positive, as soon as possible; returns at once.

        Labels that are not newer than all of this session before are ignored.
        """
        with self._changed:
            if serial > self._submitted[session]:
                self._submitted[session] = serial
                self._questions.pop(session, None)  # those of other sessions that wait come first
                self._questions[session] = Question(session, serial, s, reviewed)
                self._changed.notify()

    def prefer(self, session: int) -> None:
        """Train this session before others that wait, from now on."""
        self._preferred = session

    def busy(self, session: int = 0) -> bool:
        """Whether a ranking, or a better one, by the newest labels of a session is still to come."""
        return session in self._questions

    @property
    def process_id(self) -> int | None:
        """Number of the child process; None where there is none at the moment."""
        child = self._child
        return child.pid if child is not None and child.poll() is None else None

    def close(self) -> None:
        """End the child process and the thread; closing twice is allowed."""
        with self._changed:
            self._closing = True
            self._changed.notify()
            if self._child is not None:
                self._child.kill()  # it keeps nothing that is not written as a whole
        self._thread.join()

    # --- in the thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._waits(_PATIENCE[min(self._deaths, len(_PATIENCE) - 1)]):
            self._deaths += 1
            try:
                child, connection = self._start()
            except OSError as error:
                self._report(f"training cannot start: {one_line(error)}")
                continue
            with connection, contextlib.suppress(EOFError, OSError):  # the child has ended
                connection.send(self._setup)
                while (question := self._next()) is not None:
                    connection.send(question)
                    self._take(question, connection.recv())
            child.kill()
            code = child.wait()
            if not self._closing:
                status = f"signal {-code}" if code < 0 else f"exit status {code}"
                self._report(f"the training process ended ({status}); it is started again")

    def _waits(self, seconds: float) -> bool:
        """Wait so long; False where the trainer closes."""
        with self._changed:
            return not self._changed.wait_for(lambda: self._closing, seconds)

    def _next(self) -> Question | None:
        """The question to ask now: new labels before a better ranking, the session whose page is open first."""
        with self._changed:
            self._changed.wait_for(lambda: self._questions or self._closing)
            order = sorted(self._questions.values(), key=lambda one: (one.again, one.session != self._preferred))
            return None if self._closing else order[0]

    def _take(self, question: Question, answer: Answer) -> None:
        session = question.session
        with self._changed:
            if self._submitted[session] == question.serial:
                if answer.better:
                    self._questions[session] = question._replace(again=True)
                else:
                    del self._questions[session]
        if answer.failure:
            self._report(answer.failure)
        elif answer.result is not None:
            self._deaths = 0
            try:
                self._on_ranking[session](answer.result, question.serial)
            except Exception as error:
                self._report(f"a ranking was not taken: {one_line(error)}")

    def _report(self, message: str) -> None:
        with contextlib.suppress(Exception):
            self._on_error(message)

    def _start(self) -> tuple[subprocess.Popen[bytes], Connection]:
        ours, its = Pipe()
        # -P: no module of the working directory is imported; pucache is imported from where this process has it
        command = f"from pucache.reviewing.trainer import answer_questions; answer_questions({its.fileno()})"
        modules = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        try:
            with its, self._changed:
                self._child = child = subprocess.Popen(  # noqa: S603 - our own module; no shell
                    [sys.executable, "-P", "-c", command],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env={**thread_defaults(), **os.environ, "PYTHONPATH": os.pathsep.join(modules)},
                    pass_fds=[its.fileno()],
                    process_group=0,  # Ctrl-C is for this process, which ends the child
                )
                if self._closing:
                    child.kill()
        except OSError:
            ours.close()
            raise
        return child, ours


# --- in the child process ----------------------------------------------------------------------


class _Work:
    """Rankers of all sessions, and the graph of neighbours, which is made meanwhile."""

    def __init__(self, paths: Sequence[str], groups: np.ndarray | None, device: str):
        from ..training.ranker import Ranker

        self._cache, self._device = EmbeddingCache(*paths), device
        first = Ranker(self._cache, groups=groups, device=device)
        self.features = first.features
        self._new = lambda: Ranker(self._cache, groups=groups, device=device, features=first.features)
        self._rankers: dict[int, Ranker] = {}
        self._fitted: dict[int, tuple[int, NeighbourGraph | None]] = {}  # number of the labels, and graph, by session
        self._postponed: Counter[int] = Counter()  # fits without a choice that was due, by session
        self._graph: NeighbourGraph | None = None
        self._search = threading.Thread(target=self._find_graph, daemon=True)
        self._failure = ""

    def answer(self, session: int, serial: int, s: np.ndarray, reviewed: np.ndarray, again: bool) -> Answer:
        """Rank; the very first time by similarity, at once."""
        if not self._rankers:
            self._rankers[session] = self._new()
            if len(self._cache) ** 2 <= MOST_PAIRS:
                self._search.start()
            return Answer(self._by_similarity((s == 1) | (reviewed == 1)), better=True)
        ranker = self._rankers.get(session) or self._rankers.setdefault(session, self._new())
        if again and self._search.is_alive():
            self._search.join(_GRAPH_SECONDS)
        failure, self._failure = self._failure, ""
        if failure:
            return Answer(failure=failure, better=True)
        if again and self._fitted.get(session) == (serial, self._graph) and not self._postponed[session]:
            return Answer(better=self._search.is_alive())
        ranker.graph = self._graph
        due = ranker.choice_is_due(s, reviewed)
        choose = due and (again or self._postponed[session] >= _FITS_BEFORE_CHOICE)
        result = ranker.fit(s, reviewed, choose=choose)
        self._fitted[session] = serial, ranker.graph
        self._postponed[session] = (self._postponed[session] + 1) * (due and not choose)
        return Answer(result, better=self._search.is_alive() or bool(self._postponed[session]))

    def _by_similarity(self, positive: np.ndarray) -> RankingResult:
        began = time.perf_counter()
        query = Similarity().queries(self._cache.take(np.flatnonzero(positive)), self.features.whitening)[0]
        return RankingResult(self.features.similarities(query), None, time.perf_counter() - began)

    def _find_graph(self) -> None:
        """Read the graph beside the cache, or make it; in a thread of its own."""
        with contextlib.suppress(OSError, AttributeError):  # threads have their own priority on Linux alone
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _GRAPH_NICE)
        try:
            self._graph = cached_graph(self._cache, device=self._device)
        except Exception as error:
            self._failure = f"neighbours do not count: {one_line(error)}"


def answer_questions(descriptor: int) -> None:
    """Answer the `Trainer` at the other end of a pipe until it is gone; what the child process runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends this process
    with contextlib.suppress(OSError):
        os.nice(NICE)
    with Connection(descriptor) as connection, contextlib.suppress(EOFError, OSError):
        work, setup = None, connection.recv()
        while True:
            question = connection.recv()
            try:
                work = work or _Work(*setup)
                answer = work.answer(*question)
            except Exception as error:
                answer = Answer(failure=f"training failed: {one_line(error)}")
            connection.send(answer)
    os._exit(0)  # without waiting for the search


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
