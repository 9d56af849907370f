"""What the choice of the penalty costs: AP of the chosen penalty beside the best of the grid by the truth.

    python -m benchmarks.quality.penalty DIR --fashion SOURCE [--quick] [--out docs/results/penalty.md]

A pile has one class, attribute, topic or kind as positives; every penalty is cross-fitted, and one head of all rows is
trained with it. The rule was chosen on CIFAR-10 and the attributes; Fashion-MNIST and the texts confirm it.
"""

from functools import partial
from itertools import product

import numpy as np
import torch
from sklearn.metrics import average_precision_score

from benchmarks.common.cells import measured, table
from benchmarks.common.command_line import images_parser, write_page
from benchmarks.common.environment import environment
from benchmarks.common.piles import pile_rows, task_rows
from benchmarks.common.tasks import ATTRIBUTES, CIFAR, FASHION, KINDS, TASKS, TOPICS, Location, opened, prepared
from pucache.estimates.review_weights import TrainingLabels
from pucache.heads.design_matrix import DesignMatrix
from pucache.heads.solve import fit_heads
from pucache.training.cross_fitting import PENALTIES, CrossFitter, deal_folds

LABELLED, SHARES = (10, 20, 40, 100, 300), (0.01, 0.05, 0.2, 0.5)
TASKS_PER_CELL = {CIFAR: 3, FASHION: 3, ATTRIBUTES: 2, TOPICS: 2, KINDS: 2}
PARTS = {"chosen on": (CIFAR, ATTRIBUTES), "confirmed on": (FASHION, TOPICS, KINDS)}
ROWS, LEAST_HIDDEN, LEAST_ROWS, FEW, FOLDS = 9000, 10, 300, 40, 5
RULES = ("pucache", "1e-3 always")


def draw_pile(y: np.ndarray, labelled: int, share: float, seed: int) -> np.ndarray | None:
    """Row numbers of a pile, the labelled first; None where there are too few positives."""
    positives = int(y.sum())
    room = max(positives - labelled, 0)
    unlabelled = int(min(ROWS, (len(y) - positives) / (1 - share), room / share))
    hidden = round(share * unlabelled)
    if hidden < LEAST_HIDDEN or unlabelled < LEAST_ROWS:
        return None
    draw = np.random.default_rng([labelled, round(1000 * share), seed, positives])
    return pile_rows(y, labelled=labelled, hidden=hidden, unlabelled=unlabelled, draw=draw)


def measure(at: Location, group: str, task: str, labelled: int, share: float, seed: int) -> dict:
    """Regret of each rule, in AP among the unlabelled rows."""
    X, y = task_rows(opened(at), group, task)
    rows = draw_pile(y, labelled, share, seed)
    if rows is None:
        return {"regret": None}
    s = (np.arange(len(rows)) < labelled).astype(np.int8)
    design = DesignMatrix(np.ascontiguousarray(X[rows]), s, None, torch.device("cpu"))
    fitter = CrossFitter(design, TrainingLabels.of(s), deal_folds(s, FOLDS, seed, None))
    margins = design.margins(fit_heads(design, penalty=np.array(PENALTIES), tolerance=2e-3))
    ap = np.array([average_precision_score(y[rows][s == 0], column[s == 0]) for column in margins.T])
    chosen = [PENALTIES.index(penalty) for penalty in (fitter.choose().penalty, 1e-3)]
    return {"regret": dict(zip(RULES, (ap.max() - ap[chosen]).tolist(), strict=True)), "best": ap.max()}


def mean(values: np.ndarray) -> str:
    return f"{values.mean():.4f} ± {values.std(ddof=1) / np.sqrt(len(values)):.4f}" if len(values) > 1 else ""


def section(rows: list[dict], by: str, values: tuple) -> str:
    lines = []
    for value in values:
        cells = [row for row in rows if row[by] == value]
        columns = [np.array([row["regret"][rule] for row in cells]) for rule in RULES]
        if cells:
            worst = [f"{np.quantile(columns[0], 0.95):.3f}", f"{columns[0].max():.3f}"]
            lines.append([value, len(cells), *map(mean, columns), *worst])
    return table([by, "piles", *RULES, "worst twentieth", "worst"], lines)


def page(rows: list[dict]) -> str:
    rows = [row for row in rows if row["regret"]]
    sections = [
        "# Choice of the penalty",
        f"`python -m benchmarks.quality.penalty DIR --fashion SOURCE`: {len(rows)} piles of at most {ROWS:,} "
        "unlabelled rows, embeddings of the default encoder (a quarter of the images) or texts. *Regret* is the AP "
        "among the unlabelled rows that is lost against the best of the nine penalties by the truth: mean ± standard "
        "error. The last two columns are of pucache's rule, which sees no true label.",
    ]
    for part, groups in PARTS.items():
        cells = [row for row in rows if row["group"] in groups]
        few = [row for row in cells if row["labelled"] <= FEW]
        columns = [np.array([row["regret"][rule] for row in few]) for rule in RULES]
        summary = ", ".join(f"{rule} {mean(column)}" for rule, column in zip(RULES, columns, strict=True))
        sections += [
            f"## {', '.join(groups)} ({part})",
            f"{FEW} labels and fewer, {len(few)} piles: {summary}; of pucache's rule the worst twentieth has "
            f"{np.quantile(columns[0], 0.95):.3f}.",
            section(cells, "labelled", LABELLED),
            f"By share, {FEW} labels and fewer:",
            section(few, "share", SHARES),
            f"By group, {FEW} labels and fewer:",
            section(few, "group", groups),
        ]
    return "\n\n".join([*sections, environment()]) + "\n"


def cells(groups: tuple[str, ...], quick: bool) -> list[dict]:
    """Some tasks of each group for each number of labels and share."""
    draw, wanted = np.random.default_rng(7), []
    for group, count in TASKS_PER_CELL.items():
        for labelled, share in product(LABELLED[1:2] if quick else LABELLED, SHARES):
            tasks = draw.permutation(TASKS[group])[: 1 if quick else count].tolist()
            cell = {"group": group, "labelled": labelled, "share": share, "seed": 0}
            wanted += [cell | {"task": task} for task in tasks if group in groups]
    return wanted


def main() -> None:
    options = images_parser(__doc__).parse_args()
    at = Location.of(options, quick=True)
    groups = prepared(at, opened(at).names).names
    wanted, limits = cells(groups, options.quick), {"minutes": options.minutes, "jobs": options.jobs}
    rows = measured(at.work, "penalty", wanted, partial(measure, at), **limits)
    write_page(page(rows), options.out)


if __name__ == "__main__":
    main()
