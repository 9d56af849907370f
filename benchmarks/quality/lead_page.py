"""Result page of `leads.py`: settings chosen on four classes, verified on six, and the rule for keeping a lead."""

from collections.abc import Iterable

import numpy as np

from benchmarks.common.cells import table
from benchmarks.common.environment import environment

FIGURES = {
    "AP": "AP of the pile",
    "AP fused": "AP of the pile, fused",
    "AP new": "AP, new images",
    "F1 new": "best F1, new images",
}
CELL = ("class", "share", "labelled")
CHOSEN_BY = ("AP fused", "AP new")


def gains(rows: list[dict], method: str, figure: str) -> dict[str, np.ndarray]:
    """Differences to the linear head in the same cell, by class."""
    by_class: dict[str, list[float]] = {}
    for row in rows:
        if method in row:
            by_class.setdefault(row["class"], []).append(row[method][figure] - row["linear"][figure])
    return {name: np.array(values) for name, values in by_class.items()}


def mean_gain(rows: list[dict], method: str, figure: str) -> float:
    return float(np.concatenate(list(gains(rows, method, figure).values())).mean())


def methods(rows: list[dict]) -> list[str]:
    return [name for name in rows[0] if ": " in name]


def best_setting(rows: list[dict], lead: str) -> str:
    """The setting of the greatest mean gain, over the figures of `CHOSEN_BY`."""
    names = [name for name in methods(rows) if name.startswith(f"{lead}: ")]
    best = max(names, key=lambda name: sum(mean_gain(rows, name, figure) for figure in CHOSEN_BY))
    return best.partition(": ")[2]


def shown(by_class: dict[str, np.ndarray]) -> str:
    every = np.concatenate(list(by_class.values()))
    return f"{every.mean():+.3f} ± {every.std(ddof=1):.3f}, {(every > 0).sum()}/{len(every)}"


def effect(by_class: dict[str, np.ndarray]) -> int:
    """1 or -1 where the mean over classes is more than two of its standard errors above or below zero, else 0."""
    means = np.array([values.mean() for values in by_class.values()])
    error = means.std(ddof=1) / np.sqrt(len(means))
    return int(np.sign(means.mean())) * int(abs(means.mean()) > 2 * error)


def verdict(rows: list[dict], method: str) -> str:
    effects = {figure: effect(gains(rows, method, figure)) for figure in FIGURES}
    better, worse = ([FIGURES[name] for name, sign in effects.items() if sign == way] for way in (1, -1))
    wins = any(effects[figure] > 0 for figure in CHOSEN_BY) and not worse
    reasons = [f"{word} in {', '.join(names)}" for word, names in (("better", better), ("worse", worse)) if names]
    return ("**wins**: " if wins else "no: ") + ("; ".join(reasons) or "no difference beyond two standard errors")


def comparison(rows: list[dict], names: Iterable[str]) -> str:
    lines = [[name, *(shown(gains(rows, name, figure)) for figure in FIGURES), verdict(rows, name)] for name in names]
    return table(["lead: setting", *FIGURES.values(), "verdict"], lines)


def baseline(rows: list[dict]) -> str:
    settings = sorted({(row["labelled"], row["share"]) for row in rows})
    lines = [
        [
            f"{labelled}, {share:.0%}",
            *(f"{np.mean([row['linear'][figure] for row in cells]):.3f}" for figure in FIGURES),
        ]
        for labelled, share in settings
        if (cells := [row for row in rows if (row["labelled"], row["share"]) == (labelled, share)])
    ]
    return table(["labelled, share", *FIGURES.values()], lines)


def page(choice: list[dict], verification: list[dict], images: int, whole: bool) -> str:
    best = methods(verification)
    kept = [name for name in best if verdict(verification, name).startswith("**")]
    return PAGE.format(
        kept=f"Kept: {'; '.join(kept)}." if kept else "By that rule none is kept.",
        verification=comparison(verification, best),
        choice=comparison(choice, methods(choice)),
        baseline=baseline(choice + verification),
        classes=", ".join(dict.fromkeys(row["class"] for row in choice)),
        others=", ".join(dict.fromkeys(row["class"] for row in verification)),
        environment=environment(),
        images=f"{images:,}",
        dimensions="" if whole else ", embeddings projected on their 256 leading directions",
    )


PAGE = """# Further ideas for few labels

`python -m benchmarks.quality.leads DIR`: ideas from the literature that would be cheap to add, each on the one-vs-rest
tasks of the [suite](suite.md) (20 or 100 labelled, 1 % or 5 % of the unlabelled positive, seed 0).
{images} training images{dimensions}.

- **Share of positives in the cluster**: k-means of the whitened rows; the log odds of the mean posterior of a row's
  cluster, the row itself left out, are added to the head's log ratio. **Labels of the cluster**: the same with the
  labelled rows alone. **Clusters as features**: soft memberships stand beside X.
- **Bagging over U** (Mordelet and Vert 2014): the mean of 12 heads of all P against random rows of U; a row of U is
  scored by the heads that were not trained on it.
- **Weights of U**: by the head's held-out margin. Likely positives count less, or not at all, or the highest of the
  others count more.
- **Diffused features**: X mixed with the weighted mean of its nearest rows, for training and for scoring; or for
  training only.
- **Two encoders**: EfficientNet-Lite2 at 260 pixels beside the default. Embedding takes about twice as long
  again, so this is no competitor of the others.

Every head is trained at the penalty that pucache chose for its own (with two encoders, for X of both).
*AP of the pile* and the figures on new images are compared with the linear head. *AP of the pile, fused* is compared
with today's default ranking: the lead's order takes the place of the head's, and is then fused with the neighbours.
Differences are mean ± standard deviation over the cells, then cells won. A lead is kept if it is better in the fused
ranking or in AP on new images by more than two standard errors over the means of the classes, and worse in no figure by
as much. {kept}

## On classes that nothing was chosen on

{others}; each lead at the setting with the best mean of those two figures on the other four classes.

{verification}

## All settings, on the classes they were chosen on

{classes}.

{choice}

## Today's head and ranking

Means over all ten classes.

{baseline}

{environment}
"""
