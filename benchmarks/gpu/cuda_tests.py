"""Slices of tests: those that need a GPU, and the counts of the emulated device."""

import importlib.util
import json
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
    ended = _run(command, bench)
    if ended.returncode:
        raise RuntimeError(f"{TESTS} ended with {ended.returncode}:\n{ended.stdout[-6000:]}{ended.stderr[-2000:]}")
    summary = ended.stdout.strip().splitlines()[-1]
    counts = {what: re.search(rf"(\d+) {what}", summary) for what in ("passed", "skipped")}
    return [Figure(f"tests {what}", (float(found[1]) if found else 0.0,), "") for what, found in counts.items()]


def emulated_counts(bench: Bench) -> list[Figure]:
    """Waits and launches of the emulated device, in a process that sees no GPU."""
    ended = _run([sys.executable, "-m", "benchmarks.gpu.counts", "--json"], bench, CUDA_VISIBLE_DEVICES="")
    if ended.returncode:
        raise RuntimeError(f"the counts ended with {ended.returncode}:\n{ended.stderr[-6000:]}")
    return [Figure(**row | {"values": tuple(row["values"])}) for row in json.loads(ended.stdout)]


def _run(command: list[str], bench: Bench, **variables: str) -> subprocess.CompletedProcess:
    environ = checkout.environment() | {"PYTHONDONTWRITEBYTECODE": "1"} | variables
    seconds = max(1.0, min(LONGEST, bench.until - time.monotonic()))
    return subprocess.run(
        command, cwd=checkout.ROOT, env=environ, capture_output=True, text=True, timeout=seconds, check=False
    )


SLICES = (Slice("tests of CUDA", tests, 3), Slice("emulated device", emulated_counts))
