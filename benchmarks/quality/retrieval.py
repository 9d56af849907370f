"""How well each way of ranking finds hidden positives.

    python -m benchmarks.quality.retrieval DIR [--fashion SOURCE] [--quick] [--out docs/results/retrieval.md]

DIR holds train/<class>/*.png of CIFAR-10. The 1:10 tasks of the paper and of footwear, two seeds of the classifier, and
one class against the others with 20 labelled, a seed each. `benchmarks.speed.speed` has the seconds.
"""

import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
from sklearn.metrics import average_precision_score

from benchmarks.common.cells import measured, spread, table
from benchmarks.common.command_line import images_parser, write_page
from benchmarks.common.environment import environment
from benchmarks.common.image_classes import Task
from benchmarks.common.row_cache import write_row_cache
from benchmarks.common.tasks import (
    CHOICE,
    CIFAR,
    FASHION,
    Location,
    Setting,
    TaskGroups,
    opened,
    prepared,
    settings,
)
from benchmarks.quality import few_labels_page
from pucache import EmbeddingCache, train_pu
from pucache.estimates.metrics import precision_at
from pucache.retrieval.model_scorers import Margins
from pucache.retrieval.ranking import Scorer
from pucache.retrieval.retrieve import choose_scorer, rank_unlabelled
from pucache.retrieval.similarity import SIMILARITIES, Similarity

SEEDS, RANKS = (0, 1), (100, 1000, 2400)
SHARES, LABELLED = (0.01, 0.05), 20
TASK_NAMES, QUICK_TASKS = ("cat", "truck", "coat", "bag"), ("truck",)
PAPER, FOOTWEAR = "paper", "footwear"


def scorers(rows: EmbeddingCache, s: np.ndarray, seed: int) -> dict[str, Scorer]:
    """Each way of ranking; those with a model start from the plain classifier and from the default one."""
    plain, default = (train_pu(rows, s, twins=None, seed=seed, **method) for method in ({"method": "linear"}, {}))
    ways: dict[str, Scorer] = {f"similarity: {kind}": Similarity(kind) for kind in SIMILARITIES}
    return ways | {"classifier": Margins(plain), "**default ranking**": choose_scorer(default)}


def figures(cache: EmbeddingCache, s: np.ndarray, y: np.ndarray, by: Scorer) -> dict[str, float]:
    ranking = rank_unlabelled(cache, s, k=None, scorer=by, twins=None)  # all of them, copies too
    hidden = y[ranking.rows]
    precision = {f"P@{rank}": precision_at(hidden, ranking.scores, min(rank, len(hidden))) for rank in RANKS}
    return precision | {"AP": average_precision_score(hidden, ranking.scores)}


def task_of(data: TaskGroups, setting: Setting) -> Task:
    """The paper's task, that of footwear, or one class against all others."""
    if setting.group == PAPER:
        return data.data(CIFAR).authors()
    return data.data(FASHION).footwear() if setting.group == FOOTWEAR else data.task(setting)


def measure(at: Location, **cell) -> dict:
    """The figures of a cell, by way of ranking."""
    setting = Setting(**cell)
    of = task_of(opened(at), setting)
    with tempfile.TemporaryDirectory(dir=at.work) as folder:
        rows = write_row_cache(Path(folder) / "rows.h5", of.X)
        return {name: figures(rows, of.s, of.y, by) for name, by in scorers(rows, of.s, setting.seed).items()}


def wanted(groups: list[str], quick: bool) -> list[Setting]:
    """The two 1:10 tasks, and classes against the others."""
    ten = [(PAPER, "vehicles", 0.0741), *([(FOOTWEAR, "footwear", 0.0789)] if FASHION in groups else [])]
    cells = [Setting(*task, 600, seed) for seed in (SEEDS[:1] if quick else SEEDS) for task in ten]
    return cells + list(
        settings(groups, shares=SHARES, seeds={LABELLED: 1}, names=QUICK_TASKS if quick else TASK_NAMES)
    )


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
            "positives and share of positives among the unlabelled.",
            "",
            *(group_table(column.title, column.of(others), ways) for column in few_labels_page.columns(others)),
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
    each = {setting: few_labels_page.at(rows, setting) for setting in few_labels_page.settings_of(rows)}
    cells = [[way, *(f"{few_labels_page.mean(part, way, 'AP'):.3f}" for part in each.values())] for way in ways]
    head = [f"{labelled}, {share:.0%}" for labelled, share in each]
    return f"### {title}\n\nTasks: {len({row['task'] for row in rows})}.\n\n{table(['', *head], cells)}\n"


def main() -> None:
    options = images_parser(__doc__).parse_args()
    at = Location.of(options)
    groups = [name for name in (CIFAR, FASHION) if name in opened(at).names]
    data, cells = prepared(at, groups), [asdict(setting) for setting in wanted(groups, options.quick)]
    limits = {"minutes": options.minutes, "jobs": options.jobs}
    rows = measured(at.work, f"{data.prefix}retrieval", cells, partial(measure, at), **limits)
    write_page(report(rows, data.describe()), options.out)


if __name__ == "__main__":
    main()
