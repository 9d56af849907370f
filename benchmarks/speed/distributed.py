"""Shards by Ray against one command without Ray, on one machine: throughput, equal bytes, cost of kills.

    python -m benchmarks.speed.distributed CIFAR_FOLDER WORK [--images 8000] [--rounds 3] [--workers 2]
                                     [--runtimes auto torch] [--out docs/results/distributed.md]

Every run is a command, from its start to its end: imports, encoder, Ray's start and the merging with it. Ray embeds
four shards for each of its workers. For the killed worker this script kills one of Ray's processes once a shard is
there; for the killed driver it kills the command then, and starts it again.
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
from collections.abc import Callable
from pathlib import Path

from benchmarks.common.command_line import page_parser, print_page

SHARDS_PER_WORKER = 4
TASK = b"ray::_apply"  # what Ray calls a process that runs a task


class Bench:
    """Starts commands, and keeps what came of them."""

    def __init__(self, work: Path, images: Path, workers: int, runtime: str):
        self.work, self.images, self.workers, self.runtime = work, images, workers, runtime
        self.shards, self.folder = SHARDS_PER_WORKER * workers, work / "shards"

    def start(self, out: Path, *options: str) -> subprocess.Popen:
        """Start `pucache embed`."""
        command = [sys.executable, "-m", "pucache", "embed", str(self.images), str(out), "--json", "--device", "cpu"]
        environ = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", "RAY_USAGE_STATS_ENABLED": "0"}
        return subprocess.Popen(
            [*command, "--runtime", self.runtime, *options], stdout=subprocess.PIPE, text=True, env=environ
        )

    def with_ray(self) -> subprocess.Popen:
        """Start the command that embeds the shards by Ray."""
        return self.start(self.folder, "--engine", "ray", "--shards", str(self.shards), "--workers", str(self.workers))

    def local_seconds(self) -> float:
        """Seconds of one command without Ray, into one file."""
        began = time.perf_counter()
        finished(self.start(self.work / "cache.h5"))
        (self.work / "cache.h5").unlink()
        return time.perf_counter() - began

    def ray_seconds(self) -> float:
        """Seconds of the command with Ray."""
        shutil.rmtree(self.folder, ignore_errors=True)
        began = time.perf_counter()
        finished(self.with_ray())
        return time.perf_counter() - began

    def expected(self) -> dict[str, str]:
        """Digests of the shards that commands without Ray write."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for number in range(1, self.shards + 1):
            finished(self.start(self.folder / f"{number:05}.h5", "--shard", f"{number}/{self.shards}"))
        return self.digests()

    def digests(self) -> dict[str, str]:
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in self.folder.glob("*.h5")}

    def disturbed(self, kill: Callable[[subprocess.Popen], None]) -> tuple[subprocess.Popen, float]:
        """A command that `kill` disturbs once a shard is there, and when it began."""
        shutil.rmtree(self.folder, ignore_errors=True)
        began, process = time.perf_counter(), self.with_ray()
        while not self.digests():
            if process.poll() is not None:
                raise SystemExit("the command was done before it could be disturbed; pass more --images")
            time.sleep(0.05)
        kill(process)
        return process, began


def finished(process: subprocess.Popen) -> dict:
    output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{process.args} failed")
    return json.loads(output)


def kill_worker(process: subprocess.Popen) -> None:
    """Kill one of the processes that run tasks."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if (place / "cmdline").read_bytes().startswith(TASK) and process.pid in ancestors(int(place.name)):
                os.kill(int(place.name), signal.SIGKILL)
                return
        except OSError:
            continue  # it has ended
    raise SystemExit("no process that runs a task was found")


def ancestors(number: int) -> list[int]:
    pids = []
    while number > 1:
        number = int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])
        pids.append(number)
    return pids


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})"


def table(local: list[float], ray: list[float], images: int) -> list[str]:
    ratio = spread([one / other for one, other in zip(local, ray, strict=True)])
    return [
        "| | one command | Ray | rate of Ray / one command, of a round |",
        "| --- | --- | --- | --- |",
        f"| seconds | {spread(local)} | {spread(ray)} | |",
        f"| images/s | {spread([images / s for s in local])} | {spread([images / s for s in ray])} | {ratio} |",
    ]


def kills(bench: Bench, expected: dict[str, str], usual: float) -> list[str]:
    process, began = bench.disturbed(kill_worker)
    finished(process)
    seconds = time.perf_counter() - began
    check(bench, expected)
    process, _ = bench.disturbed(subprocess.Popen.kill)
    process.communicate()
    time.sleep(5)  # until Ray has noticed
    began = time.perf_counter()
    report = finished(bench.with_ray())
    check(bench, expected)
    return [
        f"A worker killed when the first shard was there: {seconds - usual:+.1f} s beside the median of {usual:.1f} s; "
        "the same bytes.",
        f"The driver killed then: the next run kept {report['kept']:,} images, computed {report['computed']:,} and "
        f"took {time.perf_counter() - began:.1f} s; the same bytes.",
    ]


def check(bench: Bench, expected: dict[str, str]) -> None:
    if bench.digests() != expected:
        raise SystemExit("Ray gave other shards")


def main(arguments: argparse.Namespace) -> str:
    from benchmarks.common.environment import environment
    from benchmarks.speed.embed import copy_pngs

    a = arguments
    a.work.mkdir(parents=True, exist_ok=True)
    images = a.work / f"png-{a.images}"
    copy_pngs(images, a.folder, a.images)
    lines = [
        "# Ray on one machine",
        "",
        f"`python -m benchmarks.speed.distributed CIFAR_FOLDER WORK --images {a.images} --rounds {a.rounds} --workers "
        f"{a.workers}`: bundled encoder at 224 px on the CPU, {a.images:,} CIFAR-10 PNG files, n = {a.rounds}; medians "
        f"(smallest to largest). *one command*: `pucache embed` into one file; *Ray*: into {SHARDS_PER_WORKER} shards "
        "for each worker, by Ray that the command starts by itself. The shards are to the byte those of `--shard I/N`.",
    ]
    for runtime in a.runtimes:
        bench = Bench(a.work, images, a.workers, runtime)
        expected, local, ray = bench.expected(), [], []
        for _ in range(a.rounds):
            local.append(bench.local_seconds())
            ray.append(bench.ray_seconds())
            check(bench, expected)
        lines += ["", f"## --runtime {runtime}", "", *table(local, ray, a.images)]
        if runtime == a.runtimes[-1]:
            lines += ["", "## Kills", "", *kills(bench, expected, statistics.median(ray))]
    shutil.rmtree(bench.folder)
    return "\n".join([*lines, "", environment()]) + "\n"


if __name__ == "__main__":
    parser = page_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--images", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runtimes", nargs="+", default=["auto", "torch"])
    print_page(main, parser.parse_args())
