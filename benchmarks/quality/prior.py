"""Intervals of prior, recall, precision and F1: coverage and width over piles with few labels.

    python -m benchmarks.quality.prior DIR [--fashion SOURCE] [--quick] [--out docs/results/prior.md]

A pile has one class, attribute, topic or kind as positives, among 1,000, 1,500 or 3,000 unlabelled rows; the share of
positives is drawn between 1 and 25 %, even on the scale of logarithms. Rows are drawn from a quarter of all.
"""

from collections.abc import Iterator
from functools import cache, partial
from itertools import pairwise, product

import numpy as np

from benchmarks.common.cells import measured, table
from benchmarks.common.command_line import add_jobs, images_parser, write_page
from benchmarks.common.environment import environment
from benchmarks.common.piles import Directions, pile_rows, task_rows
from benchmarks.common.tasks import (
    ATTRIBUTES,
    CIFAR,
    CROSSING,
    FASHION,
    KINDS,
    TASKS,
    TOPICS,
    Location,
    opened,
    prepared,
)
from pucache import PULinearClassifier
from pucache.estimates.priors import ERROR_BELOW, profile_interval

LABELLED, PILES, QUICK_PILES = (10, 20, 40, 100, 300), 100, 2
# half of the piles are of CIFAR-10, a fifth of Fashion-MNIST, a tenth of each of the others
GROUPS = (CIFAR, FASHION, CIFAR, ATTRIBUTES, CIFAR, TOPICS, CIFAR, FASHION, CIFAR, KINDS)
ROWS, SHARES = (1000, 1500, 3000), (0.01, 0.25)
FIGURES, BOUNDS = ("recall", "precision", "f1"), (0, 0.02, 0.06, 1)  # of the shares in the table by share
COLUMNS = ["piles", "coverage", "width"]
FIGURE_COLUMNS = ["", "piles", *(f"{name}{what}" for name in FIGURES for what in ("", ", width", ", lean"))]
LEGEND = f"""\
The degrees of freedom of the limit and the error of the model below the estimate ({ERROR_BELOW}) were chosen with other
piles of these tasks in sight.

Width is relative to the true share: median (90th percentile)."""


def task_of(number: int, names: tuple[str, ...]) -> tuple[str, str]:
    """Group and task of a pile."""
    group = GROUPS[number % len(GROUPS)]
    group = group if group in names else CIFAR
    earlier = GROUPS[: number % len(GROUPS)].count(group) + GROUPS.count(group) * (number // len(GROUPS))
    return group, TASKS[group][earlier % len(TASKS[group])]


@cache
def reduced_rows(at: Location, group: str, task: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a task, those of images along 256 directions, and which are positive."""
    X, y = task_rows(opened(at), group, task)
    return (X if group in (TOPICS, KINDS) else Directions(X).reduce(X)), y


def measure(at: Location, labelled: int, number: int) -> dict:
    """Intervals of one pile beside the truth."""
    draw = np.random.default_rng([labelled, number])
    unlabelled = int(ROWS[draw.integers(len(ROWS))])
    share = np.exp(draw.uniform(*np.log(SHARES)))
    group, task = task_of(number, opened(at).names)
    X, y = reduced_rows(at, group, task)
    hidden = min(max(1, round(share * unlabelled)), int(y.sum()) - labelled)
    rows = pile_rows(y, labelled=labelled, hidden=hidden, unlabelled=unlabelled, draw=draw)
    s, truth = (np.arange(len(rows)) < labelled).astype(np.int8), hidden / (len(rows) - labelled)
    model = PULinearClassifier(random_state=number).fit(X[rows], s)
    interval = profile_interval(model.held_out_margins_, s)
    return {
        "group": group,
        "share": truth,
        "prior": {"covered": interval.low <= truth <= interval.high, "width": (interval.high - interval.low) / truth},
        "figures": figures(model, X[rows][s == 0], y[rows][s == 0]),
    }


def figures(model: PULinearClassifier, unlabelled: np.ndarray, hidden: np.ndarray) -> dict:
    """What a model states of its decisions on the unlabelled rows, beside the truth."""
    called = model.margins(unlabelled) > model.threshold_
    hits = np.count_nonzero(called & hidden)
    true = {
        "recall": hits / np.count_nonzero(hidden),
        "precision": hits / max(np.count_nonzero(called), 1),
        "f1": 2 * hits / (np.count_nonzero(called) + np.count_nonzero(hidden)),
    }
    found = {}
    for name, truth in true.items():
        point, interval = model.figures_[name].value, model.figures_[name].interval
        found[name] = {
            "lean": None if point is None else point - truth,
            "covered": None if interval is None else interval[0] <= truth <= interval[1],
            "width": None if interval is None else interval[1] - interval[0],
        }
    return found


# --- the page ------------------------------------------------------------------------------------------


def share_of(values) -> str:
    """A share of piles with its standard error."""
    values = np.asarray(values, float)
    if not len(values):
        return ""
    return f"{values.mean():.1%} ± {100 * np.sqrt(values.mean() * (1 - values.mean()) / len(values)):.1f}"


def prior_row(cells: list[dict], first) -> list:
    """Coverage of the prior's intervals, and the median and 90th percentile of their width."""
    covered, widths = ([cell["prior"][name] for cell in cells] for name in ("covered", "width"))
    return [first, len(cells), share_of(covered), f"{np.median(widths):.2f} ({np.quantile(widths, 0.9):.1f})"]


def figure_row(cells: list[dict], first) -> list:
    """Coverage and median width of the intervals of each figure, and the mean of the printed number less the truth."""
    row = [first, len(cells)]
    for name in FIGURES:
        found = [cell["figures"][name] for cell in cells]
        with_interval = [one for one in found if one["covered"] is not None]
        leans = [one["lean"] for one in found if one["lean"] is not None]
        row += [
            share_of([one["covered"] for one in with_interval]),
            f"{np.median([one['width'] for one in with_interval]):.2f}" if with_interval else "",
            f"{np.mean(leans):+.3f}" if leans else "",
        ]
    return row


def by_share(rows: list[dict]) -> Iterator[tuple[str, list[dict]]]:
    for low, high in pairwise(BOUNDS):
        cells = [row for row in rows if low <= row["share"] < high]
        if cells:
            yield f"from {low:.0%}" if high == 1 else f"below {high:.0%}", cells


def grouped(rows: list[dict], name: str) -> Iterator[tuple[object, list[dict]]]:
    for value in (*LABELLED, *dict.fromkeys(GROUPS)):
        if cells := [row for row in rows if row[name] == value]:
            yield value, cells


def page(rows: list[dict]) -> str:
    clusters, crossing = ([row for row in rows if (row["group"] in CROSSING) == crosses] for crosses in (False, True))
    sections = [
        "# Intervals of prior, recall, precision and F1",
        f"`python -m benchmarks.quality.prior DIR --fashion SOURCE`: 90 % intervals on {len(rows)} piles of 1,000, "
        "1,500 and 3,000 unlabelled rows, 1 to 25 % of them positive. Positives are one class, attribute, topic or "
        "kind of those of [few labels](few-labels.md); half of the piles are of CIFAR-10, a fifth of Fashion-MNIST. "
        "Embeddings of images are reduced to 256 dimensions.",
        LEGEND,
        "## `train-pu`: classes and topics",
        table(["labels", *COLUMNS], [prior_row(of, name) for name, of in grouped(clusters, "labelled")]),
        "## Attributes and kinds",
        "These cut across classes and topics. Where negatives look like positives the prior is not identifiable, and "
        "the estimate is too high.",
        table(["labels", *COLUMNS], [prior_row(of, name) for name, of in grouped(crossing, "labelled")]),
        "## By group of tasks",
        "All numbers of labels together.",
        table(["group", *COLUMNS], [prior_row(of, name) for name, of in grouped(rows, "group")]),
        "## By share of positives",
        "All numbers of labels and all groups together.",
        table(["share", *COLUMNS], [prior_row(of, name) for name, of in by_share(rows)]),
        "## Recall, precision and F1",
        "What `train-pu` states of its decisions on the unlabelled rows, all groups together: coverage and median "
        "width of its 90 % intervals, and *lean*, the mean of the printed number less the truth.",
        table(FIGURE_COLUMNS, [figure_row(of, name) for name, of in grouped(rows, "labelled")]),
        table(FIGURE_COLUMNS, [figure_row(of, name) for name, of in grouped(rows, "group")]),
        table(FIGURE_COLUMNS, [figure_row(of, name) for name, of in by_share(rows)]),
        environment(),
    ]
    return "\n\n".join(sections) + "\n"


if __name__ == "__main__":
    options = add_jobs(images_parser(__doc__)).parse_args()
    at = Location.of(options, quick=True)
    prepared(at, opened(at).names)
    numbers = range(QUICK_PILES if options.quick else PILES)
    wanted = [{"labelled": labelled, "number": number} for number, labelled in product(numbers, LABELLED)]
    rows = measured(at.work, "prior", wanted, partial(measure, at), jobs=options.jobs)
    write_page(page(rows), options.out)
