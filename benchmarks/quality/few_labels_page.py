"""The page of tasks with few labels: groups of tasks side by side."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from benchmarks.common.cells import TUNED, table
from benchmarks.common.environment import environment
from benchmarks.common.tasks import CHOICE, CHOSEN_ON, CIFAR, CROSSING, TASKS


@dataclass(frozen=True)
class Column:
    """A column of a table: tasks whose cells are averaged."""

    title: str
    holds: Callable[[dict], bool]

    def of(self, rows: list[dict]) -> list[dict]:
        return [row for row in rows if self.holds(row)]


def columns(rows: list[dict]) -> list[Column]:
    """The groups there are; the four classes of CIFAR-10 that constants are chosen on stand alone."""
    chosen = Column("cifar, four chosen on", lambda row: row["group"] == CIFAR and row["task"] in CHOSEN_ON)
    others = Column("cifar, six others", lambda row: row["group"] == CIFAR and row["task"] not in CHOSEN_ON)
    groups = [Column(group, lambda row, group=group: row["group"] == group) for group in TASKS]
    everything = [*groups[:1], chosen, others, *groups[1:]]
    return [column for column in everything if column.of(rows)]


def settings_of(rows: list[dict]) -> list[tuple[int, float]]:
    """Numbers of labelled rows and shares of positives, in order."""
    return sorted({(row["labelled"], row["share"]) for row in rows})


def at(rows: list[dict], setting: tuple[int, float]) -> list[dict]:
    return [row for row in rows if (row["labelled"], row["share"]) == setting]


def mean(rows: list[dict], name: str, figure: str) -> float:
    return float(np.mean([row[name][figure] for row in rows]))


def median(rows: list[dict], name: str, figure: str) -> float:
    return float(np.median([row[name][figure] for row in rows]))


# --- tables --------------------------------------------------------------------------------------------


def side_by_side(rows: list[dict], names: tuple[str, ...], figure: str) -> str:
    """Means of a figure by group; behind them the gain over the first name."""
    groups, lines = columns(rows), []
    for setting, name in product(settings_of(rows), names):
        cells = [with_gain(at(column.of(rows), setting), name, names[0], figure) for column in groups]
        lines.append([f"{setting[0]}, {setting[1]:.0%}", name, *cells])
    return table(["labelled, share", "", *(column.title for column in groups)], lines)


def with_gain(rows: list[dict], name: str, plain: str, figure: str) -> str:
    value = mean(rows, name, figure)
    return f"{value:.3f}" if name == plain else f"{value:.3f} ({value - mean(rows, plain, figure):+.3f})"


def weights(rows: list[dict]) -> str:
    """Share of cells whose neighbours count."""
    lines = []
    for setting in settings_of(rows):
        cells = [at(column.of(rows), setting) for column in columns(rows)]
        counted = [np.mean([row["default ranking"]["weight"] > 0 for row in part]) for part in cells]
        lines.append([f"{setting[0]}, {setting[1]:.0%}", *(f"{share:.0%}" for share in counted)])
    return table(["labelled, share", *(column.title for column in columns(rows))], lines)


def by_column(rows: list[dict]) -> Iterator[tuple[list, list[dict]]]:
    """Cells of each group and setting, with the first columns of their line."""
    for column, setting in product(columns(rows), settings_of(rows)):
        yield [column.title, f"{setting[0]}, {setting[1]:.0%}"], at(column.of(rows), setting)


def operating_points(rows: list[dict], arms: tuple[str, ...]) -> str:
    """Threshold and calibration of the classifiers on new rows, and of the posterior on the pile."""
    lines = []
    for (first, cells), name in product(by_column(rows), arms):
        ratio = [row[name]["f1"] / row["supervised"]["best_f1"] for row in cells]
        lines.append(
            [
                *first,
                name,
                f"{mean(cells, name, 'f1'):.3f}",
                f"{mean(cells, name, 'best_f1'):.3f}",
                f"{np.mean(ratio):.3f}",
                f"{median(cells, name, 'expected_over_true'):.2f}",
                f"{mean(cells, name, 'ece_test'):.4f}",
                f"{mean(cells, name, 'ece'):.4f}",
            ]
        )
    figures = ["F1", "best F1", "F1 / supervised", "expected / true", "ECE new", "ECE pile"]
    return table(["tasks", "labelled, share", "", *figures], lines)


def priors(rows: list[dict], arms: tuple[str, ...]) -> str:
    """Errors and intervals of the estimated prior."""
    lines = []
    for (first, cells), name in product(by_column(rows), arms):
        stated = [row[name] for row in cells if "covered" in row[name]]
        interval = ["", ""]
        if stated:
            covered, width = np.mean([one["covered"] for one in stated]), np.median([one["width"] for one in stated])
            interval = [f"{covered:.0%}", f"{width:.0%}"]
        lines.append([*first, name, f"{median(cells, name, 'prior_error'):.1%}", *interval])
    return table(["tasks", "labelled, share", "", "error", "coverage", "width"], lines)


def baselines(rows: list[dict], names: tuple[str, ...]) -> str:
    """Plain tools and the ceiling."""
    lines = []
    for first, cells in by_column(rows):
        lines.append(
            [
                *first,
                *(f"{mean(cells, name, 'ap'):.3f}" for name in names),
                f"{np.mean([max(row['logistic']['ap']) for row in cells]):.3f}",
                f"{mean(cells, 'centroid', 'ap'):.3f}",
                f"{mean(cells, 'supervised', 'ap'):.3f}",
                f"{np.mean([max(row['logistic']['f1_at_0']) for row in cells]):.3f}",
                f"{mean(cells, 'centroid', 'f1_at_0'):.3f}",
                f"{mean(cells, 'supervised', 'best_f1'):.3f}",
            ]
        )
    ap = [*(f"AP {name}" for name in names), "AP LR", "AP centroid", "AP supervised"]
    return table(["tasks", "labelled, share", *ap, "F1 LR", "F1 centroid", "best F1 supervised"], lines)


# --- the page ------------------------------------------------------------------------------------------


def page(rows: list[dict], data: str, arms: tuple[str, ...]) -> str:
    """The whole page in markdown; the first arm is the plain classifier."""
    names = (*arms, "default ranking")
    counts = ", ".join(f"{column.title} {len(column.of(rows))}" for column in columns(rows))
    tasks = ", ".join(dict.fromkeys(row["task"] for row in rows))
    return f"""# Few labels

`python -m benchmarks.quality.few_labels DIR --fashion SOURCE`: {data}

{CHOICE} {TUNED}

Each cell is one task with one seed: a class, attribute, topic or kind against the rest, with so many labelled positives
and so large a share of positives among the unlabelled. *classifier* is the linear head (`--method linear`), *default*
is `train-pu` as it comes, and *default ranking* is `retrieve-positives` with that model.

Tasks: {tasks}. Figures are means over the cells of a group ({counts}), seeds
{sorted({row["seed"] for row in rows})}. In brackets the gain over {arms[0]}. The tasks of {" and ".join(CROSSING)} cut
across classes and topics, where neighbours mislead.

## Ranking of the unlabelled

Average precision among the unlabelled.

{side_by_side(rows, names, "ap")}

## Ranking of new rows

Average precision on the test set; the default ranking is that of `score --neighbours` with the unlabelled at hand.

{side_by_side(rows, names, "ap_test")}

## Weight of the neighbours

Share of the cells in which neighbours count, by the rule of `pucache.training.neighbour_evidence`.

{weights(rows)}

## Operating point and calibration

F1 on the test set at the model's own threshold, set for the true share of positives there, and at the best threshold.
F1 / supervised: over the best F1 of the supervised head. Expected / true: the number of positives that the
posterior expects among the test rows called positive, over the true number, median. ECE: expected calibration error of
the posterior in ten bins, on the test set (new) at its true share of positives, and on the unlabelled (pile) at the
estimated prior.

{operating_points(rows, arms)}

## Prior

Median relative error of the estimate, and coverage and median width (relative to the truth) of its 90 % interval.

{priors(rows, arms)}

## Baselines and ceiling

LR: balanced logistic regression of P against U on standardised embeddings, at the C that is best for
each cell, chosen with the true labels; F1 at margin 0. Supervised: a head trained on the true labels at its best
penalty; AP of rows it has not seen, F1 at its best threshold.

{baselines(rows, names)}

{environment()}
"""
