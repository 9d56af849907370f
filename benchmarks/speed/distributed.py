"""The Ray engine against the local engine on one machine: throughput, equal bytes, cost of killed workers.

    python -m benchmarks.speed.distributed CIFAR_FOLDER WORK [--images 8000] [--rounds 3] [--workers 2]
                                     [--runtimes auto torch] [--out docs/results/distributed.md]

Every run is a process of its own, the engines in turn. *Whole* is the process from its start to its end: imports,
encoder, Ray's start and the merging with it. *Between* is from when a quarter of the images was done to when three
quarters were. For the killed worker the driver kills one of Ray's encoders half way; for the killed driver this
script kills the driver once two parts are safe, and starts it again.
"""

from __future__ import annotations

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
from typing import Any

from benchmarks.common.command_line import page_parser, print_page

GOAL = 0.85
WORKER = b"ray::MapWorker"  # what Ray calls a process with an encoder
PARTS = 2  # that are safe when the driver is killed


# --- a run: a process of its own ---------------------------------------------------------------------


@dataclass
class Watched:
    """A source that writes down what is read, in whatever process."""

    source: Any
    log: str

    @property
    def name(self) -> str:
        return self.source.name

    def scan(self):
        return self.source.scan()

    def read(self, key: str) -> bytes:
        log = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(log, f"{key}\n".encode())
        os.close(log)
        return self.source.read(key)


def run(arguments: argparse.Namespace) -> dict:
    from pucache.allocator import keep_freed_memory

    keep_freed_memory()
    from contextlib import ExitStack

    from pucache.embedding import row_blocks
    from pucache.embedding.embed import run_embedding
    from pucache.encoders.encoder import load_encoder
    from pucache.images.source import open_source
    from pucache.progress import Silent

    class Clock(Silent):
        """When how many images were done; kills a worker half way where that is asked for."""

        def start(self, total, what):
            self.total, self.done, self.killing = total, 0, arguments.kill_worker
            self.at = []

        def advance(self, steps):
            self.done += steps
            self.at.append((self.done, time.perf_counter()))
            if self.killing and self.done >= self.total / 2:
                os.kill(workers()[0], signal.SIGKILL)
                self.killing = False

        def between(self) -> float:
            inner = [(done, at) for done, at in self.at if 1 <= 4 * done / self.total <= 3]
            (first, began), (last, ended) = inner[0], inner[-1]
            return (last - first) / (ended - began)

    row_blocks.BLOCK_ROWS = min(
        row_blocks.BLOCK_ROWS, arguments.images // 4
    )  # so that a driver can be killed in between
    source, clock = open_source(arguments.folder), Clock()
    if arguments.log:
        source = Watched(source, arguments.log)
    with ExitStack() as stack:
        engine = None
        if arguments.cell == "ray":
            from pucache.embedding.distributed.engine import RayEngine

            engine = stack.enter_context(RayEngine(workers=arguments.workers))
        encoder = load_encoder(device="cpu", runtime=arguments.runtimes[0])
        report = run_embedding(source, arguments.work / "cache.h5", encoder, engine=engine, progress=clock)
        assert not report.failures
        starting = report.profile.seconds["starting"]
        return {"between": clock.between(), "computed": report.computed, "checks and encoder": starting}


def workers() -> list[int]:
    """Processes with an encoder that descend from this one."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cmdline").read_bytes().startswith(WORKER) and os.getpid() in ancestors(int(process.name)):
                pids.append(int(process.name))
        except OSError:
            continue  # it has ended
    return pids


def ancestors(number: int) -> list[int]:
    pids = []
    while number > 1:
        number = int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])
        pids.append(number)
    return pids


# --- the report --------------------------------------------------------------------------------------


class Bench:
    """Starts runs, and keeps what came of them."""

    def __init__(self, arguments: argparse.Namespace, folder: Path):
        self._arguments, self._folder = arguments, folder
        self.cache, self.log = arguments.work / "cache.h5", arguments.work / "read.log"

    def start(self, cell: str, runtime: str, *options: str) -> subprocess.Popen:
        a = self._arguments
        command = [
            sys.executable,
            "-m",
            __spec__.name,
            str(self._folder),
            str(a.work),
            "--cell",
            cell,
            "--runtimes",
            runtime,
        ]
        command += ["--workers", str(a.workers), "--images", str(a.images), *options]
        environ = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", "RAY_USAGE_STATS_ENABLED": "0"}
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)

    def clear(self) -> None:
        self.cache.unlink(missing_ok=True)
        self.log.unlink(missing_ok=True)
        shutil.rmtree(f"{self.cache}.parts", ignore_errors=True)

    def whole(self, cell: str, runtime: str, *options: str) -> dict:
        began = time.perf_counter()
        process = self.start(cell, runtime, *options)
        output, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"{cell} {runtime} failed")
        figures = {"seconds": time.perf_counter() - began, **json.loads(output.splitlines()[-1])}
        figures["content"] = hashlib.sha256(self.cache.read_bytes()).hexdigest()
        print(cell, runtime, *options, figures, file=sys.stderr, flush=True)
        return figures

    def killed_driver(self, runtime: str) -> tuple[dict, int]:
        """The run that goes on, and how many images the parts held."""
        process = self.start("ray", runtime, "--log", str(self.log))
        while len(list(Path(f"{self.cache}.parts").glob("part-*.h5"))) < PARTS:
            if process.poll() is not None:
                raise SystemExit("the driver was done before it could be killed; pass more --images")
            time.sleep(0.05)
        process.kill()
        process.communicate()
        time.sleep(5)  # until Ray has noticed
        figures = self.whole("ray", runtime, "--log", str(self.log))
        return figures, self._arguments.images - figures["computed"]

    def read_again(self) -> int:
        """Images that were read more than once; the first is read by every process, to see whether it can be."""
        keys = self.log.read_text().split("\n")[:-1]
        first = min(keys)
        return sum(key != first for key in keys) - (len(set(keys)) - 1)


def measure(bench: Bench, runtime: str, rounds: int) -> dict[str, list[dict]]:
    figures: dict[str, list[dict]] = {"local": [], "ray": []}
    for number in range(rounds):
        for cell in list(figures)[:: -1 if number % 2 else 1]:  # as a machine may slow down within a round
            bench.clear()
            figures[cell].append(bench.whole(cell, runtime))
    if len({row["content"] for rows in figures.values() for row in rows}) > 1:
        raise SystemExit(f"{runtime}: the engines gave different caches")
    return figures


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})"


def table(figures: dict[str, list[dict]], images: int) -> list[str]:
    local, ray = figures["local"], figures["ray"]
    lines = ["| | local | Ray | Ray / local, of a round |", "| --- | --- | --- | --- |"]
    rates = {
        "between, images/s": lambda row: row["between"],
        "whole, images/s": lambda row: images / row["seconds"],
        "whole, seconds": lambda row: row["seconds"],
        "checks of nodes, and encoder's start, s": lambda row: row["checks and encoder"],
    }
    for name, figure in rates.items():
        one, other = list(map(figure, local)), list(map(figure, ray))
        ratio = spread([b / a for a, b in zip(one, other, strict=True)]) if name.endswith("images/s") else ""
        lines.append(f"| {name} | {spread(one)} | {spread(other)} | {ratio} |")
    ratio = statistics.median(b["between"] / a["between"] for a, b in zip(local, ray, strict=True))
    return [*lines, "", f"Ray's rate is **{ratio:.2f}** of the local engine's (goal: at least {GOAL})."]


def faults(bench: Bench, runtime: str, undisturbed: list[dict]) -> list[str]:
    usual = statistics.median(row["seconds"] for row in undisturbed)
    bench.clear()
    worker = bench.whole("ray", runtime, "--kill-worker", "--log", str(bench.log))
    again = bench.read_again()
    bench.clear()
    driver, kept = bench.killed_driver(runtime)
    if {worker["content"], driver["content"]} != {undisturbed[0]["content"]}:
        raise SystemExit("a kill changed the cache")
    return [
        f"A worker killed half way: {again:,} images read again, {worker['seconds'] - usual:+.1f} s beside the median "
        f"of {usual:.1f} s; the same bytes.",
        f"The driver killed when {PARTS} parts were safe: the next run kept {kept:,} images, read "
        f"{bench.read_again():,} again and took {driver['seconds']:.1f} s; the same bytes.",
    ]


def main(arguments: argparse.Namespace) -> str:
    from benchmarks.common.environment import environment
    from benchmarks.speed.embed import copy_pngs

    a = arguments
    folder = a.work / f"png-{a.images}"
    copy_pngs(folder, a.folder, a.images)
    lines = [
        "# Ray on one machine",
        "",
        f"`python -m benchmarks.speed.distributed CIFAR_FOLDER WORK --images {a.images} --rounds {a.rounds} --workers "
        f"{a.workers}`: bundled encoder at 224 px on the CPU, {a.images:,} CIFAR-10 PNG files, n = {a.rounds}; medians "
        "(smallest to largest). The local engine and Ray, which the command starts by itself, gave the same cache to "
        "the byte. *between*: the rate from a quarter to three quarters of the images; *whole*: the command, start "
        "included.",
    ]
    bench = Bench(a, folder)
    for runtime in a.runtimes:
        figures = measure(bench, runtime, a.rounds)
        lines += ["", f"## --runtime {runtime}", "", *table(figures, a.images)]
        if runtime == a.runtimes[-1]:
            lines += ["", "## Kills", "", *faults(bench, runtime, figures["ray"])]
    bench.clear()
    return "\n".join([*lines, "", environment()]) + "\n"


if __name__ == "__main__":
    parser = page_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--images", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runtimes", nargs="+", default=["auto", "torch"])
    parser.add_argument("--cell", choices=["local", "ray"], help=argparse.SUPPRESS)
    parser.add_argument("--log", default="", help=argparse.SUPPRESS)
    parser.add_argument("--kill-worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        print(json.dumps(run(arguments)))
    else:
        arguments.work.mkdir(parents=True, exist_ok=True)
        print_page(main, arguments)
