"""Growth of time and memory with the number of rows of a cache.

    python -m benchmarks.speed.scale FOLDER [--sizes 625000 1250000 2500000 5000000] [--dim 256] [--rounds 3]
                               [--out docs/results/scale.md] [--plot docs/images/scale.png]

Caches of planted positives are written into FOLDER, and found there by name the next time (15 GB at
the default sizes). Every figure comes from a process of its own, on Linux; memory is what the
process grew by at its peak, after the imports. Files lie in the page cache.
"""

import argparse
import importlib.util
import json
import math
import os
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.common.command_line import page_parser, print_page
from benchmarks.common.planted_cache import (
    LABELLED,
    PRIOR,
    Planted,
    asked_for_a_cell,
    cell,
    keep,
    key,
    make,
    memory,
    prepare,
)
from pucache.cache.embedding_cache import EmbeddingCache
from pucache.cache.merging import pack
from pucache.cache.reader import CacheFile

LOOKED_UP, RETRIEVED = 10_000, 100
SAMPLED = 0.01  # seconds between two looks at where the memory lies


class Measured:
    """A context that keeps its seconds, and the memory it took at the peak, in MB.

    The peak is the kernel's own; how much of the memory is anonymous and how much is pages of files
    is looked at a hundred times a second, each for its own greatest value. Processes that this one starts
    are not counted.
    """

    def __enter__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        self._before = self._most = memory()
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look)
        self._watch.start()
        self._began, self._worked = time.perf_counter(), time.process_time()

    def _look(self) -> None:
        while not self._over.wait(SAMPLED):
            self._most = {name: max(value, self._most.get(name, 0)) for name, value in memory().items()}

    def __exit__(self, *error: object) -> None:
        seconds, worked = time.perf_counter() - self._began, time.process_time() - self._worked
        self._over.set()
        self._watch.join()
        after, before, most = memory(), self._before, self._most
        self.figures = {
            "seconds": seconds,
            "CPU": worked,
            "peak": after["VmHWM"] - before["VmRSS"],
            "anonymous": max(most["RssAnon"], after["RssAnon"]) - before["RssAnon"],
            "file": max(most["RssFile"], after["RssFile"]) - before["RssFile"],
        }


def open_one(at: Planted, measured: Measured) -> None:
    with measured:
        cache = EmbeddingCache(at.cache)
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


def score_csv(at: Planted, measured: Measured) -> None:
    out = score_to(at, measured, [at.cache], ".csv")
    with out.open("rb") as stream:
        assert sum(block.count(b"\n") for block in iter(lambda: stream.read(1 << 20), b"")) == at.n + 1
        stream.seek(-200, os.SEEK_END)
        name, margin, *_ = stream.read().decode().splitlines()[-1].split(",")
    assert name == key(at.n - 1)
    assert math.isclose(float(margin), last_margin(at), rel_tol=1e-4, abs_tol=1e-5)
    out.unlink()


def score_parquet(at: Planted, measured: Measured) -> None:
    from pyarrow import parquet

    out = score_to(at, measured, [at.cache], ".parquet")
    table = parquet.ParquetFile(out)
    *_, last = table.read_row_group(table.num_row_groups - 1).to_pylist()
    assert table.metadata.num_rows == at.n
    assert last["key"] == key(at.n - 1)
    assert math.isclose(last["margin"], last_margin(at), rel_tol=1e-4, abs_tol=1e-5)
    out.unlink()


def score_shards(at: Planted, measured: Measured) -> None:
    out = score_to(at, measured, at.shards, ".csv")
    with out.open() as stream:
        next(stream)
        first = next(stream).split(",")[0]
        assert first == key(0) and sum(1 for _ in stream) == at.n - 1
    out.unlink()


def score_to(at: Planted, measured: Measured, paths: list[Path], suffix: str) -> Path:
    from pucache.scoring.score import score
    from pucache.training.sklearn_classifier import PULinearClassifier

    out = at.folder / f"{at.name}-scores{suffix}"
    with measured:
        report = score(PULinearClassifier.load(at.model), EmbeddingCache(*paths), out)
    assert report.rows == at.n and 0.5 < report.positives / (PRIOR * at.n) < 2, report
    return out


def last_margin(at: Planted) -> float:
    from pucache.training.sklearn_classifier import PULinearClassifier

    model = PULinearClassifier.load(at.model)
    return float(CacheFile(at.cache).X[-1].astype(np.float64) @ model.coef_[0] + model.intercept_[0])


def retrieve_by_similarity(at: Planted, measured: Measured) -> None:
    retrieve_by(at, measured, None)


def retrieve_by_model(at: Planted, measured: Measured) -> None:
    retrieve_by(at, measured, at.model)


def retrieve_by(at: Planted, measured: Measured, path: Path | None) -> None:
    from pucache.labels.labels import Labels
    from pucache.retrieval.model_scorers import Margins
    from pucache.retrieval.retrieve import rank_unlabelled
    from pucache.retrieval.similarity import Similarity
    from pucache.training.sklearn_classifier import PULinearClassifier

    with measured:
        cache = EmbeddingCache(at.cache)
        s = Labels.read(cache, at.positives).s
        by = Margins(PULinearClassifier.load(path)) if path else Similarity()
        ranking = rank_unlabelled(cache, s, k=RETRIEVED, scorer=by)
    assert len(ranking.rows) == RETRIEVED and not s[ranking.rows].any() and (np.diff(ranking.scores) <= 0).all()
    assert ranking.keys == [key(int(row)) for row in ranking.rows]
    assert np.load(at.truth)[ranking.rows].mean() > 0.9


def train(at: Planted, measured: Measured) -> None:
    from pucache import train_pu

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
        assert np.array_equal(one.view(np.uint16), other.view(np.uint16))
    for column in ("raw_keys", "digests", "size_mtime", "failures", "encoder", "source"):
        one, other = getattr(packed.files[0], column), getattr(whole.files[0], column)
        assert np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other, column
    out.unlink()


def open_shards(at: Planted, measured: Measured) -> None:
    with measured:
        cache = EmbeddingCache(*at.shards)
    assert len(cache) == at.n


OPERATIONS: dict[str, Callable[[Planted, Measured], None]] = {
    "open": open_one,
    f"look up {LOOKED_UP:,} keys": look_up,
    "score to CSV": score_csv,
    "score to Parquet": score_parquet,
    "retrieve-positives by similarity": retrieve_by_similarity,
    "retrieve-positives by model": retrieve_by_model,
    "train-pu": train,
    "verify": verify,
    "pack two shards": pack_shards,
    "open two shards": open_shards,
    "score two shards to CSV": score_shards,
}


def run_cell(name: str, at: Planted) -> dict[str, float]:
    """In that process."""
    for module in (
        "retrieval.retrieve",
        "retrieval.model_scorers",
        "scoring.score",
        "training.train_on_cache",
    ):  # imports are not measured
        importlib.import_module(f"pucache.{module}")
    if has_pyarrow():
        importlib.import_module("pyarrow.parquet")
    measured = Measured()
    OPERATIONS[name](at, measured)
    return measured.figures


def scale(folder: Path, sizes: list[int], d: int, rounds: int, plot: Path) -> list[str]:
    """Every operation at every size."""
    planted = [Planted(folder, n, d) for n in sorted(sizes)]
    for at in planted:
        prepare(at)
        if not all(path.exists() for path in at.shards):
            make("split", at)
    if not planted[0].model.exists():
        make("train_model", planted[0])
    names = [name for name in OPERATIONS if "Parquet" not in name or has_pyarrow()]
    figures: dict[tuple[str, int], list[dict[str, float]]] = {}
    for _ in range(rounds):
        for at in planted:
            for path in (at.cache, *at.shards):
                keep(path)
            for name in names:
                figures.setdefault((name, at.n), []).append(cell(__spec__.name, name, at))
    draw_plot(plot, names, [at.n for at in planted], figures)
    return [
        f"`python -m benchmarks.speed.scale FOLDER --sizes {' '.join(map(str, sizes))} --dim {d} --rounds {rounds}`: "
        f"float16, {d} numbers a row, {LABELLED:,} labelled, prior {PRIOR}; a process for each figure, "
        f"{'one round' if rounds == 1 else f'medians of {rounds} rounds'}. The shards hold every other row each. A "
        "straight line is fitted to the sizes; *off* is how far the point farthest from it lies, in percent of that "
        "point. *spread* is (largest - smallest) / median of the rounds at the largest size.",
        "",
        *table("seconds", "s", names, planted, figures),
        "",
        "Resident memory at its peak, in MB over what the process had after its imports; *anonymous* and *pages of "
        "files*, at the largest size, are the most that was seen of each, looking every 10 ms. Processes that it "
        "starts are not counted.",
        "",
        *table("peak", "MB", names, planted, figures),
        "",
        f"![seconds and memory against rows](../images/{plot.name})",
    ]


def has_pyarrow() -> bool:
    return importlib.util.find_spec("pyarrow") is not None


def table(what: str, unit: str, names: list[str], planted: list[Planted], figures: dict) -> list[str]:
    sizes = [at.n for at in planted]
    last = ["spread"] if what == "seconds" else ["anonymous", "pages of files"]
    header = ["operation", *(f"{n / 1e6:g} M" for n in sizes), f"{unit} per million rows", f"+ {unit}", "off", *last]
    lines = [f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}"]
    for name in names:
        values = [median(figures[name, n], what) for n in sizes]
        slope, constant, off = straight(sizes, values)
        at_most = figures[name, sizes[-1]]
        if what == "seconds":
            seconds = [row[what] for row in at_most]
            ends = [f"{(max(seconds) - min(seconds)) / statistics.median(seconds):.0%}" if len(seconds) > 1 else ""]
        else:
            ends = [f"{median(at_most, kind):,.0f}" for kind in ("anonymous", "file")]
        numbers = [*(f"{value:.3g}" if value < 1000 else f"{value:,.0f}" for value in values)]
        lines.append(f"| {' | '.join([name, *numbers, f'{slope:.3g}', f'{constant:.3g}', f'{off:.0%}', *ends])} |")
    return lines


def median(rows: list[dict[str, float]], what: str) -> float:
    return statistics.median(row[what] for row in rows)


def straight(sizes: list[int], values: list[float]) -> tuple[float, float, float]:
    """Slope a million rows and constant of the line of least squares; the largest distance from it, relative."""
    if len(sizes) < 2:
        return math.nan, math.nan, math.nan
    millions = np.array(sizes) / 1e6
    slope, constant = np.polyfit(millions, values, 1)
    away = np.abs(slope * millions + constant - values) / np.maximum(values, 1e-9)
    return float(slope), float(constant), float(away.max())


def draw_plot(path: Path, names: list[str], sizes: list[int], figures: dict) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(13, 6))
    colours, marks = (*pyplot.get_cmap("tab10").colors, "black"), "osD^vP<>Xhp"
    for panel, what, label in zip(panels, ("seconds", "peak"), ("seconds", "peak memory, MB"), strict=True):
        for name, colour, mark in zip(names, colours, marks, strict=False):
            values = [max(median(figures[name, n], what), 1e-4) for n in sizes]
            panel.plot(sizes, values, color=colour, marker=mark, markersize=6, linewidth=1.6, label=name)
        panel.set(xscale="log", yscale="log", xlabel="rows", ylabel=label)
        panel.set_xticks(sizes, [f"{n / 1e6:g} M" for n in sizes])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    top = panels[0].get_ylim()[1]
    panels[0].plot(sizes, [top * n / sizes[-1] for n in sizes], "--", color="grey", label="slope of a straight line")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="lower center", ncols=4, frameon=False, fontsize=10)
    figure.tight_layout(rect=(0, 0.14, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main(arguments: argparse.Namespace) -> str:
    from benchmarks.common.environment import environment

    lines = scale(arguments.folder, arguments.sizes, arguments.dim, arguments.rounds, arguments.plot)
    return "\n".join(["# Scale", "", *lines, "", environment()]) + "\n"


if __name__ == "__main__":
    if asked := asked_for_a_cell():
        print(json.dumps(run_cell(*asked)))
        raise SystemExit
    parser = page_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[625_000, 1_250_000, 2_500_000, 5_000_000])
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--plot", type=Path, default=Path(__file__).parents[2] / "docs/images/scale.png")
    arguments = parser.parse_args()
    print_page(main, arguments)
