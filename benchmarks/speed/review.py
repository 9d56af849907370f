"""Speed and memory of the review: how soon a changed label is in the ranking, and what a start takes.

    python -m benchmarks.speed.review WORK [--like CACHE] [--rounds 20] [--large] [--out docs/results/review-speed.md]

WORK gets caches of planted positives, 100,000 x 1280 unless --like names another cache with about 50,000 rows of
1280 values, and with --large 1,000,000 x 512 (2 GB). Fits run in the trainer's child process, as in a review: each
round submits the labels with 1 more decision, and waits for the first ranking that has seen it. CPU seconds and
memory are those of the child. Run it on a quiet machine.
"""

import argparse
import os
import resource
import statistics
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.common.cells import table
from benchmarks.common.command_line import page_parser, print_page
from benchmarks.common.environment import environment
from benchmarks.common.planted_cache import MB, Planted, prepare
from pucache import EmbeddingCache
from pucache.neighbours.graph_file import graph_path
from pucache.reviewing.trainer import Trainer
from pucache.reviewing.trainer_process import MOST_PAIRS

LABELLED, PATIENCE = 20, 600
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class ReviewTrainer:
    """A trainer, and the times at which its rankings come."""

    cache: EmbeddingCache
    came: dict[int, list[float]] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self.s, self.reviewed = np.zeros(len(self.cache), np.int8), np.zeros(len(self.cache), np.int8)
        self.serial, self.scores = 0, None
        paths = [file.path for file in self.cache.files]
        self.trainer = Trainer(paths, [self._ranked], lambda message: print("error:", message, flush=True))

    def _ranked(self, result, serial: int) -> None:
        with self.changed:
            self.scores = result.scores
            self.came.setdefault(serial, []).append(time.perf_counter())
            self.changed.notify_all()

    def submit(self) -> float:
        """Submit the labels; returns seconds until their first ranking."""
        self.serial += 1
        began = time.perf_counter()
        self.trainer.submit(self.serial, self.s, self.reviewed)
        with self.changed:
            if not self.changed.wait_for(lambda: self.serial in self.came, PATIENCE):
                raise SystemExit("no ranking came")
        return self.came[self.serial][0] - began

    def settle(self) -> None:
        """Wait until nothing is left to do."""
        while self.trainer.busy():
            time.sleep(0.01)

    def wait_for_graph(self) -> float:
        """Seconds until the rankings have neighbours; without them, where the pile is too large."""
        began = time.perf_counter()
        self.settle()
        if len(self.cache) ** 2 > MOST_PAIRS:
            return time.perf_counter() - began
        while not graph_path(self.cache).exists():
            time.sleep(0.01)
        count = len(self.came[self.serial])
        with self.changed:
            self.changed.wait_for(lambda: len(self.came[self.serial]) > count + 1, PATIENCE)
        return time.perf_counter() - began

    def cpu(self) -> float:
        """CPU seconds of the child so far."""
        fields = Path(f"/proc/{self.trainer.process_id}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS

    def memory(self) -> tuple[float, float]:
        """Resident memory of the child without the pages of files, and its peak with them, in MB."""
        lines = Path(f"/proc/{self.trainer.process_id}/status").read_text().splitlines()
        values = {line.split(":")[0]: int(line.split()[1]) * 1024 / MB for line in lines if line.endswith("kB")}
        return values["RssAnon"] + values["RssShmem"], values["VmHWM"]


def measure(cache: EmbeddingCache, truth: np.ndarray, rounds: int) -> list[list[str]]:
    """Rows of the table for one cache."""
    review, name = ReviewTrainer(cache), f"{len(cache):,} x {cache.encoder.dim}"
    lines: list[list[str]] = []
    how = "graph read" if graph_path(cache).exists() else "graph made"
    if len(cache) ** 2 > MOST_PAIRS:
        how = "none, the pile is too large; a ranking by heads"

    def add(what: str, seconds: list[float], cpu: float) -> None:
        each = f"{statistics.median(seconds):.2f} ({min(seconds):.2f}–{max(seconds):.2f})"
        lines.append([name, what, str(len(seconds)), each, f"{cpu / len(seconds):.2f}"])
        print(*lines[-1], sep=" | ", flush=True)

    with review.trainer:
        review.s[np.flatnonzero(truth)[:LABELLED]] = 1
        add("start to the first ranking, by similarity", [review.submit()], review.cpu())
        before = review.cpu()
        add(f"a ranking with neighbours: {how}", [review.wait_for_graph()], review.cpu() - before)
        before, seconds = review.cpu(), []
        for _ in range(rounds):
            unknown = (review.s == 0) & (review.reviewed == 0)
            row = int(np.argmax(np.where(unknown, review.scores, -np.inf)))
            review.reviewed[row] = 1 if truth[row] else -1
            seconds.append(review.submit())
            review.settle()
        add("a decision to the ranking that has seen it", seconds, review.cpu() - before)
        anonymous, peak = review.memory()
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MB
        lines.append([name, "memory of the child, MB", "", f"{anonymous:.0f}; peak with file pages {peak:.0f}", ""])
        lines.append([name, "peak memory of this process, MB", "", f"{own:.0f}", ""])
    return lines


def main(arguments: argparse.Namespace) -> str:
    """All measurements, and the page."""
    arguments.work.mkdir(parents=True, exist_ok=True)
    lines = []
    if arguments.like:
        cache = EmbeddingCache(arguments.like)
        first = cache.keys[0].split("/")[0]
        lines += measure(cache, np.array([key.split("/")[0] == first for key in cache.keys]), arguments.rounds)
    for n, d in (
        []
        if arguments.like and not arguments.large
        else [(100_000, 1280)] * (not arguments.like) + [(1_000_000, 512)] * arguments.large
    ):
        planted = Planted(arguments.work, n, d)
        prepare(planted)
        lines += measure(EmbeddingCache(planted.cache), np.load(planted.truth), arguments.rounds)
    head = ["cache", "measured", "n", "seconds, median (least–most)", "CPU seconds each"]
    what = (
        "`python -m benchmarks.speed.review WORK`: how soon a decision of the reviewer is in the ranking, on planted "
        "rows or on those of a real cache. Fits run in a child process, as in `pucache review`; CPU seconds are those "
        "of the child; n is the number of times."
    )
    return "\n".join(["# Speed of the review", "", what, "", table(head, lines), "", environment(), ""])


if __name__ == "__main__":
    parser = page_parser(__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--like", type=Path, help="a cache whose keys begin with the class")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--large", action="store_true", help="1,000,000 x 512 too")
    arguments = parser.parse_args()
    print_page(main, arguments)
