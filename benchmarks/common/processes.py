"""Calls and commands in processes of their own, and their times."""

import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any


def alone(call: Callable, *arguments: object) -> Any:
    """Result of a call in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(call, *arguments).result()


def pucache(*arguments: str | Path) -> list[str]:
    """The command line as a user gives it, by the script beside this interpreter where it is installed."""
    script = shutil.which("pucache", path=str(Path(sys.executable).parent))
    start = [script] if script else [sys.executable, "-m", "pucache"]
    return [*start, *map(str, arguments)]


def timed(command: Sequence[str], folder: Path) -> float:
    """Seconds of a command in a folder; ends the benchmark where it fails."""
    began = time.perf_counter()
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return seconds


def memory() -> dict[str, float]:
    """What /proc tells of this process, in MB."""
    lines = [line.split() for line in Path("/proc/self/status").read_text().splitlines()]
    return {words[0].rstrip(":"): int(words[1]) * 1024 / 1e6 for words in lines if words[-1] == "kB"}


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median (smallest to largest)."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"
