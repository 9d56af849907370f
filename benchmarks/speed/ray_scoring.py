"""Scoring and retrieval of a cache of shards: workers of a Ray cluster against the local engine.

    python -m benchmarks.speed.ray_scoring FOLDER [--rows 2000000] [--dim 256] [--shards 16] [--rounds 5] [--workers 2]
                                           [--kills 50] [--quick] [--out docs/results/ray-scoring.md]

Shards of planted positives are written into FOLDER (1.2 GB), and found there the next time. The two engines take turns
in one process that has joined the cluster; imports, the start of the cluster and a first run of each operation, in
which worker processes start, come before the clock. Every output of the cluster is compared with that of the local
engine, byte by byte. At the end worker processes are killed at random while the operations are repeated, and the
outputs are compared again.
"""

import argparse
import hashlib
import os
import random
import shutil
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pucache.threads import set_thread_defaults

set_thread_defaults()  # as commands do, before numpy is imported

import numpy as np  # noqa: E402

from benchmarks.common.command_line import command_line, print_page  # noqa: E402
from benchmarks.common.planted_cache import Planted, prepare_with_model  # noqa: E402
from pucache.allocator import keep_freed_memory  # noqa: E402
from pucache.cache.embedding_cache import EmbeddingCache  # noqa: E402
from pucache.cache.merging import merge  # noqa: E402
from pucache.cache.reader import CacheFile  # noqa: E402
from pucache.retrieval.retrieve import retrieve_positives  # noqa: E402
from pucache.scaling.rank_shards import rank_shards  # noqa: E402
from pucache.scaling.score_shards import score_shards  # noqa: E402
from pucache.scoring.score import score  # noqa: E402

GOALS = {"score": 0.85, "retrieve": 0.8}  # rate over that of the local engine
WORKER = b"ray::_apply"  # name of a worker process that is at work
NUMBERS = {"rows": 2_000_000, "dim": 256, "shards": 16, "rounds": 5, "workers": 2, "kills": 50}
QUICK = {"rows": 200_000, "dim": 32, "shards": 5, "rounds": 2, "kills": 5}


def write_shards(at: Planted, count: int) -> Path:
    """Divide the rows among files of consecutive rows; returns their folder."""
    folder = at.folder / f"{at.name}-in-{count}"
    if not folder.exists():
        whole, making = CacheFile(at.cache), folder.with_suffix(".making")
        making.mkdir(exist_ok=True)
        for number, rows in enumerate(np.array_split(np.arange(at.n), count)):
            path = making / f"shard-{number:04}.h5"
            merge(path, [(whole, rows)], encoder=whole.encoder, dtype=whole.dtype, source="", failures={})
        making.rename(folder)
    return folder


@dataclass(frozen=True)
class Operation:
    """What is measured: a function of an output path, and of whether Ray does the work."""

    name: str
    run: Callable[[Path, bool], None]
    suffix: str = ""

    @property
    def goal(self) -> float:
        return GOALS[self.name.split()[0]]


def operations(shards: Path, at: Planted) -> list[Operation]:
    def scored(suffix: str, parts: str | None = None) -> Operation:
        def run(out: Path, by_ray: bool) -> None:
            (score_shards if by_ray else score)(at.model, EmbeddingCache(shards), out, parts=parts)

        return Operation(f"score to {'a table for each shard' if parts else suffix[1:]}", run, suffix)

    def ranked(name: str, **options: Any) -> Operation:
        def run(out: Path, by_ray: bool) -> None:
            cache = EmbeddingCache(shards)
            if by_ray:
                rank_shards(cache, at.positives, k=1000, **options).save(out)
            else:
                retrieve_positives(cache, at.positives, k=1000, device="cpu", **options).save(out)

        return Operation(f"retrieve by {name}", run, ".csv")

    return [
        scored(".csv"),
        scored(".parquet"),
        scored("", "csv"),
        ranked("similarity"),
        ranked("classifier", model=at.model, by="classifier"),
    ]


def digest(out: Path) -> str:
    """Hash of a file, or of the names and contents of all files of a folder."""
    if remains := [path.name for path in out.parent.iterdir() if path.name.startswith(".")]:
        raise SystemExit(f"temporary files remain: {', '.join(remains)}")
    files = sorted(out.iterdir()) if out.is_dir() else [out]
    return hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in files)).hexdigest()


def measure(operation: Operation, folder: Path, by_ray: bool) -> tuple[float, str]:
    """Seconds of one run, and the digest of its output."""
    out = folder / f"out{operation.suffix}"
    shutil.rmtree(out, ignore_errors=True)
    began = time.perf_counter()
    operation.run(out, by_ray)
    return time.perf_counter() - began, digest(out)


def check_equal(operation: Operation, output: str, expected: str) -> None:
    if output != expected:
        raise SystemExit(f"{operation.name}: the output of the cluster differs from that of the local engine")


# --- killed workers ------------------------------------------------------------------------------------


def working() -> list[int]:
    """Worker processes that run a task."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cmdline").read_bytes().startswith(WORKER):
                pids.append(int(process.name))
        except OSError:
            continue  # it has ended
    return pids


class Killer(threading.Thread):
    """Kills a random worker process at random times, as long as some are to be killed."""

    def __init__(self, kills: int):
        super().__init__(daemon=True)
        self.left, self.killed, self._draw = kills, 0, random.Random(0)  # noqa: S311

    def run(self) -> None:
        while self.left:
            time.sleep(self._draw.uniform(1, 4))  # a worker takes a second to start
            processes = working()
            if not processes:
                continue
            try:
                os.kill(self._draw.choice(processes), signal.SIGKILL)
            except ProcessLookupError:
                continue
            self.left, self.killed = self.left - 1, self.killed + 1


def with_kills(todo: list[Operation], folder: Path, *, kills: int, expected: dict[str, str]) -> str:
    """Repeat the operations until so many workers have been killed; a sentence on the result."""
    killer, runs, began = Killer(kills), 0, time.perf_counter()
    killer.start()
    while killer.left:
        operation = todo[runs % len(todo)]
        check_equal(operation, measure(operation, folder, True)[1], expected[operation.name])
        runs += 1
    killer.join()
    spent = time.perf_counter() - began
    return (
        f"**Killed workers**: {killer.killed} worker processes were killed (SIGKILL) at random times in {spent:.0f} s; "
        f"operations run in that time: {runs}. Every output was equal to that of the local engine, byte by byte, and "
        "no temporary file remained beside it."
    )


# --- the page --------------------------------------------------------------------------------------------


def table(todo: list[Operation], seconds: dict[str, list[tuple[float, float]]], n: int) -> list[str]:
    lines = ["| | local, s | Ray, s | rows/s, Ray | rate over local (median of rounds; range) | goal |"]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    for operation in todo:
        local, ray = (statistics.median(values) for values in zip(*seconds[operation.name], strict=True))
        ratios = [local_seconds / ray_seconds for local_seconds, ray_seconds in seconds[operation.name]]
        ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        lines.append(f"| {operation.name} | {local:.2f} | {ray:.2f} | {n / ray:,.0f} | {ratio} | {operation.goal} |")
    return lines


def main(options: argparse.Namespace) -> str:
    from benchmarks.common.environment import environment
    from pucache.scaling.tasks import cluster_tasks

    keep_freed_memory()
    at = Planted(options.folder, options.rows, options.dim)
    prepare_with_model(at)
    shards = write_shards(at, options.shards)
    todo = operations(shards, at)
    seconds: dict[str, list[tuple[float, float]]] = {operation.name: [] for operation in todo}
    with tempfile.TemporaryDirectory(dir=options.folder) as work:
        began = time.perf_counter()
        with cluster_tasks(workers=options.workers):
            started = time.perf_counter() - began
            expected, first = {}, 0.0
            for operation in todo:  # a first run of each
                _, expected[operation.name] = measure(operation, Path(work), False)
                ray, output = measure(operation, Path(work), True)
                check_equal(operation, output, expected[operation.name])
                first = first or ray
            for _ in range(options.rounds):
                for operation in todo:
                    local, _ = measure(operation, Path(work), False)
                    ray, output = measure(operation, Path(work), True)
                    check_equal(operation, output, expected[operation.name])
                    seconds[operation.name].append((local, ray))
                    print(f"{operation.name:36s} local {local:6.2f} s, Ray {ray:6.2f} s", flush=True)
            killed = with_kills(todo, Path(work), kills=options.kills, expected=expected) if options.kills else ""
    lines = [
        "# Scoring and retrieval on Ray",
        "",
        f"`python -m benchmarks.speed.ray_scoring FOLDER --rows {options.rows} --dim {options.dim} "
        f"--shards {options.shards} --rounds {options.rounds} --workers {options.workers} --kills {options.kills}`: a "
        f"cache of {options.rows:,} x {options.dim} float16 in {options.shards} shards, planted positives, seed 0; "
        f"{options.workers} Ray workers on one machine. The engines take turns. Seconds include opening the cache, the "
        "check of the nodes and writing the output; medians of the rounds. All outputs of Ray were equal to those of "
        "the local engine, byte by byte.",
        "",
        *table(todo, seconds, at.n),
        "",
        f"Not included above: starting Ray on this machine, {started:.1f} s; the first run, in which worker processes "
        f"start, {first:.1f} s.",
        "",
        *([killed, ""] if killed else []),
        environment(),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print_page(main, command_line(__doc__, NUMBERS, QUICK))
