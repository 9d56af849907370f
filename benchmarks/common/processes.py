"""Times of whole processes, and tables of them."""

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessTime:
    """Seconds on the clock, and of CPU time of the process and its children."""

    seconds: float
    cpu: float


def pucache(*arguments: str | Path) -> list[str]:
    """The command line as a user gives it, by the script beside this interpreter where it is installed."""
    script = shutil.which("pucache", path=str(Path(sys.executable).parent))
    start = [script] if script else [sys.executable, "-m", "pucache"]
    return [*start, *map(str, arguments)]


def timed(command: Sequence[str], folder: Path, *, prefix: Sequence[str] = (), **variables: str) -> ProcessTime:
    """Run a command in a folder and measure the process; ends the benchmark where the command fails."""
    process = start(command, folder, prefix=prefix, **variables)
    return finish(process, command)


@dataclass
class Running:
    """A process that was started, and when."""

    process: subprocess.Popen
    began: float
    log: Path


def start(command: Sequence[str], folder: Path, *, prefix: Sequence[str] = (), **variables: str) -> Running:
    """Start a command whose output goes into a file of the folder."""
    log = folder / f"output-{time.monotonic_ns()}.txt"
    environ = {**os.environ, **variables}
    with log.open("wb") as stream:
        began = time.perf_counter()
        process = subprocess.Popen(
            [*prefix, *command], cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream
        )
    return Running(process=process, began=began, log=log)


def finish(running: Running, command: Sequence[str]) -> ProcessTime:
    """Wait for the end of a process."""
    _, status, usage = os.wait4(running.process.pid, 0)
    seconds = time.perf_counter() - running.began
    running.process.returncode = os.waitstatus_to_exitcode(status)
    if running.process.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{running.log.read_text()[-3000:]}")
    running.log.unlink()
    return ProcessTime(seconds=seconds, cpu=usage.ru_utime + usage.ru_stime)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median (smallest to largest)."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"
