"""How well each way of ranking finds hidden positives, and how fast, against bare faiss.

    python -m benchmarks.quality.retrieval DIR [--fashion SOURCE] [--out docs/results/retrieval.md]
    python -m benchmarks.quality.retrieval --speed WORK --like CACHE [--out docs/results/retrieval-speed.md]

DIR holds train/<class>/*.png of CIFAR-10. The first measures the 1:10 tasks of the paper and of footwear (three seeds
of the classifier) and the tasks of the suite in six settings, a seed each; every cell is kept in DIR/pucache-bench, so
a run that is cut off goes on where it was. The second needs no images: it makes a cache of planted positives,
1,000,000 x 512, in WORK (2 GB), and searches with 600 of them, every measurement in a process of its own. The
approximate part is measured on CACHE, real embeddings such as the suite's, and on 400,000 rows made from it: each is
between a real one, turned into 512 dimensions, and one of its neighbours, for
neighbourhoods decide what an index has to do.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path

import faiss
import numpy as np
from sklearn.metrics import average_precision_score

from benchmarks.common.cells import measured, spread, table
from benchmarks.common.command_line import page_parser, write_page
from benchmarks.common.environment import environment
from benchmarks.common.image_classes import Task
from benchmarks.common.planted_cache import Planted, asked_for_a_cell, cell, keep, memory, prepare
from benchmarks.common.row_cache import write_row_cache
from benchmarks.common.tasks import CHOICE, CIFAR, CROSSING, FASHION, TASKS, Setting, TaskGroups, settings
from benchmarks.quality import suite, suite_page
from benchmarks.quality.suite import LABELLED, SHARES
from pucache import EmbeddingCache, train_pu
from pucache.estimates.metrics import precision_at
from pucache.labels.labels import Labels
from pucache.neighbours.index import CANDIDATES, index_path, open_or_build
from pucache.retrieval.indexed_similarity import IndexedSimilarity
from pucache.retrieval.model_scorers import Margins
from pucache.retrieval.ranking import Scorer
from pucache.retrieval.retrieve import choose_scorer, rank_unlabelled
from pucache.retrieval.similarity import SIMILARITIES, Similarity

SEEDS, RANKS = (0, 1, 2), (100, 1000, 2400)
PAPER, FOOTWEAR, DEFAULT = "paper", "footwear", "default ranking"
POSITIVES, K, REPEATS = 600, 100, 3
FACTORIES = {"ivf": "IVF1024,SQfp16", "hnsw": "HNSW32", "ivfpq": "IVF1024,PQ64"}


# --- quality -----------------------------------------------------------------------------------


def write_rows(path: Path, like: EmbeddingCache, X: np.ndarray, *, imported: bool = False) -> EmbeddingCache:
    """A cache of bare rows, of the same encoder or of none."""
    return write_row_cache(path, X, None if imported else like.encoder)


def scorers(rows: EmbeddingCache, s: np.ndarray, seed: int) -> dict[str, Scorer]:
    """Each way of ranking; those with a model start from the plain classifier and from the default one."""
    plain, default = next(iter(suite.ARMS)), suite.RANKINGS[DEFAULT][0]
    models = {
        arm: train_pu(rows, s, twins=None, seed=seed, **suite.ARMS[arm]) for arm in dict.fromkeys((plain, default))
    }
    ways: dict[str, Scorer] = {f"similarity: {kind}": Similarity(kind) for kind in SIMILARITIES}
    fused = choose_scorer(models[default], None)
    return ways | {"classifier": Margins(models[plain]), f"**{DEFAULT}**": fused}


def figures(cache: EmbeddingCache, s: np.ndarray, y: np.ndarray, by: Scorer) -> dict[str, float]:
    ranking = rank_unlabelled(cache, s, k=None, scorer=by, twins=None)  # all of them, copies too
    hidden = y[ranking.rows]
    precision = {f"P@{rank}": precision_at(hidden, ranking.scores, min(rank, len(hidden))) for rank in RANKS}
    return precision | {"AP": average_precision_score(hidden, ranking.scores)}


def task_of(data: TaskGroups, setting: Setting) -> Task:
    """The paper's task, that of footwear, or one kind against all others."""
    if setting.group == PAPER:
        return data.data(CIFAR).authors()
    return data.data(FASHION).footwear() if setting.group == FOOTWEAR else data.task(setting)


def measure(at: suite.Location, **cell) -> dict:
    """The figures of a cell, by way of ranking."""
    setting = Setting(**cell)
    of = task_of(suite.opened(at), setting)
    with tempfile.TemporaryDirectory(dir=at.work) as folder:
        rows = write_row_cache(Path(folder) / "rows.h5", of.X)
        return {name: figures(rows, of.s, of.y, by) for name, by in scorers(rows, of.s, setting.seed).items()}


def run(
    at: suite.Location,
    groups: list[str] | None,
    *,
    classes: list[str] | None = None,
    labelled: list[int] | None = None,
    jobs: int,
    minutes: float,
) -> list[dict]:
    """The cells of the two 1:10 tasks, and of the groups' tasks."""
    data = suite.opened(at)
    names = classes or (suite.QUICK_TASKS if at.quick else None)
    chosen = [name for name in data.names if not groups or name in groups]
    chosen = [name for name in chosen if names is None or set(names) & set(TASKS[name])]
    ten = [(PAPER, "vehicles", 0.0741), *([(FOOTWEAR, "footwear", 0.0789)] if at.fashion else [])]
    for name in {CIFAR, *chosen, *([FASHION] if at.fashion else [])}:
        data.data(name)  # embeds what is not embedded yet, before other processes read it
    numbers = labelled or (suite.QUICK_SEEDS if at.quick else LABELLED)
    wanted = [Setting(*task, 600, seed) for seed in SEEDS for task in ten]
    wanted += settings(chosen, shares=SHARES, seeds=dict.fromkeys(numbers, 1), names=names)
    cells, name = [asdict(setting) for setting in wanted], f"{data.prefix}retrieval"
    return measured(at.work, name, cells, partial(measure, at), minutes=minutes, jobs=jobs)


def report(rows: list[dict], data: str) -> str:
    """The page."""
    ways = [name for name in rows[0] if name not in Setting.__dataclass_fields__]
    others = [row for row in rows if row["group"] not in (PAPER, FOOTWEAR)]
    return "\n".join(
        [
            "# Retrieval",
            "",
            "`python -m benchmarks.quality.retrieval DIR --fashion SOURCE`: finding the hidden positives among the "
            f"unlabelled, by each way of ranking, from the labels alone: no prior is given. {data}",
            "",
            CHOICE,
            "",
            "## The paper's task, 1:10",
            "",
            "600 labelled, 2,400 hidden among 32,400 unlabelled. In %, mean ± sd of the seeds of the classifier "
            "(similarities have no randomness).",
            "",
            *ten_table([row for row in rows if row["group"] == PAPER], ways),
            "## Footwear of Fashion-MNIST, 1:10",
            "",
            "Sandals, sneakers and boots: 600 labelled, 3,600 hidden among 45,600 unlabelled. Nothing was chosen on "
            "it.",
            "",
            *ten_table([row for row in rows if row["group"] == FOOTWEAR], ways),
            "## One kind against all others",
            "",
            "Average precision among the unlabelled, mean over the tasks of each group, by number of labelled "
            f"positives and share of positives among the unlabelled. The tasks of {' and '.join(CROSSING)} cut across "
            "classes and topics: neighbours may mislead.",
            "",
            *(group_table(column.title, column.of(others), ways) for column in suite_page.columns(others)),
            environment(),
            "",
        ]
    )


def ten_table(rows: list[dict], ways: list[str]) -> list[str]:
    """Ways of ranking against figures, for a 1:10 task."""
    if not rows:
        return ["Not measured.", ""]
    columns = list(rows[0][ways[0]])
    lines = [[way, *(spread([row[way][name] for row in rows]) for name in columns), len(rows)] for way in ways]
    return [table(["", *columns, "n"], lines), ""]


def group_table(title: str, rows: list[dict], ways: list[str]) -> str:
    """Ways of ranking against settings, for one group of tasks."""
    each = {setting: suite_page.at(rows, setting) for setting in suite_page.settings_of(rows)}
    cells = [[way, *(f"{suite_page.mean(part, way, 'AP'):.3f}" for part in each.values())] for way in ways]
    head = [f"{labelled}, {share:.0%}" for labelled, share in each]
    return f"### {title}\n\nTasks: {len({row['task'] for row in rows})}.\n\n{table(['', *head], cells)}\n"


# --- speed: each of these runs in a process of its own -----------------------------------------


def labels_of(at: Planted, cache: EmbeddingCache) -> Labels:
    named = np.flatnonzero(Labels.read(cache, at.positives).s)[:POSITIVES]
    return Labels.of(np.isin(np.arange(len(cache)), named))


def timed(call) -> tuple[object, float]:
    began = time.perf_counter()
    return call(), time.perf_counter() - began


def ours_exact(at: Planted, kind: str = "max") -> dict[str, float]:
    """From the file to the ranking."""
    keep(at.cache)
    cache = EmbeddingCache(at.cache)
    labels = labels_of(at, cache)
    before = memory()["VmRSS"]
    _, seconds = timed(lambda: rank_unlabelled(cache, labels, k=K, scorer=Similarity(kind), twins=None))
    return {"seconds": seconds, "memory": memory()["VmHWM"] - before}


def ours_whitened(at: Planted) -> dict[str, float]:
    return ours_exact(at, "whitened")


def bare_exact(at: Planted) -> dict[str, float]:
    """The same search as one writes it with faiss: float32, centred, length 1, a flat index, K of each query."""
    keep(at.cache)
    cache = EmbeddingCache(at.cache)
    positive = np.flatnonzero(labels_of(at, cache).s)
    before = memory()["VmRSS"]

    def prepared():
        X = cache.X.astype(np.float32)
        X -= X.mean(0, dtype=np.float64).astype(np.float32)
        faiss.normalize_L2(X)
        return X

    X, seconds = timed(prepared)
    index = faiss.IndexFlatIP(X.shape[1])
    _, added = timed(lambda: index.add(X))
    (products, rows), searched = timed(lambda: index.search(X[positive], K))
    _, merged = timed(lambda: best_of(products, rows, positive))
    total = seconds + added + searched + merged
    return {"seconds": total, "search": searched, "memory": memory()["VmHWM"] - before}


def best_of(products: np.ndarray, rows: np.ndarray, positives: np.ndarray) -> np.ndarray:
    best: dict[int, float] = {}
    for product_, row in zip(products.ravel().tolist(), rows.ravel().tolist(), strict=True):
        best[row] = max(product_, best.get(row, -1.0))
    for row in positives.tolist():
        best.pop(row, None)
    return np.array(sorted(best, key=lambda row: -best[row])[:K])


def with_index(at: Planted, factory: str) -> dict[str, float]:
    """Building, a whole retrieval once it is built, and the search alone against a flat index in memory."""
    cache = EmbeddingCache(at.cache)
    path = index_path(cache, factory)
    path.unlink(missing_ok=True)
    opened, built = timed(lambda: open_or_build(cache, factory))
    peak = memory()["VmHWM"]
    labels = labels_of(at, cache)
    by = IndexedSimilarity(Similarity("max"), factory)
    ranking, whole = timed(lambda: rank_unlabelled(cache, labels, k=K, scorer=by, twins=None))
    exact = rank_unlabelled(cache, labels, k=K, scorer=Similarity("max"), twins=None)
    flat = faiss.IndexFlatIP(at.d)
    for _, X in cache.blocks():
        flat.add(opened.whitening.centred_units(X))
    queries = opened.whitening.centred_units(cache.take(np.flatnonzero(labels.s)))
    ratios, recalls = [], []
    for _ in range(REPEATS):
        neighbours, ours = timed(lambda: opened.candidates(queries, K))
        (_, truth), theirs = timed(lambda: flat.search(queries, K))
        ratios.append(theirs / ours)
        recalls.append(np.mean([len(np.intersect1d(a, b)) / K for a, b in zip(neighbours, truth, strict=True)]))
    return {
        "build": built,
        "build memory": peak,
        "file": path.stat().st_size / 1e6,
        "recall printed": opened.recall,
        "recall of the positives": float(np.mean(recalls)),
        "same of the first": len(np.intersect1d(ranking.rows, exact.rows)) / K,
        "whole": whole,
        "search": ours,
        "flat search": theirs,
        "ratio": statistics.median(ratios),
    }


def with_ivf(at: Planted) -> dict[str, float]:
    return with_index(at, FACTORIES["ivf"])


def with_hnsw(at: Planted) -> dict[str, float]:
    return with_index(at, FACTORIES["hnsw"])


def with_ivfpq(at: Planted) -> dict[str, float]:
    return with_index(at, FACTORIES["ivfpq"])


class Real(Planted):
    """Rows made from a cache that lies in the folder as ``like.h5``; the first of its classes is positive."""

    @property
    def name(self) -> str:
        return f"real-{self.n}x{self.d}"

    def prepare(self) -> None:
        if self.cache.exists():
            return
        like = EmbeddingCache(self.folder / "like.h5")
        draw, X = np.random.default_rng(0), np.asarray(like.X, np.float32)
        names = np.array([key.split("/")[0] for key in like.keys])
        positive = names == names[0]
        if self.n != len(X):
            Z = X - X.mean(0)
            Z /= np.linalg.norm(Z, axis=1, keepdims=True)
            _, near = faiss.knn(Z, Z, 11, metric=faiss.METRIC_INNER_PRODUCT)
            turn, _ = np.linalg.qr(draw.standard_normal((X.shape[1], self.d)).astype(np.float32))
            X = X @ turn
            one = np.arange(self.n) % len(X)
            other = near[one, draw.integers(1, 11, self.n)]
            way = draw.uniform(0, 0.5, (self.n, 1)).astype(np.float32)
            X, positive = X[one] * (1 - way) + X[other] * way, positive[one]
        cache = write_rows(self.cache, like, X.astype(np.float16), imported=True)
        keys = cache.keys[np.flatnonzero(positive)[:POSITIVES]]
        self.positives.write_text("".join(f"{key}\n" for key in keys))


def real_with_ivf(at: Planted) -> dict[str, float]:
    return with_index(Real(at.folder, at.n, at.d), FACTORIES["ivf"])


def real_with_hnsw(at: Planted) -> dict[str, float]:
    return with_index(Real(at.folder, at.n, at.d), FACTORIES["hnsw"])


def real_with_ivfpq(at: Planted) -> dict[str, float]:
    return with_index(Real(at.folder, at.n, at.d), FACTORIES["ivfpq"])


def make_real(at: Planted) -> dict[str, float]:
    Real(at.folder, at.n, at.d).prepare()
    return {}


SPEED = {
    call.__name__: call
    for call in (
        ours_exact,
        ours_whitened,
        bare_exact,
        with_ivf,
        with_hnsw,
        with_ivfpq,
        make_real,
        real_with_ivf,
        real_with_hnsw,
        real_with_ivfpq,
    )
}


def run_speed(work: Path, like: Path, n: int, d: int, made: int) -> str:
    at = Planted(work, n, d)
    prepare(at)
    (work / "like.h5").unlink(missing_ok=True)
    (work / "like.h5").symlink_to(like.resolve())
    of_like = EmbeddingCache(work / "like.h5")
    reals = [Planted(work, len(of_like), of_like.encoder.dim), Planted(work, made, d)]
    for real in reals:
        cell(__spec__.name, "make_real", real)
    exact = [
        {name: cell(__spec__.name, name, at) for name in ("bare_exact", "ours_exact", "ours_whitened")}
        for _ in range(REPEATS)
    ]
    ratio = [turn["bare_exact"]["seconds"] / turn["ours_exact"]["seconds"] for turn in exact]
    searched = statistics.median(turn["bare_exact"]["search"] for turn in exact)
    rows = [
        [title, *(f"{statistics.median(turn[name][what] for turn in exact):,.2f}" for what in ("seconds", "memory"))]
        for name, title in (
            ("bare_exact", "bare faiss, flat index of float32 in memory"),
            ("ours_exact", "pucache, `--similarity max`"),
            ("ours_whitened", "pucache, the default (`whitened`)"),
        )
    ]
    indexed = [
        (f"{kind}, {real.n:,} x {real.d}", cell(__spec__.name, f"real_with_{kind}", real))
        for real in reals
        for kind in FACTORIES
    ]
    names = list(indexed[0][1])
    return "\n".join(
        [
            "# Speed of retrieval",
            "",
            f"`python -m benchmarks.quality.retrieval --speed WORK --like CACHE`: {POSITIVES} labelled positives, the "
            f"{K} nearest wanted. Each measurement in a process of its own, the cache in the page cache.",
            "",
            f"## Exact, {n:,} x {d}, planted",
            "",
            f"Whole runs from the file to the ranking, medians of {REPEATS} turns; memory in MB is what the run added. "
            f"Bare faiss over pucache: {', '.join(f'{one:.2f}' for one in ratio)} (above 1: pucache is faster); of "
            f"bare faiss, {searched:.2f} s are `index.search` alone.",
            "",
            table(["", "seconds", "MB"], rows),
            "",
            "## Approximate",
            "",
            f"{of_like.encoder.name} embeddings of {len(of_like):,} real images, and rows made from them, each between "
            "a real one and one of its ten neighbours. Seconds, MB; ratio: `IndexFlatIP.search` over the index's "
            f"search, same queries in the same process, median of {REPEATS}; whole: a retrieval with the index built, "
            f"reading it and checking all hashes included. An index finds {CANDIDATES} candidates for each row that is "
            "wanted. A retrieval then compares these exactly; the recall is theirs, and the search here is without "
            "that comparison. " + ", ".join(f"{kind}: `{factory}`" for kind, factory in FACTORIES.items()) + ".",
            "",
            table(["", *names], [[title, *(f"{figures[name]:,.3f}" for name in names)] for title, figures in indexed]),
            "",
            environment(),
            "",
        ]
    )


if __name__ == "__main__":
    if asked := asked_for_a_cell():
        print(json.dumps(SPEED[asked[0]](asked[1]), default=float))
        sys.exit()
    parser = page_parser(__doc__)
    parser.add_argument("folder", type=Path, help="CIFAR-10; with --speed: where caches are kept")
    parser.add_argument("--fashion", type=Path, metavar="SOURCE", help="Fashion-MNIST (default: without it)")
    parser.add_argument("--groups", nargs="+", choices=TASKS, metavar="GROUP", help="these only (default: all)")
    parser.add_argument("--classes", nargs="+", choices=[*chain(*TASKS.values())], metavar="TASK", help="these only")
    parser.add_argument("--labelled", nargs="+", type=int, choices=LABELLED, metavar="N", help="these numbers only")
    parser.add_argument("--quick", action="store_true", help="a quarter of the rows; one task of each group")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one for each core)")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--rows", type=int, default=1_000_000, help="with --speed")
    parser.add_argument("--like", type=Path, help="with --speed: real embeddings")
    parser.add_argument("--made", type=int, default=400_000, help="with --speed: rows made from these")
    parser.add_argument("--work", type=Path, help="where caches and cells are kept (default: DIR/pucache-bench)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no further cell after so long")
    arguments = parser.parse_args()
    if arguments.speed:
        text = run_speed(arguments.folder, arguments.like, arguments.rows, 512, arguments.made)
    else:
        folder = arguments.folder.resolve()
        at = suite.Location(folder, arguments.work or folder / "pucache-bench", arguments.fashion, arguments.quick)
        only = {"classes": arguments.classes, "labelled": arguments.labelled}
        rows = run(at, arguments.groups, **only, jobs=arguments.jobs, minutes=arguments.minutes)
        text = report(rows, suite.opened(at).describe())
    write_page(text, arguments.out)
