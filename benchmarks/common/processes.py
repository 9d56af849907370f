"""Times of whole processes, and tables of them."""

import json
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


def timed(command: Sequence[str], folder: Path, **variables: str) -> ProcessTime:
    """Run a command in a folder and measure the process; ends the benchmark where the command fails."""
    log = folder / f"output-{time.monotonic_ns()}.txt"
    with log.open("wb") as stream:
        began = time.perf_counter()
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
        )
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{log.read_text()[-3000:]}")
    log.unlink()
    return ProcessTime(seconds=seconds, cpu=usage.ru_utime + usage.ru_stime)


def figures_of(command: Sequence[str], what: str) -> dict[str, float]:
    """Figures in JSON that a command prints last; ends the benchmark where the command fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{what} failed:\n{done.stderr}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def memory() -> dict[str, float]:
    """What /proc tells of this process, in MB."""
    lines = [line.split() for line in Path("/proc/self/status").read_text().splitlines()]
    return {words[0].rstrip(":"): int(words[1]) * 1024 / 1e6 for words in lines if words[-1] == "kB"}


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median (smallest to largest)."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"
