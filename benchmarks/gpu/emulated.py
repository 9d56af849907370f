"""The slice of what the emulated device counts, which needs no GPU."""

import json
import sys

from benchmarks.gpu.cuda_tests import run
from benchmarks.gpu.slices import Bench, Figure, Slice


def emulated_counts(bench: Bench) -> list[Figure]:
    """Waits and launches of the emulated device, in a process that sees no GPU."""
    ended = run([sys.executable, "-m", "benchmarks.gpu.counts", "--json"], bench, CUDA_VISIBLE_DEVICES="")
    if ended.returncode:
        raise RuntimeError(f"the counts ended with {ended.returncode}:\n{ended.stderr[-6000:]}")
    return [Figure(**row | {"values": tuple(row["values"])}) for row in json.loads(ended.stdout)]


SLICES = (Slice("emulated device", emulated_counts),)
