"""The slice of the tests that need a GPU."""

import importlib.util
import re
import subprocess
import sys
import time

from benchmarks.gpu import checkout
from benchmarks.gpu.slices import Bench, Figure, Slice

TESTS = "tests/cuda/test_gpu*.py"
LONGEST = 300.0  # seconds


def tests(bench: Bench) -> list[Figure]:
    """The tests of CUDA, in a process of their own."""
    if importlib.util.find_spec("pytest") is None:
        raise ModuleNotFoundError("No module named 'pytest'", name="pytest")
    files = sorted(str(path) for path in checkout.ROOT.glob(TESTS))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    ended = run(command, bench)
    if ended.returncode:
        raise RuntimeError(f"{TESTS} ended with {ended.returncode}:\n{ended.stdout[-6000:]}{ended.stderr[-2000:]}")
    summary = ended.stdout.strip().splitlines()[-1]
    counts = {what: re.search(rf"(\d+) {what}", summary) for what in ("passed", "skipped")}
    return [Figure(f"tests {what}", (float(match[1]) if match else 0.0,), "") for what, match in counts.items()]


def run(command: list[str], bench: Bench, **variables: str) -> subprocess.CompletedProcess:
    """Run a command that finds pucache and the helpers of the tests, and end it where the suite has to end."""
    environ = checkout.environment() | {"PYTHONDONTWRITEBYTECODE": "1"} | variables
    seconds = max(1.0, min(LONGEST, bench.until - time.monotonic()))
    return subprocess.run(
        command, cwd=checkout.ROOT, env=environ, capture_output=True, text=True, timeout=seconds, check=False
    )


SLICES = (Slice("tests of CUDA", tests, 3),)
