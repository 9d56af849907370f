"""Resident memory of training on a cache larger than the memory it may take.

    python -m benchmarks.speed.memory FOLDER [--rows 2000000] [--dim 512] [--out docs/results/memory.md]

Writes a float16 cache of planted positives (2 GB by default) into FOLDER, then trains on it in a
process of its own and reads that process's peak resident memory.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.common.command_line import page_parser, write_page
from benchmarks.common.environment import environment
from pucache.cache.keys import encode_keys
from pucache.cache.writer import Rows, write_file
from pucache.encoders.spec import EncoderSpec

LABELLED, PRIOR, STEP = 1000, 0.02, 50_000
LIMIT = 3e9


def write(path: Path, n: int, d: int) -> None:
    """Positives are shifted along a few directions; the first `LABELLED` of them are labelled."""
    draw = np.random.default_rng(0)
    shift = np.zeros(d, np.float32)
    shift[:32] = 0.5
    positive = draw.random(n) < PRIOR
    spectrum = (1 / np.sqrt(1 + np.arange(d) / 16)).astype(np.float32)

    def blocks():
        for begin in range(0, n, STEP):
            size = min(STEP, n - begin)
            X = draw.standard_normal((size, d), np.float32) * spectrum + positive[begin : begin + size, None] * shift
            keys = encode_keys([f"{row:09}.png" for row in range(begin, begin + size)])
            yield Rows(keys, X.astype(np.float16), np.zeros((size, 32), np.uint8), np.full((size, 2), -1))

    width = len(f"{0:09}.png")
    write_file(
        path, EncoderSpec.imported("planted", d), "", blocks(), shape=(n, width, np.dtype(np.float16)), failures={}
    )
    rows = np.flatnonzero(positive)[:LABELLED]
    path.with_suffix(".txt").write_text("".join(f"{row:09}.png\n" for row in rows))


def train(path: Path) -> None:
    """In a process of its own: train and say what it took."""
    from pucache import EmbeddingCache
    from pucache.training.train_on_cache import train_pu

    began = time.perf_counter()
    model = train_pu(EmbeddingCache(path), path.with_suffix(".txt"))
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": time.perf_counter() - began, "peak": peak, "prior": model.prior_, **model.estimates_}))


def main(folder: Path, n: int, d: int) -> str:
    path = folder / f"memory-{n}x{d}.h5"
    if not path.exists():
        write(path, n, d)
    done = subprocess.run(
        [sys.executable, "-m", __spec__.name, "--train", path], capture_output=True, text=True, check=True
    )
    result = json.loads(done.stdout)
    return (
        f"# Memory\n\n`python -m benchmarks.speed.memory FOLDER`: train-pu at its defaults on {n:,} x {d} float16 "
        f"({path.stat().st_size / 1e9:.2f} GB on disk), {LABELLED:,} labelled, n = 1. Peak resident memory "
        f"**{result['peak'] / 1e9:.2f} GB** (limit {LIMIT / 1e9:.0f} GB), {result['seconds']:.0f} s; estimated prior "
        f"{result['prior']:.4f} (planted: {PRIOR}), PAUC {result['pauc']:.3f}.\n\n{environment()}\n"
    )


if __name__ == "__main__":
    parser = page_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        train(arguments.folder)
    else:
        report = main(arguments.folder, arguments.rows, arguments.dim)
        write_page(report, arguments.out)
