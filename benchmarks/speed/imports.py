"""Importing a folder as clip-retrieval writes it, against the disk, and with kills.

    python -m benchmarks.speed.imports FOLDER [--rows 1000000] [--dim 512] [--parts 100] [--rounds 3] [--kills 50]
                                       [--quick] [--out docs/results/imports.md]

Planted embeddings are written into FOLDER as parts with Parquet metadata beside them (1 GB), and found there the next
time. A second folder of metadata gives the rows keys in random order. In each round a file of the cache's size is
written from memory and synced, then the folder is imported, each import by a process of its own. What is timed begins
with opening the folder and ends with a cache that is synced; Python's imports come before. Then imports are killed at
random moments and started again, and what they end in is compared with what an undisturbed one wrote.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.common.planted_cache import drop, file_blocks, keep, memory

ORDERS = ("keys in the order of the rows", "keys in another order")
STATES = ("from the page cache", "from the disk")
WRITE_BYTES = 1 << 22
QUICK = {"rows": 40_000, "dim": 128, "parts": 20, "rounds": 2, "kills": 6}
QUICK_SEGMENT = 1 << 20  # so that there is something to go on from


@dataclass(frozen=True)
class Source:
    """A folder of parts.

    Attributes
    ----------
    folder : Path
    rows, dim, parts : int
    """

    folder: Path
    rows: int
    dim: int
    parts: int

    @property
    def path(self) -> Path:
        return self.folder / f"clip-{self.rows}x{self.dim}-{self.parts}"

    @property
    def cache(self) -> Path:
        return self.folder / "imported.h5"

    def metadata(self, order: str) -> Path:
        return self.path / ("metadata" if order == ORDERS[0] else "metadata-permuted")

    @property
    def files(self) -> list[Path]:
        return sorted(path for path in self.path.rglob("*") if path.is_file())


# --- processes of their own -----------------------------------------------------------------------------------


def write_source(at: Source) -> None:
    """Write the parts, and metadata in both orders of keys."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    draw, size = np.random.default_rng(0), at.rows // at.parts
    spectrum = (1 / np.sqrt(1 + np.arange(at.dim))).astype(np.float32)
    permuted = np.random.default_rng(1).permutation(at.rows)
    for folder in ("img_emb", *(at.metadata(order).name for order in ORDERS)):
        (at.path / folder).mkdir(parents=True)
    for part in range(at.parts):
        rows = np.arange(part * size, (part + 1) * size)
        X = draw.standard_normal((size, at.dim), np.float32) * spectrum
        np.save(at.path / "img_emb" / f"img_emb_{part}.npy", X.astype(np.float16))
        captions = [f"a photograph, number {row}" for row in rows.tolist()]
        for order, numbers in zip(ORDERS, (rows, permuted[rows]), strict=True):
            names = [f"{number // 10_000:05}/{number:09}.jpg" for number in numbers.tolist()]
            table = pa.table({"image_path": names, "caption": captions})
            pq.write_table(table, at.metadata(order) / f"metadata_{part}.parquet")


def run_import(at: Source, order: str, segment: int | None) -> None:
    """Import, and print the seconds, the peak memory and how many rows an earlier run had written."""
    import pyarrow.parquet  # noqa: F401

    from pucache.cache.interchange import resumable_file
    from pucache.cache.interchange.importing import import_embeddings

    if segment:
        resumable_file.SEGMENT_BYTES = segment
    print("ready", flush=True)
    began = time.perf_counter()
    report = import_embeddings(at.path, at.cache, metadata=at.metadata(order))
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "peak": memory()["VmHWM"], "resumed": report.resumed_rows}))


def start(at: Source, what: str, segment: int | None = None) -> subprocess.Popen[str]:
    """Start one of these processes; an import has loaded its libraries when this returns."""
    numbers = map(str, (at.rows, at.dim, at.parts, segment or 0))
    command = [sys.executable, "-m", __spec__.name, "--cell", what, str(at.folder), *numbers]
    environ = os.environ | {"SOURCE_DATE_EPOCH": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
    if what in ORDERS:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def finished(process: subprocess.Popen[str]) -> str | None:
    """The last line of a process that has succeeded; None of one that was killed."""
    lines = process.communicate()[0].splitlines()
    if process.returncode == -signal.SIGKILL:
        return None
    if process.returncode:
        raise SystemExit(f"{' '.join(process.args)} failed")
    return lines[-1] if lines else ""


# --- measuring ------------------------------------------------------------------------------------------------


def write_seconds(path: Path, size: int) -> float:
    """Seconds of writing and syncing a file of some bytes."""
    block = np.random.default_rng(0).integers(0, 256, WRITE_BYTES, np.uint8)
    began = time.perf_counter()
    with path.open("wb", buffering=0) as stream:
        for start_byte in range(0, size, WRITE_BYTES):
            stream.write(block[: size - start_byte])
        os.fsync(stream.fileno())
    seconds = time.perf_counter() - began
    path.unlink()
    return seconds


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    for block in file_blocks(path):
        digest.update(block)
    return digest.hexdigest()


def clear(at: Source) -> None:
    """Remove the cache and what an unfinished import left."""
    at.cache.unlink(missing_ok=True)
    shutil.rmtree(at.cache.with_name(at.cache.name + ".import"), ignore_errors=True)


def measure(at: Source, order: str, state: str) -> dict[str, float]:
    """One undisturbed import."""
    clear(at)
    for file in at.files:
        (drop if state == STATES[1] else keep)(file)
    figures = json.loads(finished(start(at, order)) or "")
    print(f"{order}, {state}: {figures}", file=sys.stderr, flush=True)
    return figures


@dataclass
class Kills:
    """What killed imports did.

    Attributes
    ----------
    struck : int
        Processes that were killed.
    completed : int
        Imports that ended after one or more kills.
    resumed : list of int
        Rows that runs that ended found written by those killed before.
    """

    struck: int = 0
    completed: int = 0
    resumed: list[int] | None = None


def kill(at: Source, order: str, *, kills: int, seconds: float, whole: str, segment: int | None) -> Kills:
    """Kill imports at random moments; each that ends must have written the same bytes."""
    clear(at)
    draw, result, since = np.random.default_rng(kills), Kills(resumed=[]), 0
    while result.struck < kills or since:
        process = start(at, order, segment)
        if result.struck < kills:
            time.sleep(draw.uniform(0, seconds))
            process.kill()
        line = finished(process)
        if line is None:
            result.struck, since = result.struck + 1, since + 1
            if at.cache.exists() and sha256(at.cache) != whole:
                raise SystemExit(f"{order}: a killed import has left another {at.cache}")
            continue
        if sha256(at.cache) != whole:
            raise SystemExit(f"{order}: after {result.struck} kills the cache differs from the undisturbed one")
        result.completed += bool(since)
        result.resumed += [json.loads(line)["resumed"]] if since else []
        since = 0
        clear(at)
    return result


def main(given: argparse.Namespace) -> str:
    at = Source(given.folder, given.rows, given.dim, given.parts)
    at.folder.mkdir(parents=True, exist_ok=True)
    if not at.path.exists():
        finished(start(at, "write"))
    segment = QUICK_SEGMENT if given.quick else None
    measure(at, ORDERS[0], STATES[0])  # for the size of the cache
    size = at.cache.stat().st_size
    cells = {(order, state): [] for state in STATES for order in ORDERS}
    written: list[float] = []
    for _ in range(given.rounds):
        clear(at)
        written.append(write_seconds(at.folder / "written.bin", size))
        for cell, rows in cells.items():
            rows.append(measure(at, *cell))
    lines = [
        "| | seconds | GB/s | of the disk's write rate | peak memory |",
        "| --- | --- | --- | --- | --- |",
        f"| writing {size / 1e9:.2f} GB and syncing | {spread(written)} "
        f"| {size / statistics.median(written) / 1e9:.2f} | 1.00 | |",
    ]
    for (order, state), rows in cells.items():
        seconds = [row["seconds"] for row in rows]
        ratio = [one / other for one, other in zip(written, seconds, strict=True)]
        peak = max(row["peak"] for row in rows)
        rate = size / statistics.median(seconds) / 1e9
        lines.append(
            f"| importing, {order}, {state} | {spread(seconds)} | {rate:.2f} | {spread(ratio)} | {peak:,.0f} MB |"
        )
    return "\n".join([*title(at, given, size), *lines, "", *killed_lines(at, given, cells, segment), *ending()])


def killed_lines(
    at: Source, given: argparse.Namespace, cells: dict[tuple[str, str], list[dict[str, float]]], segment: int | None
) -> list[str]:
    """Kill imports of both orders, and tell what came of it."""
    lines = [
        "| killed while importing | kills | imports that ended after kills | resumed with, % of the rows | bytes |"
    ]
    lines += ["| --- | --- | --- | --- | --- |"]
    for order in ORDERS:
        clear(at)
        finished(start(at, order, segment))
        whole = sha256(at.cache)
        seconds = statistics.median(row["seconds"] for row in cells[order, STATES[0]])
        result = kill(at, order, kills=given.kills, seconds=seconds, whole=whole, segment=segment)
        shares = [100 * rows / at.rows for rows in result.resumed or []]
        lines.append(f"| {order} | {result.struck} | {result.completed} | {spread(shares, 0)} | the same |")
    clear(at)
    return [*lines, ""]


def title(at: Source, given: argparse.Namespace, size: int) -> list[str]:
    return [
        "# Imports",
        "",
        f"`python -m benchmarks.speed.imports FOLDER --rows {at.rows} --dim {at.dim} --parts {at.parts} --rounds "
        f"{given.rounds} --kills {given.kills}{' --quick' if given.quick else ''}`: `import-embeddings` of a folder as "
        f"clip-retrieval writes it: {at.parts} parts of {at.rows // at.parts:,} x {at.dim} float16 (planted), with "
        f"Parquet metadata (`image_path`, `caption`). The cache has {size / 1e9:.2f} GB. Medians of {given.rounds} "
        "rounds, with the smallest and the largest. *Of the disk's write rate* is the ratio of the seconds that a file "
        "of the cache's size takes to be written and synced in the same round to those of the import, which ends with "
        "a synced file; *peak memory* is all resident memory of the process, with its libraries and mapped pages, the "
        "largest of the rounds. Seeds: 0 (rows), 1 (order of the keys).",
        "",
    ]


def ending() -> list[str]:
    from benchmarks.common.environment import environment

    return [
        "Each process was killed with SIGKILL at a random moment of the time that an import takes, and the command "
        "started again. *Resumed with* are the rows that the last run found written. Every cache was compared with "
        "that of an undisturbed import by SHA-256 (`SOURCE_DATE_EPOCH` was set: a cache states when it was written).",
        "",
        environment(),
        "",
    ]


def spread(values: list[float], digits: int = 2) -> str:
    """Median (smallest to largest)."""
    if not values:
        return ""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--cell"]:
        name, folder, *numbers = sys.argv[2:]
        rows, dim, parts, segment = map(int, numbers)
        source = Source(Path(folder), rows, dim, parts)
        write_source(source) if name == "write" else run_import(source, name, segment or None)
        raise SystemExit
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--parts", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--quick", action="store_true", help="a small folder and few kills")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.quick:
        vars(given).update(QUICK)
    text = main(given)
    print(text)
    if given.out:
        given.out.write_text(text)
