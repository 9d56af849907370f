"""Runs slices in this process: skips what was measured, keeps what was not and why, and writes the page."""

import contextlib
import dataclasses
import importlib
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.gpu import results
from benchmarks.gpu.page import page
from benchmarks.gpu.slices import Bench, LeftOut, Slice, Unfinished

GROUPS = {
    "tests": "benchmarks.gpu.cuda_tests",
    "heads": "benchmarks.gpu.heads",
    "retrieval": "benchmarks.gpu.retrieval",
    "embedding": "benchmarks.gpu.embedding",
    "pretraining": "benchmarks.gpu.pretraining",
    "counts": "benchmarks.gpu.emulated",
}
PAGE = "gpu.md"
BROKEN = 3  # exit code of a process whose device takes no more work


@dataclasses.dataclass
class Outcome:
    """What became of the slices of a run that are not in the results; kept in a file for the processes of the run."""

    path: Path

    @property
    def problems(self) -> list[str]:
        """Why each was left out, failed or is to go on."""
        return self.path.read_text().splitlines() if self.path.exists() else []

    @property
    def failed(self) -> bool:
        """Whether any slice failed."""
        return any(": failed" in problem for problem in self.problems)

    def say(self, text: str) -> None:
        """Print a problem, and keep it."""
        print(text, flush=True)
        with self.path.open("a") as stream:
            stream.write(text + "\n")


class Runner:
    """Runs slices of some groups.

    Parameters
    ----------
    bench : Bench
    out : Path
        For the results and the page.
    command : str
        What the page says was run.
    """

    def __init__(self, bench: Bench, out: Path, command: str):
        for folder in (out, bench.work):
            folder.mkdir(parents=True, exist_ok=True)
        self.bench, self.out, self.outcome = bench, out, Outcome(bench.work / "problems.txt")
        self.command, self._begun = command, bench.work / "begun.txt"

    def run(self, groups: Sequence[str], *, only: str = "", skip: Sequence[str] = ()) -> None:
        """Run the slices that are missing, but for those to be skipped."""
        for group in groups:
            for one in self._slices(group):
                if only in one.name and one.name not in skip and not self._is_measured(group, one):
                    self._begun.write_text(one.name)
                    self._run_slice(group, one)
                    self.write_page()  # now, as a run may be ended from outside
        self.write_page()

    @property
    def begun(self) -> str:
        """Name of the slice that was begun last."""
        return self._begun.read_text() if self._begun.exists() else ""

    def forget_begun(self) -> None:
        """Let no slice be begun."""
        self._begun.unlink(missing_ok=True)

    def write_page(self) -> None:
        """Write what is measured so far."""
        text = page(results.read(self.out, self.bench), command=self.command, problems=self.outcome.problems)
        (self.out / PAGE).write_text(text)

    def _slices(self, group: str) -> tuple[Slice, ...]:
        try:
            return importlib.import_module(GROUPS[group]).SLICES
        except Exception as error:  # the next groups are worth having all the same
            self.outcome.say(f"{group}: {_reason(error)}")
            return ()

    def _is_measured(self, group: str, one: Slice) -> bool:
        return any((row["group"], row["slice"]) == (group, one.name) for row in results.read(self.out, self.bench))

    def _run_slice(self, group: str, one: Slice) -> None:
        if time.monotonic() + 60 * one.minutes > self.bench.until:
            return self.outcome.say(f"{group}, {one.name}: no time left for it")
        began = time.perf_counter()
        try:
            figures = one.measure(self.bench)
        except (LeftOut, Unfinished) as reason:
            return self.outcome.say(f"{group}, {one.name}: {reason}")
        except Exception as error:  # the next slices are worth having all the same
            self.outcome.say(f"{group}, {one.name}: {_reason(error)}")
            if isinstance(error, torch.AcceleratorError):
                raise SystemExit(BROKEN) from error  # the device fails whatever this process asks of it
            return None
        row = results.row(group, one, figures, self.bench, time.perf_counter() - began)
        results.append(self.out, row)
        print(f"{group}, {one.name}: {row['seconds']:.1f} s", flush=True)
        if self.bench.on_gpu:
            with contextlib.suppress(RuntimeError):
                torch.cuda.empty_cache()


def _reason(error: Exception) -> str:
    """Why a slice has no result; prints the traceback of what is no missing package."""
    missing = _missing_package(error)
    if missing is not None:
        return f"left out, no {missing}"
    traceback.print_exception(error)
    return f"failed, {type(error).__name__}"


def _missing_package(error: BaseException) -> str | None:
    """Name of the package for whose absence an error was raised."""
    cause: BaseException | None = error
    while cause is not None:
        own = isinstance(cause, ModuleNotFoundError) and (cause.name or "").startswith(("pucache", "benchmarks"))
        if isinstance(cause, ModuleNotFoundError) and cause.name and not own:
            return cause.name
        cause = cause.__cause__
    return None
