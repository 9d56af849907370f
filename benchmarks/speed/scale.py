"""Growth of time and memory with the number of rows of a cache.

    python -m benchmarks.speed.scale FOLDER [--quick] [--out docs/results/scale.md]

Caches of planted positives are written into FOLDER, and found there by name the next time (15 GB). Every figure comes
from a process of its own, on Linux; memory is what the process grew by at its peak, after the imports. Files lie in the
page cache. --quick takes small caches.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from pyarrow import csv, parquet

from benchmarks.common.cells import table
from benchmarks.common.command_line import page_parser, print_page
from benchmarks.common.environment import environment
from benchmarks.common.planted_cache import (
    LABELLED,
    PRIOR,
    Planted,
    asked_for_a_cell,
    cell,
    keep,
    key,
    make,
    prepare_with_model,
)
from benchmarks.common.processes import memory
from pucache import train_pu
from pucache.cache.embedding_cache import EmbeddingCache
from pucache.cache.merging import pack
from pucache.cache.reader import CacheFile
from pucache.labels.read_labels import open_labels
from pucache.retrieval.model_scorers import Margins
from pucache.retrieval.retrieve import rank_unlabelled
from pucache.retrieval.similarity import Similarity
from pucache.scoring.score import score
from pucache.training.sklearn_classifier import PULinearClassifier

SIZES, DIM, ROUNDS = (625_000, 1_250_000, 2_500_000, 5_000_000), 256, 2
QUICK_SIZES, QUICK_DIM, QUICK_ROUNDS = (100_000, 200_000), 32, 1
LOOKED_UP, RETRIEVED = 10_000, 100


class Measured:
    """A context that keeps its seconds, its CPU seconds, and the memory it took at the peak, in MB.

    Processes that this one starts are not counted.
    """

    def __enter__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        self._before = memory()["VmRSS"]
        self._began, self._worked = time.perf_counter(), time.process_time()

    def __exit__(self, *error: object) -> None:
        seconds, worked = time.perf_counter() - self._began, time.process_time() - self._worked
        self.figures = {"seconds": seconds, "CPU": worked, "peak": memory()["VmHWM"] - self._before}


def open_files(at: Planted, measured: Measured, *, shards: bool = False) -> None:
    with measured:
        cache = EmbeddingCache(*(at.shards if shards else [at.cache]))
    assert len(cache) == at.n


def look_up(at: Planted, measured: Measured) -> None:
    rows = np.random.default_rng(1).integers(at.n, size=LOOKED_UP)
    wanted = [key(int(row)) for row in rows]
    wanted[::100] = [f"{name}.absent" for name in wanted[::100]]
    rows[::100] = -1
    cache = EmbeddingCache(at.cache)
    with measured:
        looked_up = cache.keys.rows(wanted)
    assert np.array_equal(looked_up, rows)


def score_to(at: Planted, measured: Measured, *, suffix: str, shards: bool = False) -> None:
    out = at.folder / f"{at.name}-scores{suffix}"
    with measured:
        report = score(PULinearClassifier.load(at.model), EmbeddingCache(*(at.shards if shards else [at.cache])), out)
    assert report.rows == at.n and 0.5 < report.positives / (PRIOR * at.n) < 2, report
    scores, model = (csv.read_csv if suffix == ".csv" else parquet.read_table)(out), PULinearClassifier.load(at.model)
    assert scores["key"][0].as_py() == key(0) and scores["key"][-1].as_py() == key(at.n - 1)
    margin = float(CacheFile(at.cache).X[-1].astype(np.float64) @ model.coef_[0] + model.intercept_[0])
    assert math.isclose(scores["margin"][-1].as_py(), margin, rel_tol=1e-4, abs_tol=1e-5)
    out.unlink()


score_csv, score_parquet = partial(score_to, suffix=".csv"), partial(score_to, suffix=".parquet")


def retrieve(at: Planted, measured: Measured, *, by_model: bool) -> None:
    with measured:
        cache = EmbeddingCache(at.cache)
        s = open_labels(cache, at.positives).only.s
        by = Margins(PULinearClassifier.load(at.model)) if by_model else Similarity()
        ranking = rank_unlabelled(cache, s, k=RETRIEVED, scorer=by)
    assert len(ranking.rows) == RETRIEVED and not s[ranking.rows].any() and (np.diff(ranking.scores) <= 0).all()
    assert ranking.keys == [key(int(row)) for row in ranking.rows]
    assert np.load(at.truth)[ranking.rows].mean() > 0.9


def train(at: Planted, measured: Measured) -> None:
    with measured:
        model = train_pu(EmbeddingCache(at.cache), at.positives)
    hidden = (np.load(at.truth).sum() - LABELLED) / (at.n - LABELLED)
    assert 0.8 < model.tilt_.prior / hidden < 1.25 and model.estimates_["auc"] > 0.95, (model.tilt_.prior, hidden)


def verify(at: Planted, measured: Measured) -> None:
    with measured:
        EmbeddingCache(at.cache).verify()


def pack_shards(at: Planted, measured: Measured) -> None:
    out = at.folder / f"{at.name}-packed.h5"
    with measured:
        rows = pack(at.shards, out)
    assert rows == at.n
    packed, whole = EmbeddingCache(out), EmbeddingCache(at.cache)
    for (_, one), (_, other) in zip(packed.blocks(), whole.blocks(), strict=True):
        assert np.array_equal(one, other)
    for column in ("raw_keys", "digests", "size_mtime"):
        assert np.array_equal(getattr(packed.files[0], column), getattr(whole.files[0], column)), column
    out.unlink()


OPERATIONS: dict[str, Callable[[Planted, Measured], None]] = {
    "open": open_files,
    f"look up {LOOKED_UP:,} keys": look_up,
    "score to CSV": score_csv,
    "score to Parquet": score_parquet,
    "retrieve-positives by similarity": partial(retrieve, by_model=False),
    "retrieve-positives by model": partial(retrieve, by_model=True),
    "train-pu": train,
    "verify": verify,
    "pack two shards": pack_shards,
    "open two shards": partial(open_files, shards=True),
    "score two shards to CSV": partial(score_to, suffix=".csv", shards=True),
}


def run_cell(name: str, at: Planted) -> dict[str, float]:
    """In that process."""
    measured = Measured()
    OPERATIONS[name](at, measured)
    return measured.figures


def figures_of(planted: list[Planted], rounds: int) -> dict[tuple[str, int], list[dict[str, float]]]:
    """Figures of every operation at every size, round after round."""
    figures: dict[tuple[str, int], list[dict[str, float]]] = {}
    for _ in range(rounds):
        for at in planted:
            for path in (at.cache, *at.shards):
                keep(path)
            for name in OPERATIONS:
                figures.setdefault((name, at.n), []).append(cell(__spec__.name, name, at))
    return figures


def table_of(what: str, unit: str, sizes: list[int], figures: dict) -> str:
    """Medians at every size, and the straight line through them."""
    rows = []
    for name in OPERATIONS:
        values = [statistics.median(row[what] for row in figures[name, n]) for n in sizes]
        numbers = [f"{value:.3g}" if value < 1000 else f"{value:,.0f}" for value in values]
        slope, constant, off = straight(sizes, values)
        last = [row[what] for row in figures[name, sizes[-1]]]
        spread = (max(last) - min(last)) / statistics.median(last)
        rows.append([name, *numbers, f"{slope:.3g}", f"{constant:.3g}", f"{off:.0%}", f"{spread:.0%}"])
    columns = [f"{n / 1e6:g} M" for n in sizes]
    return table(["operation", *columns, f"{unit} per million rows", f"+ {unit}", "off", "spread"], rows)


def straight(sizes: list[int], values: list[float]) -> tuple[float, float, float]:
    """Slope a million rows and constant of the line of least squares; the largest distance from it, relative."""
    millions = np.array(sizes) / 1e6
    slope, constant = np.polyfit(millions, values, 1)
    away = np.abs(slope * millions + constant - values) / np.maximum(values, 1e-9)
    return float(slope), float(constant), float(away.max())


def main(arguments: argparse.Namespace) -> str:
    quick = arguments.quick
    sizes, d, rounds = (QUICK_SIZES, QUICK_DIM, QUICK_ROUNDS) if quick else (SIZES, DIM, ROUNDS)
    planted = [Planted(arguments.folder, n, d) for n in sizes]
    for at in planted:
        prepare_with_model(at)
        if not all(path.exists() for path in at.shards):
            make("split", at)
    figures = figures_of(planted, rounds)
    parts = [
        "# Scale",
        f"`python -m benchmarks.speed.scale FOLDER{' --quick' * quick}`: float16, {d} numbers a row, {LABELLED:,} "
        f"labelled, prior {PRIOR}; a process for each figure, medians of {rounds}. The shards hold every other row "
        "each. A straight line is fitted to the sizes; *off* is how far the point farthest from it lies, in percent of "
        "that point. *spread* is (largest - smallest) / median at the largest size.",
        table_of("seconds", "s", list(sizes), figures),
        "Resident memory at its peak, pages of files included, in MB over what the process had after its imports. "
        "Processes that it starts are not counted.",
        table_of("peak", "MB", list(sizes), figures),
        environment(),
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    if asked := asked_for_a_cell():
        print(json.dumps(run_cell(*asked)))
        raise SystemExit
    parser = page_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--quick", action="store_true", help="small caches, one round")
    print_page(main, parser.parse_args())
