"""Time to open a large cache, and to read all of it compared with a plain file of the same bytes.

    python -m benchmarks.speed.opening FOLDER [--rows 1000000] [--dim 512] [--out docs/results/opening.md]

The cache of planted positives is written into FOLDER, and found there by name the next time (2 GB with
the plain file). Every figure comes from a process of its own, on Linux.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np

from benchmarks.common.command_line import page_parser, print_page
from benchmarks.common.planted_cache import (
    Planted,
    asked_for_a_cell,
    cell,
    drop,
    file_blocks,
    keep,
    key,
    make,
    memory,
    prepare,
)
from pucache.cache.embedding_cache import EmbeddingCache
from pucache.cache.reader import BLOCK_BYTES

OPENINGS, COLD_OPENINGS, READINGS = 20, 5, 5
PIECE = 1 << 20  # a buffer that stays in the processor's own memory


def opening(at: Planted) -> dict[str, float]:
    """Milliseconds; how many MB resident memory had grown by, at the peak, by then and after a first key."""
    cache_at, wanted = at.cache, [key(at.n // 3)]
    Path("/proc/self/clear_refs").write_text("5")
    before = memory()
    began = time.perf_counter()
    cache = EmbeddingCache(cache_at)
    opened = time.perf_counter()
    at_opening = memory()
    looking = time.perf_counter()
    assert cache.keys.rows(wanted)[0] == at.n // 3
    finished = time.perf_counter()
    return {
        "open": 1000 * (opened - began),
        "first key": 1000 * (finished - looking),
        "MB at opening": at_opening["VmHWM"] - before["VmRSS"],
        "MB after the first key": memory()["VmHWM"] - before["VmRSS"],
    }


def read_cache(at: Planted) -> dict[str, float]:
    began, total = time.perf_counter(), 0
    for _, X in EmbeddingCache(at.cache).blocks():
        total ^= xor(X)
    return {"seconds": time.perf_counter() - began, "xor": total}


def read_plain(at: Planted, size: int = BLOCK_BYTES) -> dict[str, float]:
    began, total = time.perf_counter(), 0
    for block in file_blocks(at.plain, size):
        total ^= xor(block)
    return {"seconds": time.perf_counter() - began, "xor": total}


def read_pieces(at: Planted) -> dict[str, float]:
    return read_plain(at, PIECE)


def xor_alone(at: Planted) -> dict[str, float]:
    """The consumer of both, on one block that is in memory already."""
    block = np.random.default_rng(0).integers(0, 256, BLOCK_BYTES, np.uint8)
    began, total = time.perf_counter(), 0
    for _ in range(count := max(1, 2 * at.n * at.d // BLOCK_BYTES)):
        total ^= xor(block)
    return {"seconds": (time.perf_counter() - began) * (2 * at.n * at.d) / (count * BLOCK_BYTES), "xor": total}


def xor(block: np.ndarray) -> int:
    """Touch every byte, as cheaply as NumPy can."""
    return int(np.bitwise_xor.reduce(block.reshape(-1).view(np.uint64)))


PROBES = {call.__name__: call for call in (opening, read_cache, read_plain, read_pieces, xor_alone)}


def open_and_read(folder: Path, n: int, d: int) -> list[str]:
    """A large cache opened, and read from end to end beside a plain file of its embeddings."""
    at = Planted(folder, n, d)
    prepare(at)
    if not at.plain.exists():
        make("write_plain", at)
    keep(at.cache)
    warm = [cell(__spec__.name, "opening", at) for _ in range(OPENINGS)]
    cold = []
    for _ in range(COLD_OPENINGS):
        drop(at.cache)
        cold.append(cell(__spec__.name, "opening", at))
    lines = [
        f"## Opening {n:,} x {d} float16 ({at.cache.stat().st_size / 1e9:.2f} GB)",
        "",
        f"`python -m benchmarks.speed.opening FOLDER`: in {OPENINGS} processes of their own, the file in the page "
        f"cache, and in {COLD_OPENINGS} with its pages dropped before; medians (smallest to largest). Memory is what "
        "the process grew by at its peak. Goal: under 50 ms and 20 MB.",
        "",
        "| | open, ms | first key, ms | MB at opening | MB after the first key |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, rows in (("in the page cache", warm), ("pages dropped", cold)):
        lines.append(f"| {name} | {' | '.join(spread([row[what] for row in rows]) for what in rows[0])} |")
    return [*lines, "", *reading(at)]


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def reading(at: Planted) -> list[str]:
    """The cache and the plain file in turn, so that neither has the better hour."""
    size = at.plain.stat().st_size
    arms = {"read_cache": at.cache, "read_plain": at.plain, "read_pieces": at.plain}
    lines = [
        f"## Reading {size / 1e9:.2f} GB of embeddings in order",
        "",
        f"`EmbeddingCache.blocks()` beside `readinto` of a plain file of the same bytes, into a buffer of the blocks' "
        f"{BLOCK_BYTES >> 20} MiB, and into one of {PIECE >> 20} MiB, which stays in the processor's own memory. Each "
        f"XORs all 64-bit words together, to the same result; {READINGS} turns, every other one backwards, each in a "
        "process of its own, medians (smallest to largest) in GB/s, and ratios within a turn. Goal: at least 0.8 of "
        "the plain file.",
        "",
        "| | cache | plain file | plain file, small buffer | cache / plain | cache / small buffer |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, make_ready in (("in the page cache", keep), ("pages dropped", drop)):
        rates: dict[str, list[float]] = {arm: [] for arm in arms}
        for turn in range(READINGS):
            results = set()
            for arm, path in list(arms.items())[:: -1 if turn % 2 else 1]:
                make_ready(path)
                figures = cell(__spec__.name, arm, at)
                results.add(figures["xor"])
                rates[arm].append(size / figures["seconds"] / 1e9)
            assert len(results) == 1, "the cache and the plain file differ"
        cache, *plain = rates.values()
        ratios = [[one / other for one, other in zip(cache, others, strict=True)] for others in plain]
        lines.append(f"| {name} | {' | '.join(map(spread, (*rates.values(), *ratios)))} |")
    alone = size / cell(__spec__.name, "xor_alone", at)["seconds"] / 1e9
    return [*lines, "", f"The XOR alone, of a block in memory: {alone:.3g} GB/s."]


def main(arguments: argparse.Namespace) -> str:
    from benchmarks.common.environment import environment

    lines = open_and_read(arguments.folder, arguments.rows, arguments.dim)
    return "\n".join(["# Opening and reading", "", *lines, "", environment()]) + "\n"


if __name__ == "__main__":
    if asked := asked_for_a_cell():
        print(json.dumps(PROBES[asked[0]](asked[1])))
        raise SystemExit
    parser = page_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=512)
    arguments = parser.parse_args()
    print_page(main, arguments)
