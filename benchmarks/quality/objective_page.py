"""Result page of `objectives.py`: paired differences to the default, and the rule for choosing a winner."""

import numpy as np

from benchmarks.common.cells import TUNED, table
from benchmarks.quality.objective_methods import METHODS

FEWEST = 10  # tasks for a winner
PAPER = "vehicles"  # the class of the authors' task
FIGURES = {"ap": "AP", "best_f1": "best F1", "f1": "F1 at its threshold"}


def differences(rows: list[dict], method: str, figure: str, against: str | None = None) -> np.ndarray:
    return np.array([row[method][figure] - row["pucache"][against or figure] for row in rows])


def paired(difference: np.ndarray) -> str:
    """Mean difference, its standard deviation over cells, and how often it is above and below zero."""
    deviation = difference.std(ddof=1) if len(difference) > 1 else float("nan")
    wins, losses = int((difference > 0).sum()), int((difference < 0).sum())
    return f"{difference.mean():+.3f} ± {deviation:.3f}, {wins}:{losses}"


def verdict(rows: list[dict], method: str) -> str:
    """By the rule: better in AP or F1 by more than two standard errors, and nowhere worse by as much."""
    better, worse = [], []
    for figure, title in FIGURES.items():
        difference = differences(rows, method, figure)
        error = difference.std(ddof=1) / np.sqrt(len(rows))
        if difference.mean() > 2 * error and figure != "best_f1":
            better.append(title)
        if difference.mean() < -2 * error:
            worse.append(title)
    if better and not worse and len(rows) >= FEWEST:
        return "winner: better in " + " and ".join(better)
    parts = [f"better in {' and '.join(better)}"] * bool(better) + [f"worse in {' and '.join(worse)}"] * bool(worse)
    if better and not worse:
        return f"too few tasks to say: better in {' and '.join(better)}"
    return "no: " + ("; ".join(parts) or "no difference beyond two standard errors")


def winners(names: list[str], rows: list[dict]) -> str:
    won = [name for name in names if verdict(rows, name).startswith("winner")]
    return f"By that rule {' and '.join(won)} won." if won else "By that rule none won."


def by_setting(rows: list[dict], figure: str) -> str:
    names = ["pucache", *(kind.name for kind in METHODS)]
    kinds = dict.fromkeys((row["labelled"], row["share"]) for row in rows)
    lines = []
    for labelled, share in kinds:
        cells = [row for row in rows if (row["labelled"], row["share"]) == (labelled, share)]
        means = [f"{np.mean([cell[name][figure] for cell in cells]):.3f}" for name in names]
        title = "1:10 task" if cells[0]["class"] == PAPER else f"{labelled}, {share:.0%}"
        lines.append([title, len(cells), *means])
    return table(["labelled, share", "cells", *names], lines)


def report(rows: list[dict], counts: dict[str, int]) -> str:
    lines, oracle = [], []
    for kind in METHODS:
        name = kind.name
        own = f"{np.mean([row[name]['own_f1'] for row in rows]):.3f}" if "own_f1" in rows[0][name] else "none"
        seconds = f"{np.median([row[name]['seconds'] for row in rows]):.1f}"
        lines.append(
            [name, *(paired(differences(rows, name, figure)) for figure in FIGURES), own, seconds, verdict(rows, name)]
        )
        for_choice = [paired(differences(rows, name, f"oracle_{figure}")) for figure in ("ap", "best_f1")]
        chosen = [paired(differences(rows, name, f"oracle_{figure}", figure)) for figure in ("ap", "best_f1")]
        oracle.append([name, *for_choice, *chosen])
    ap, f1 = (np.mean([row["pucache"][figure] for row in rows]) for figure in ("ap", "f1"))
    return PAGE.format(
        cells=len(rows),
        classes=", ".join(dict.fromkeys(row["class"] for row in rows if row["class"] != PAPER)),
        ap_mean=f"{ap:.3f}",
        f1_mean=f"{f1:.3f}",
        seconds=f"{np.median([row['pucache']['seconds'] for row in rows]):.1f}",
        settings=", ".join(f"{name} {count}" for name, count in counts.items()),
        tuned=TUNED,
        winners=winners([kind.name for kind in METHODS], rows),
        paired=table(
            [
                "method",
                *(f"{title}" for title in FIGURES.values()),
                "F1 at the paper's threshold",
                "seconds",
                "verdict",
            ],
            lines,
        ),
        oracle=table(
            ["method", "AP, both at their best", "best F1, both", "AP, its best to our chosen", "best F1, likewise"],
            oracle,
        ),
        ap=by_setting(rows, "ap"),
        f1=by_setting(rows, "f1"),
    )


PAGE = """# Other objectives on the same embeddings

Would another loss, or self-training, find more than the default head (the imbalanced uPU risk with the sigmoid loss,
at the penalty that held-out positives choose)? Each was made a linear head on the same rows, full batch by the same
L-BFGS, at settings around those of the papers:

- **VPU** (Chen, Liu, Wang, Zhao, Wu 2020): log mean_U φ − mean_P log φ, and with weight λ the MixUp regulariser,
  mean (log(γ + (1 − γ) φ(x_U)) − log φ(γ x_P + (1 − γ) x_U))², γ from Beta(0.3, 0.3), one mixture for each row of U.
  λ of 0.03 (the authors' code), 0.3 and 3, each with four penalties.
- **Dist-PU** (Zhao, Xu, Jiang, Wen, Huang 2022): 1 − mean_P f + |mean_U f − π| / 2π, which is the scale of the
  authors' code, with the entropy of U at weight 0.002 (theirs) or 0.1; or then their second stage: MixUp of all rows
  at Beta(6, 6), cross-entropy of the mixtures at weight 5, their entropy at 0.04, that of U at 0.004, pseudo labels
  made anew twice. Each with four penalties. π is the default head's estimate, or the truth.
- **Self-paced, hard** (the self-paced part of Self-PU, Chen, Chen, Chen, Yuan, Gong, Chen, Wang 2020, without
  teachers and learned weights): four rounds trust more and more of the most and of the least confident rows of U,
  equally many, in the end 0.25, 0.5 or 1 times as many as hidden positives are expected. Trusted rows have
  cross-entropy at weight 0.2 or 0.5, all others the default risk at the default's penalty.
- **Self-training, soft**: rows of U count as positive by their calibrated posterior and as negative by the rest; with
  the sigmoid loss one or four rounds, with the logistic loss four, at the default's penalty or ten times it.

The setting is chosen by pucache's rule on held-out positives, never with true labels, by heads trained on all P and
6,000 rows of U. (The default chooses among nine penalties on up to 52,000 rows, so its choice is better informed;
settings to choose among: {settings}.) The heads that are
measured are trained on all rows. Pseudo labels of a head come from its own margins: margins of heads that saw the fold
it leaves out would leak the labels that it is judged by. {tuned}

{cells} tasks, seed 0: {classes}, each against the rest at the settings of the tables below, and the authors' 1:10
task. AP is among the unlabelled. F1 is on the test images at the threshold of pucache's calibration, set
for the true share of positives in the test set, as that of the default is. The last F1 is at the paper's own
threshold (VPU: half the greatest φ in U; Dist-PU: f = ½), which is made for the share in U.

## Against the default, paired by task

Mean difference to the default ± standard deviation over tasks, then tasks won:lost. A method wins if it is better in
AP or in F1 at its threshold by more than two standard errors of that mean, over ten tasks at least, and worse in none
of the three by as much.
The default has a mean AP of {ap_mean}, a mean F1 of {f1_mean}, and takes {seconds} s; seconds of the others are of all
their settings.

{paired}

{winners}

What each of them depends on:

- VPU has a weight λ to be chosen, for which 20 held-out positives are few. Its own threshold depends on the single
  greatest φ in U.
- Dist-PU needs the prior. Where the estimate comes out near 0 there is nothing to align with. Its own threshold is made
  for the share in U.
- Self-paced rounds trust the rows that the default ranks first and last already.
- Soft labels come from margins of the row's own head, calibrated on held-out ones: a row that was trained on as
  negative looks more negative than it is, and each round makes that firmer. Cross-fitted posteriors in every round may
  do better; they were not tried here.

## With true labels

For each figure and task, the setting that is best by the true labels: against the default at the best of its nine
penalties, and against the default as it is. The more settings a method has, the more this choice helps it.

{oracle}

## AP by labelled and share

{ap}

## F1 at the calibrated threshold, likewise

{f1}
"""
