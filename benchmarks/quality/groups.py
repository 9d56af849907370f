"""Intervals of prior, recall and precision where rows come in groups, with and without `groups=`.

    python -m benchmarks.quality.groups CIFAR.h5 [--piles 200] [--minutes 60] [--out docs/results/groups.md]

CIFAR.h5 is a cache of CIFAR-10 by `pucache embed`, its keys CLASS/NAME. A pile has one class as positives. Each row is
a group of ten: copies that differ by augmentation, for which half the difference of two random rows is added to each.
Whole groups are labelled. Embeddings are reduced to 256 dimensions. The section of `benchmarks.quality.unnamed_groups`
on the same page stays.
"""

import argparse
from functools import cache, partial
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.common.cells import measured, table
from benchmarks.common.command_line import write_page
from benchmarks.common.environment import environment
from benchmarks.common.piles import Directions, pile_rows
from benchmarks.quality.prior import share_of
from pucache import EmbeddingCache, PULinearClassifier

LABELLED, UNLABELLED, COPIES = (15, 40), 300, 10  # groups that are labelled, and that are not; rows of a group
SHARES = (0.03, 0.3)  # of positives among the unlabelled groups, even on the scale of logarithms
AUGMENTED = 0.5  # times the difference of two random rows
FIGURES = ("prior", "recall", "precision")
UNNAMED = "## Groups that nobody named"  # section of `benchmarks.quality.unnamed_groups`


@cache
def photographs(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings along 256 directions, float32 (n, 256), and the class of each."""
    opened = EmbeddingCache(path)
    X = Directions(opened.matrix).reduce(opened.matrix[:]).astype(np.float32)
    return X, np.array([key.split("/")[0] for key in opened.keys])


def measure(path: Path, labelled: int, number: int) -> dict:
    """Intervals of one pile beside the truth: with its groups, and taken for independent rows."""
    draw = np.random.default_rng([labelled, number])
    X, classes = photographs(path)
    hidden = round(UNLABELLED * np.exp(draw.uniform(*np.log(SHARES))))
    y = classes == np.unique(classes)[number % 10]
    rows = np.repeat(pile_rows(y, labelled=labelled, hidden=hidden, unlabelled=UNLABELLED, draw=draw), COPIES)
    others = draw.integers(len(X), size=(2, len(rows)))
    augmented = (X[rows] + AUGMENTED * (X[others[0]] - X[others[1]])).astype(np.float16)
    s, groups = (np.arange(len(rows)) < labelled * COPIES).astype(np.int8), np.arange(len(rows)) // COPIES
    arms = {"with": groups, "without": None}
    models = {name: PULinearClassifier(random_state=number).fit(augmented, s, groups=arms[name]) for name in arms}
    return {name: stated(model, augmented[s == 0], y[rows][s == 0]) for name, model in models.items()}


def stated(model: PULinearClassifier, unlabelled: np.ndarray, hidden: np.ndarray) -> dict:
    """Whether each interval of a model holds the truth, and its width; nothing where none is stated."""
    called = model.margins(unlabelled) > model.threshold_
    hits = np.count_nonzero(called & hidden)
    truth = {
        "prior": hidden.mean(),
        "recall": hits / np.count_nonzero(hidden),
        "precision": hits / max(np.count_nonzero(called), 1),
    }
    estimate = model.prior_estimate_
    ends = {name: model.figures_[name].interval for name in FIGURES if name != "prior"}
    ends["prior"] = (estimate.low, estimate.high) if estimate is not None and estimate.has_interval else None
    return {
        name: {"covered": low <= truth[name] <= high, "width": high - low}
        for name, (low, high) in ((name, one) for name, one in ends.items() if one is not None)
    }


def row_of(cells: list[dict], labelled: int, arm: str) -> list:
    row = [labelled, arm, len(cells)]
    for name in FIGURES:
        found = [cell[arm][name] for cell in cells if name in cell[arm]]
        row += [share_of([one["covered"] for one in found]), f"{np.median([one['width'] for one in found]):.2f}"]
    return row


def page(rows: list[dict]) -> str:
    cells = {labelled: [row for row in rows if row["labelled"] == labelled] for labelled in LABELLED}
    arms = product((labelled for labelled in LABELLED if cells[labelled]), ("with", "without"))
    figures = [f"{name}{what}" for name in FIGURES for what in ("", ", width")]
    table_rows = [row_of(cells[labelled], labelled, arm) for labelled, arm in arms]
    sections = [
        "# Groups of rows that are not independent",
        f"`python -m benchmarks.quality.groups CIFAR.h5`: how often 90 % intervals hold the truth on {len(rows)} piles "
        f"of {UNLABELLED} groups of {COPIES} augmented copies, 3 to 30 % of them positive; the labels are those of "
        "whole groups. Both arms have the same rows. Without `groups=` each row counts as independent, and copies of a "
        "row that is held out are trained on. Coverage with its standard error, and the median width.",
        table(["groups labelled", "`groups=`", "piles", *figures], table_rows),
        environment(),
    ]
    return "\n\n".join(sections) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--piles", type=int, default=200, help="of a number of labelled groups (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=60, help="after which no pile is begun")
    parser.add_argument("--work", type=Path, default=Path("build/benchmarks"), help="where piles measured are kept")
    parser.add_argument("--out", type=Path, default=Path("docs/results/groups.md"))
    options = parser.parse_args()
    wanted = [{"labelled": labelled, "number": number} for number, labelled in product(range(options.piles), LABELLED)]
    measure_pile = partial(measure, options.cache)
    rows = measured(options.work, "groups", wanted, measure_pile, minutes=options.minutes)
    _, mark, unnamed = options.out.read_text().partition(UNNAMED) if options.out.exists() else ("", "", "")
    write_page(page(rows) + "\n" * bool(mark) + mark + unnamed, options.out)


if __name__ == "__main__":
    main()
