"""Runs checks in forked children and lives on where they crash, hang or fill the memory."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import multiprocessing
import os
import resource
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NamedTuple

from fuzz.image_samples import images
from fuzz.oracle import Wrong, snapshot
from fuzz.target import Input, Target

TIMEOUT = 20.0  # seconds of CPU time for one input
ASLEEP = 900.0  # seconds on the clock for one input: ends only what waits for ever, however busy the machine is
BATCH = 100  # inputs of one child
ADDRESSES = 8 << 30  # bytes of address space that a child may take beyond what it has
_FORK = multiprocessing.get_context("fork")


class Job(NamedTuple):
    """One input: made of a seed and a number, or given."""

    target: Target
    label: str
    make: Callable[[], Input]


class Trouble(NamedTuple):
    kind: str  # crash, hang, wrong, unexpected, memory or spill
    target: str
    label: str
    sample: str
    what: str
    saved: str


@dataclass
class Tally:
    """What became of the inputs of one target."""

    outcomes: Counter[str] = field(default_factory=Counter)
    troubles: list[Trouble] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def inputs(self) -> int:
        return sum(self.outcomes.values())

    def count(self, kind: str) -> int:
        return sum(trouble.kind == kind for trouble in self.troubles)


def numbered(target: Target, seed: int, numbers: Iterable[int]) -> list[Job]:
    return [Job(target, f"{seed}-{n}", lambda n=n: target.input(seed, n)) for n in numbers]  # type: ignore[misc]


def given(target: Target, inputs: dict[str, bytes]) -> list[Job]:
    return [Job(target, name, lambda name=name, data=data: Input(name, data)) for name, data in inputs.items()]  # type: ignore[misc]


def run(jobs: list[Job], *, found: Path | None = None, timeout: float = TIMEOUT, children: int = 1) -> dict[str, Tally]:
    """Run every job in some forked child; gives a tally for each target.

    Parameters
    ----------
    found : path, optional
        Folder for the inputs that made trouble.
    timeout : float
        Seconds of CPU time for one input, which do not pass while other processes have the processor.
    children : int
        At once.
    """
    tallies: dict[str, Tally] = {}
    for job in jobs:
        tallies.setdefault(job.target.name, Tally())
    waiting = deque(jobs[start : start + BATCH] for start in range(0, len(jobs), BATCH))
    working: list[_Child] = []
    while waiting or working:
        while waiting and len(working) < children:
            working.append(_Child(waiting.popleft(), found, timeout))
        wait([child.connection for child in working], timeout=0.2)
        for child in list(working):
            if child.follow(tallies):
                working.remove(child)
                if child.left:
                    waiting.appendleft(child.left)
    return tallies


class _Child:
    """A forked process at work on a batch, as its parent sees it."""

    def __init__(self, jobs: list[Job], found: Path | None, timeout: float):
        self.left = jobs
        self._found, self._timeout = found, timeout
        self._root = Path(tempfile.mkdtemp(prefix="pucache-fuzz-"))
        self.connection, theirs = _FORK.Pipe(duplex=False)
        self._began = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads do not matter: none of ours holds a lock
            self._process = _FORK.Process(target=_work, args=(jobs, self._root, theirs, timeout))
            self._process.start()
        theirs.close()

    def follow(self, tallies: dict[str, Tally]) -> bool:
        """Take what the child says; True once it has ended, be it that it was stopped here."""
        try:
            while self.connection.poll():
                self._finished(tallies, *self.connection.recv())
        except (EOFError, ConnectionResetError):
            self._process.join()
            if self.left:
                self._died(tallies)
            return self._close()
        if time.monotonic() - self._began > ASLEEP:
            self._process.kill()
            self._process.join()
            with contextlib.suppress(EOFError, OSError):
                while self.connection.poll():
                    self._finished(tallies, *self.connection.recv())
            if self.left:
                self._finished(tallies, "hang", f"not done after {ASLEEP:g} s on the clock; {self._stack()}", 0.0)
            return self._close()
        return False

    def _died(self, tallies: dict[str, Tally]) -> None:
        code = self._process.exitcode or 0
        if code == -signal.SIGPROF:
            what = f"not done after {self._timeout:g} s of CPU time; {self._stack()}"
            return self._finished(tallies, "hang", what, 0.0)
        what = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        self._finished(tallies, "crash", f"{what}; {self._stack()}", 0.0)

    def _finished(self, tallies: dict[str, Tally], kind: str, what: str, seconds: float) -> None:
        job, self.left = self.left[0], self.left[1:]
        tally = tallies[job.target.name]
        tally.seconds += seconds or time.monotonic() - self._began
        tally.outcomes[what if kind == "fine" else kind] += 1
        if kind != "fine":
            sample, saved = self._save(job, kind)
            tally.troubles.append(Trouble(kind, job.target.name, job.label, sample, what, saved))
        self._began = time.monotonic()

    def _save(self, job: Job, kind: str) -> tuple[str, str]:
        """Keep the input: from the child's own copy, as making it anew could do to us what it did to the child."""
        data, name = _copies(self._root, job)
        sample = name.read_text() if name.exists() else "(died while the input was made)"
        if self._found is None or not data.exists():
            return sample, ""
        self._found.mkdir(parents=True, exist_ok=True)
        saved = self._found / f"{kind}-{job.target.name}-{job.label}-{sample}".replace("/", "_").replace(" ", "_")[:150]
        shutil.copy(data, saved)
        return sample, str(saved)

    def _stack(self) -> str:
        lines = (
            (self._root / "stack").read_text(errors="replace").splitlines() if (self._root / "stack").exists() else []
        )
        return " < ".join(line.strip() for line in lines if "File" in line)[:1500]

    def _close(self) -> bool:
        self.connection.close()
        self._process.join()
        shutil.rmtree(self._root, ignore_errors=True)
        return True


def _copies(root: Path, job: Job) -> tuple[Path, Path]:
    """Where the child keeps the input at work, and the name of its sample."""
    label = job.label.replace("/", "_")[:50]
    return root / f"input {label}", root / f"sample {label}"


# --- in the child ------------------------------------------------------------------------------


def _work(jobs: list[Job], root: Path, connection: Connection, timeout: float) -> None:
    """Check inputs one after the other; the parent knows by their order which one is at work."""
    _settle(root)
    with open(root / "stack", "w+") as stack:
        faulthandler.enable(stack)
        faulthandler.register(signal.SIGPROF, stack, chain=True)  # write the stack, then die of the signal
        for job in jobs:
            stack.truncate(0)
            faulthandler.dump_traceback_later(max(0.1, ASLEEP - 1), file=stack)
            signal.setitimer(signal.ITIMER_PROF, timeout)
            began = time.monotonic()
            kind, what = _one(job, root)
            signal.setitimer(signal.ITIMER_PROF, 0)
            faulthandler.cancel_dump_traceback_later()
            connection.send((kind, what[:2000], time.monotonic() - began))
            if kind == "fine":  # what made trouble stays for the parent, who may be behind
                for copy in _copies(root, job):
                    copy.unlink(missing_ok=True)
    connection.close()
    os._exit(0)  # no exit handlers: they are the parent's


def _settle(root: Path) -> None:
    """A folder with something beside it that nobody may touch, quiet logs, and a limit on memory."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libtiff says there what it thinks of each file
    for name in ("outside", "inner/here", "inner/temporary"):
        (root / name).mkdir(parents=True)
    (root / "outside/secret.png").write_bytes(images()["1bit.png"])
    os.mkfifo(root / "outside/pipe")
    os.chdir(root / "inner/here")
    os.environ["TMPDIR"] = str(root / "inner/temporary")
    tempfile.tempdir = None
    have = _status("VmSize")
    if have:
        resource.setrlimit(resource.RLIMIT_AS, (have + ADDRESSES, have + ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _one(job: Job, root: Path) -> tuple[str, str]:
    folder = root / "inner/case"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        made = job.make()
        data, name = _copies(root, job)
        data.write_bytes(made.data)
        name.write_text(made.sample)
        folder.mkdir()
        with _no_spill(root, folder), _bounded(job.target.room(made.data)):
            return "fine", job.target.outcome(*made, folder)
    except _Spilled as error:
        return "spill", str(error)
    except _Grown as error:
        return "memory", str(error)
    except Wrong as error:
        return "wrong", str(error)
    except BaseException as error:
        where = " < ".join(
            f"{Path(f.filename).name}:{f.lineno}" for f in reversed(traceback.extract_tb(error.__traceback__)[-4:])
        )
        return "unexpected", f"{type(error).__name__}: {str(error)[:300]} ({where})"


class _Spilled(Exception):
    """Something was written outside of the output."""


class _Grown(Exception):
    """More memory was taken than the input can need."""


@contextlib.contextmanager
def _no_spill(root: Path, folder: Path) -> Iterator[None]:
    before = snapshot(root / "outside") | snapshot(root / "inner", leaving_out=folder)
    yield
    after = snapshot(root / "outside") | snapshot(root / "inner", leaving_out=folder)
    if before != after:
        raise _Spilled(f"written: {sorted(name for name, _ in set(after.items()) ^ set(before.items()))[:5]}")


@contextlib.contextmanager
def _bounded(room: int) -> Iterator[None]:
    """Compare the greatest resident size while within with that of before, where the kernel tells it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the greatest size starts anew
    before = _status("VmRSS")
    yield
    grown = _status("VmHWM") - before
    if before and grown > room:
        raise _Grown(f"{grown / 1e6:,.0f} MB more, at most {room / 1e6:,.0f} MB are needed")


def _status(name: str) -> int:
    """A figure of /proc/self/status in bytes; 0 where there is none."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)
