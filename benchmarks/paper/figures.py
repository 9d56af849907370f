"""Figures of benchmarks/paper/tables.py."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.common.cells import spread
from benchmarks.common.cifar import CLASSES, VEHICLES

STYLES = {  # line, marker and colour of each way; distinct without colour too
    "pucache, own threshold": ("-", "o", "#0b6e4f"),
    "pucache, margin 0": ("--", "s", "#3a9d7c"),
    "imbnnPU, authors' protocol": ("-.", "^", "#c1440e"),
    "nnPU, authors' protocol, standardised X": (":", "v", "#4b4e9a"),
}
COLOURS = ("#1f77b4", "#ff7f0e", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#2ca02c", "#9467bd", "#17becf", "#d62728")


def reliability(path: Path, sets: dict[str, list[list[float]]]) -> None:
    """Draw true shares against mean posteriors, a panel for each set of `paper_rows.bins`."""
    sheet = Figure(figsize=(9, 4.4), layout="constrained")
    for axes, (title, of) in zip(sheet.subplots(1, len(sets)), sets.items(), strict=True):
        posterior, true, rows = np.array(of).T
        error = 2 * np.sqrt(np.maximum(true * (1 - true), 1 / rows) / rows)
        axes.plot([0, 1], [0, 1], ":", color="grey")
        axes.errorbar(posterior, true, error, fmt="o-", capsize=3)
        for x, height, count in zip(posterior, true, rows, strict=True):
            axes.annotate(f"{count:,.0f}", (x, height), textcoords="offset points", xytext=(6, -11), fontsize=7)
        axes.set(title=title, xlabel="posterior", ylabel="share truly positive", xlim=(-0.03, 1.08), ylim=(-0.03, 1.05))
        axes.grid(alpha=0.3)
    sheet.savefig(path, dpi=130)


def misspecification(path: Path, factors: list[float], lines: dict[str, list[list[dict]]]) -> None:
    """Draw accuracy, F1 and AUC against the factor by which the prior is wrong; bars are standard deviations."""
    sheet = Figure(figsize=(12, 4.2), layout="constrained")
    panels = sheet.subplots(1, 3)
    for axes, metric in zip(panels, ("accuracy", "f1", "auc"), strict=True):
        for name, by_factor in lines.items():
            values = [[100 * run[metric] for run in runs] for runs in by_factor]
            bars = [np.std(runs, ddof=1) if len(runs) > 1 else 0 for runs in values]
            line, marker, colour = STYLES[name]
            means = [np.mean(runs) for runs in values]
            axes.errorbar(factors, means, bars, ls=line, marker=marker, color=colour, capsize=3, label=name)
        axes.axvline(1, color="grey", lw=0.8)
        axes.set_xscale("log")
        axes.set_xticks(factors, [f"{factor:g}" for factor in factors])
        axes.minorticks_off()
        axes.set(title={"f1": "F1", "auc": "AUC"}.get(metric, metric), xlabel="given prior / true prior", ylabel="%")
        axes.grid(alpha=0.3)
    panels[0].legend(fontsize=8, loc="lower left")
    sheet.savefig(path, dpi=130)


def maps(path: Path, rows: dict[str, dict]) -> None:
    """Draw each t-SNE twice: coloured by class, and by positive and negative."""
    sheet = Figure(figsize=(9.6, 4.5 * len(rows)), layout="constrained")
    grid = sheet.subplots(len(rows), 2, squeeze=False)
    for (left, right), (name, row) in zip(grid, rows.items(), strict=True):
        points, label = np.array(row["points"]), np.array(row["classes"])
        for number, of in enumerate(CLASSES):
            mark = "^" if of in VEHICLES else "o"
            left.scatter(*points[label == number].T, s=7, marker=mark, color=COLOURS[number], lw=0, label=of)
        positive = np.isin(label, [CLASSES.index(of) for of in VEHICLES])
        for side, mark, colour in ((False, "o", "#9aa5b1"), (True, "^", "#c1440e")):
            of = "positive (vehicles)" if side else "negative (animals)"
            right.scatter(*points[positive == side].T, s=7, marker=mark, color=colour, lw=0, label=of)
        same = spread([row["same class"]], digits=0), spread([row["same side"]], digits=0)
        for axes, what, share in ((left, "ten classes", same[0]), (right, "positive or negative", same[1])):
            axes.set_title(f"{name}: {what}\n{share} % of the 10 nearest are of the same", fontsize=10)
            axes.set(xticks=[], yticks=[])
    for axes in grid[0]:
        axes.legend(fontsize=7, markerscale=2.2, loc="best", framealpha=0.8)
    sheet.savefig(path, dpi=110)
