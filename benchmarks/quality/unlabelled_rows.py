"""At how many unlabelled rows quality levels off: training on samples of U, judged on all of it and on new images.

    python -m benchmarks.quality.unlabelled_rows DIR [--fashion SOURCE] [--out docs/results/unlabelled-rows.md]
    python -m benchmarks.quality.unlabelled_rows DIR --seeds 1 --sizes 1000 3000 --planted 10000 --labelled 20

DIR and SOURCE are as `benchmarks.quality.suite` takes them. A pile has one class as hidden positives among
all images of the others. Labelled positives are fixed; the unlabelled rows trained on are the first of one random
order, so that a smaller sample is part of a larger one. Planted rows are Gaussian, positives shifted along a few
directions, with up to a million rows. Every cell is kept beside the caches, so a run that is cut off goes on where it
was.
"""

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache, partial
from itertools import product
from pathlib import Path

import numpy as np
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

from benchmarks.common.cells import measured, spread, table
from benchmarks.common.command_line import page_parser, write_page
from benchmarks.common.environment import environment
from benchmarks.common.image_classes import ImageClasses, Task, one_vs_rest_rows
from benchmarks.common.tasks import CIFAR, FASHION, TaskGroups
from benchmarks.quality.prior_piles import DIM, reduced
from pucache import PULinearClassifier
from pucache.labels.sample import SAMPLE_ROWS

CLASSES = {CIFAR: ("automobile", "bird"), FASHION: ("pullover", "sneaker")}
SHARES, LABELLED, SEEDS = (0.01, 0.05), (20, 100), 2
SIZES = (1_000, 3_000, 10_000, 30_000, 1 << 40)  # the last is all rows
PLANTED = "planted"
PLANTED_SIZES, PLANTED_LABELLED = (3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000), (20, 100, 1000)
PLANTED_SHARE, PLANTED_DIM, PLANTED_TEST, SHIFT = 0.01, 64, 200_000, (16, 0.75)  # directions and their shift
TITLES = {"linear": "Linear head", "distilled": "Default method (distilled head)"}  # in the order of measuring
FIGURES = {"ap": "AP of the pile", "ap_new": "AP, new rows", "auc_new": "AUC, new rows", "f1_new": "F1, new rows"}
LEGEND = """\
- **AP of the pile**: hidden positives among all unlabelled rows of the pile, trained on or not, by the head's margin.
- **New rows**: the test images, or planted rows of the same kind; F1 at the model's own threshold.
- **Prior**: median of |estimated / true - 1|, the true one being that of the whole pile.
- **hidden**: mean number of hidden positives in the sample.
- Figures are mean differences from training on all rows of the same pile with the same labels, in hundredths,
  ± standard deviation over the piles; the last line of a table has the figures themselves."""


# --- one cell ------------------------------------------------------------------------------------------


@cache
def opened(cifar: Path, work: Path, fashion: Path | None) -> TaskGroups:
    return TaskGroups(cifar, work, fashion_source=fashion)


@cache
def rows_of(groups: TaskGroups, group: str) -> tuple[np.ndarray, np.ndarray]:
    """Training and test images of a group along their first principal components, float16."""
    data = groups.data(group)
    assert isinstance(data, ImageClasses)
    X = reduced(np.concatenate([data.X, data.X_test]))
    return X[: len(data.X)], X[len(data.X) :]


def image_task(groups: TaskGroups, group: str, name: str, share: float, labelled: int, seed: int) -> Task:
    """A pile with one class hidden."""
    data = groups.data(group)
    assert isinstance(data, ImageClasses)
    X, X_test = rows_of(groups, group)
    draw = np.random.default_rng([data.classes.index(name), round(1000 * share), labelled, seed])
    y = data.label == name
    pile, s = one_vs_rest_rows(y, share=share, labelled=labelled, draw=draw)
    return Task(X[pile], s[pile], y[pile], X_test, data.label_test == name)


@cache
def planted_rows(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian rows of falling variance, float16 (n, d); positives are shifted along the first directions."""
    draw = np.random.default_rng(seed)
    y = draw.random(rows) < PLANTED_SHARE
    X = draw.standard_normal((rows, PLANTED_DIM), np.float32) / np.sqrt(1 + np.arange(PLANTED_DIM, dtype=np.float32))
    X[y, : SHIFT[0]] += np.float32(SHIFT[1]) / np.sqrt(1 + np.arange(SHIFT[0], dtype=np.float32))
    return X.astype(np.float16), y


def planted_task(unlabelled: int, labelled: int, seed: int) -> Task:
    """Labelled positives come first."""
    X, y = planted_rows(unlabelled + PLANTED_TEST, seed)
    draw = np.random.default_rng([labelled, seed])
    P = draw.standard_normal((labelled, PLANTED_DIM), np.float32) / np.sqrt(
        1 + np.arange(PLANTED_DIM, dtype=np.float32)
    )
    P[:, : SHIFT[0]] += np.float32(SHIFT[1]) / np.sqrt(1 + np.arange(SHIFT[0], dtype=np.float32))
    s = (np.arange(labelled + unlabelled) < labelled).astype(np.int8)
    return Task(
        np.concatenate([P.astype(np.float16), X[:unlabelled]]),
        s,
        np.concatenate([np.ones(labelled, bool), y[:unlabelled]]),
        X[unlabelled:],
        y[unlabelled:],
    )


def sampled_rows(s: np.ndarray, size: int, seed: int) -> np.ndarray:
    """All labelled rows and the first `size` unlabelled ones of a random order, ascending."""
    unlabelled = np.random.default_rng(seed).permutation(np.flatnonzero(s == 0))[:size]
    return np.sort(np.concatenate([np.flatnonzero(s == 1), unlabelled]))


def figures(task: Task, size: int, seed: int, method: str) -> dict:
    """Train on a sample of U and judge on all of it."""
    rows = sampled_rows(task.s, size, seed)
    model = PULinearClassifier(method=method, deploy_prior=task.deploy_prior, device="cpu")
    began = time.process_time()
    model.fit(task.X[rows], task.s[rows])
    seconds = time.process_time() - began
    of_new = model.margins(task.X_test)
    return {
        "rows": len(rows) - int(task.s.sum()),
        "hidden": int(task.y[rows].sum() - task.s.sum()),
        "ap": average_precision_score(task.hidden, model.margins(task.unlabelled)),
        "ap_new": average_precision_score(task.y_test, of_new),
        "auc_new": roc_auc_score(task.y_test, of_new),
        "f1_new": f1_score(task.y_test, of_new > model.threshold_),
        "prior_error": abs(model.prior_ / task.prior - 1),
        "cpu_seconds": seconds,
    }


def measure(
    at: tuple, largest: int, *, method: str, group: str, name: str, share: float, labelled: int, seed: int, size: int
) -> dict:
    """The figures of one cell."""
    if group == PLANTED:
        return figures(planted_task(largest, labelled, seed), size, seed, method)
    return figures(image_task(opened(*at), group, name, share, labelled, seed), size, seed, method)


# --- the page ------------------------------------------------------------------------------------------


def table_of(row: dict) -> tuple:
    return row["method"], row["group"] == PLANTED, row["labelled"], row["share"]


def pile_of(row: dict) -> tuple:
    return tuple(row[name] for name in ("method", "group", "name", "share", "labelled", "seed"))


def differences(rows: list[dict], size: int, name: str) -> list[float]:
    """Figure with a sample of this size minus that with all rows, for each pile."""
    largest = max(row["size"] for row in rows)
    of_all = {pile_of(row): row[name] for row in rows if row["size"] == largest}
    return [row[name] - of_all[pile_of(row)] for row in rows if row["size"] == size and pile_of(row) in of_all]


def complete(rows: list[dict], wanted: list[dict]) -> list[dict]:
    """Rows of the piles that were measured at every size."""
    sizes, measured_sizes = Counter(map(pile_of, wanted)), Counter(map(pile_of, rows))
    return [row for row in rows if measured_sizes[pile_of(row)] == sizes[pile_of(row)]]


def lines(rows: list[dict]) -> Iterator[list]:
    sizes = sorted({row["size"] for row in rows})
    for size in sizes:
        cells = [row for row in rows if row["size"] == size]
        last = size == sizes[-1]
        counts = [row["rows"] for row in cells]
        yield [
            f"{min(counts):,}" if last and min(counts) == max(counts) else f"all, {np.mean(counts):,.0f}" if last
            else f"{size:,}",
            f"{np.mean([row['hidden'] for row in cells]):,.0f}",
            *(
                spread([row[name] for row in cells]) if last else spread(differences(rows, size, name))
                for name in FIGURES
            ),
            f"{100 * np.median([row['prior_error'] for row in cells]):.0f} %",
            f"{np.mean([row['cpu_seconds'] for row in cells]):.1f}",
        ]  # fmt: skip


def page(rows: list[dict], command: str, wanted: int) -> str:
    head = ["unlabelled rows", "hidden", *FIGURES.values(), "prior", "CPU s"]
    parts = [
        "# Unlabelled rows",
        f"`{command}`: at how many unlabelled rows quality levels off. "
        f"Images: embeddings of the default encoder along their first {DIM} principal components; "
        "piles of one class among all images of the others. "
        f"Planted: Gaussian rows of {PLANTED_DIM} numbers, {PLANTED_SHARE:.0%} positive.",
        f"Above {SAMPLE_ROWS:,} unlabelled rows, training takes a sample of that size "
        "([method](../method.md#more-rows-than-training-needs)); the figures should level off far below it.",
        LEGEND,
    ]
    for key in sorted({table_of(row) for row in rows}):
        method, planted, labelled, share = key
        group = [row for row in rows if table_of(row) == key]
        piles, seeds = len({pile_of(row) for row in group}), len({row["seed"] for row in group})
        names = "planted rows" if planted else f"images ({', '.join(sorted({row['name'] for row in group}))})"
        parts += [
            f"## {TITLES[method]}: {labelled:,} labelled, {share:.0%} of the unlabelled positive, {names}",
            f"{piles} {'pile' if piles == 1 else 'piles'}, {seeds} {'seed' if seeds == 1 else 'seeds'}.",
            table(head, list(lines(group))),
        ]
    if len(rows) < wanted:
        parts.append(
            f"Not measured yet: {wanted - len(rows)} of {wanted} cells. Piles are shown once they are complete."
        )
    earlier = sorted({row["commit"] for row in rows if "commit" in row})
    if earlier:
        parts.append(f"Cells of an earlier run are of {', '.join(earlier)}.")
    return "\n\n".join([*parts, environment()]) + "\n"


def cell(method: str, group: str, name: str, share: float, labelled: int, seed: int, size: int) -> dict:
    pile = {"method": method, "group": group, "name": name, "share": share, "labelled": labelled, "seed": seed}
    return pile | {"size": size}


def cells(options: argparse.Namespace) -> list[dict]:
    """Seed by seed, so that what is cut off is whole but for the last seeds."""
    groups = [CIFAR] + [FASHION] * (options.fashion is not None)
    names = [(group, CLASSES[group][number]) for number in range(2) for group in groups]
    wanted = []
    for method, seed in product(options.methods, range(options.seeds)):
        for name, share, labelled in product(names, SHARES, options.labelled):
            wanted += [cell(method, *name, share, labelled, seed, size) for size in options.sizes]
        for labelled in options.planted_labelled if options.planted and method == "linear" else ():
            wanted += [cell(method, PLANTED, PLANTED, PLANTED_SHARE, labelled, seed, size) for size in options.planted]
    return wanted


def main() -> None:
    options = arguments()
    folder = options.folder.resolve()
    work = options.work or folder / "pucache-bench"
    wanted = cells(options)
    measure_cell = partial(measure, (folder, work, options.fashion), max(options.planted, default=0))
    rows = measured(work, "unlabelled-rows", wanted, measure_cell, minutes=options.minutes, also=options.also)
    whole = complete(rows, wanted)
    text = page(whole, "python -m benchmarks.quality.unlabelled_rows DIR --fashion SOURCE", len(wanted))
    write_page(text, options.out)


def arguments() -> argparse.Namespace:
    parser = page_parser(__doc__)
    parser.add_argument("folder", type=Path, help="CIFAR-10")
    parser.add_argument("--fashion", type=Path, metavar="SOURCE", help="Fashion-MNIST (default: without it)")
    parser.add_argument("--work", type=Path, help="where caches and cells are kept (default: DIR/pucache-bench)")
    parser.add_argument("--methods", nargs="+", choices=TITLES, default=tuple(TITLES), help="for images")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--labelled", type=int, nargs="*", default=LABELLED, help="for images")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="of the samples of images")
    parser.add_argument("--planted", type=int, nargs="*", default=PLANTED_SIZES, help="sizes of planted samples")
    parser.add_argument("--planted-labelled", type=int, nargs="+", default=PLANTED_LABELLED)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no cell after so long")
    parser.add_argument("--also", nargs="*", default=(), metavar="COMMIT", help="take cells of these where missing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
