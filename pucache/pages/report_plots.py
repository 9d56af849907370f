"""Charts of the report: matplotlib figures as inline SVG.

Each chart is drawn in placeholder colours, which are then replaced by the page's CSS variables, so that one
drawing serves the light and the dark scheme.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..estimates.intervals import prior_range
from ..estimates.priors import PriorEstimate
from ..training.prior_sweep import Sweep

_INK, _QUIET, _POSITIVE, _UNLABELLED, _TRUTH = (f"#0{number}0{number}0{number}" for number in range(1, 6))
_VARIABLES = {
    _INK: "currentColor",
    _QUIET: "var(--rule)",
    _POSITIVE: "var(--positive)",
    _UNLABELLED: "var(--unlabelled)",
    _TRUTH: "var(--truth)",
}
_STYLE: Any = {
    "svg.fonttype": "none",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "legend.fontsize": 9,
    "errorbar.capsize": 3,
    "grid.color": _QUIET,
    "grid.linewidth": 0.7,
    **dict.fromkeys(("axes.edgecolor", "text.color", "axes.labelcolor", "axes.titlecolor"), _INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), _INK),
}
_WIDTH = 7.2  # inches
_OUTSIDE: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1.0), "borderaxespad": 0.2, "handlelength": 1.6}


def draw(name: str, title: str, finding: str, paint: Callable[[Figure], None], *, height: float = 3.2) -> Markup:
    """Draw a figure as an SVG element.

    Parameters
    ----------
    name : str
        Letters only; makes the ids within the element differ from those of other charts.
    title, finding : str
        Title and description of the SVG element, for screen readers.
    paint : callable
        Draws on an empty figure.
    height : float
        In inches; the width is 7.2, and the page scales both.

    Returns
    -------
    Markup
    """
    stream = io.StringIO()
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        paint(figure)
        no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(stream, format="svg", transparent=True, metadata=no_metadata)
    return Markup(_inline(stream.getvalue(), name, title, finding))  # noqa: S704 - our own SVG; texts are escaped


def _inline(svg: str, name: str, title: str, finding: str) -> str:
    body = svg[svg.index(">", svg.index("<svg")) + 1 :]
    body = re.sub(r"<style.*?</style>", "", body, count=1, flags=re.DOTALL)  # its rules would apply to the whole page
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    body = re.sub(r' *font-family: [^;"]*;?', "", body)
    for placeholder, variable in _VARIABLES.items():
        body = body.replace(placeholder, variable)
    box = re.search(r'viewBox="[^"]*"', svg)
    assert box
    return (
        f'<svg {box[0]} role="img" aria-labelledby="{name}-title {name}-finding" class="figure">'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-finding">{escape(finding)}</desc>{body}'
    )


def prior_methods(
    estimates: Sequence[PriorEstimate], used: float | None, truth: float | None, *, points: bool = True
) -> Callable[[Figure], None]:
    """Chart of the prior estimates: a dot with its interval per method, and lines at the used and the true prior.

    Without `points`, intervals alone.
    """

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        with_interval = [prior_range(estimate.prior, estimate) is not None for estimate in estimates]
        for row, estimate in enumerate(estimates):
            if points:
                axes.plot([estimate.prior], [row], "o", color=_POSITIVE, ms=7)
            if with_interval[row]:
                axes.plot([estimate.low, estimate.high], [row, row], color=_POSITIVE, lw=2 if points else 7)
        if used is not None:
            axes.axvline(used, color=_INK, lw=1, ls=":", label="used on this page", zorder=0)
        if truth is not None:
            axes.axvline(truth, color=_TRUTH, lw=2, label="true share", zorder=0)
        ends = [
            estimate.high if shown else estimate.prior for estimate, shown in zip(estimates, with_interval, strict=True)
        ]
        high = min(1.0, 1.08 * max(*ends, used or 0, truth or 0))
        axes.set(yticks=range(len(estimates)), yticklabels=[estimate.method for estimate in estimates], xlim=(0, high))
        axes.set(ylim=(len(estimates) - 0.5, -0.5), xlabel="share of positives among the unlabelled")
        axes.xaxis.set_major_formatter(_percent)
        axes.grid(axis="x")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(ncols=2, **_OUTSIDE)

    return paint


def margins(bins: dict[str, list[float]], threshold: float) -> Callable[[Figure], None]:
    """Chart of the margins: a histogram of the labelled, and one of the unlabelled with the expected positives."""

    def paint(figure: Figure) -> None:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1, 1.5))
        edges = bins["edges"]
        above.stairs(bins["labelled"], edges, fill=True, color=_POSITIVE, label="labelled positives")
        below.stairs(bins["unlabelled"], edges, fill=True, color=_UNLABELLED, alpha=0.45, label="unlabelled")
        if "expected" in bins:
            below.stairs(bins["expected"], edges, fill=True, color=_POSITIVE, label="of these expected positive")
        if "hidden" in bins:
            below.stairs(bins["hidden"], edges, color=_TRUTH, lw=1.8, label="truly positive")
        below.set(yscale="log", ylim=(0.5, 2 * max(bins["unlabelled"])), ylabel="images (log)")
        below.set(xlabel="margin: the higher, the more positive")
        below.yaxis.set_major_formatter(_count)
        above.set(ylabel="images")
        above.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        for axes in (above, below):
            axes.axvline(threshold, color=_INK, lw=1.2, ls="--")
            axes.legend(ncols=3, **_OUTSIDE)
        above.annotate(
            "threshold", (threshold, 1.04), xycoords=("data", "axes fraction"), ha="center", fontsize=9, color=_INK
        )

    return paint


_CURVES = {
    "expected": ("estimated, smooth", _POSITIVE, "-", "o"),
    "counted": ("estimated, counted on the labelled", _UNLABELLED, "--", "s"),
    "true": ("true", _TRUTH, "-", "D"),
}


def precision_recall(curves: dict[str, dict[str, Any]]) -> Callable[[Figure], None]:
    """Chart of precision against recall: a line per curve, with a mark at the threshold."""

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for name, curve in curves.items():
            label, colour, line, mark = _CURVES[name]
            axes.plot(curve["recall"], curve["precision"], line, color=colour, lw=2, label=label)
            axes.plot(*[[value] for value in curve["at"]], mark, color=colour, ms=8, clip_on=False)
        axes.plot([], [], "o", color=_INK, mfc="none", label="at the threshold")
        axes.set(xlim=(0, 1.01), ylim=(0, 1.03), xlabel="recall: share of the positives found")
        axes.set(ylabel="precision: share that are positive")
        _percents(axes)
        axes.legend(ncols=2, **_OUTSIDE)

    return paint


def reliability(bins: dict[str, list[float]]) -> Callable[[Figure], None]:
    """Reliability diagram: observed share of positives against mean posterior, with two standard errors."""

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color=_INK, lw=1, ls=":", label="perfectly calibrated")
        for name, label, colour, mark, offset in (
            ("counted", "counted on the labelled", _POSITIVE, "o", -0.004),
            ("true", "true share", _TRUTH, "D", 0.004),
        ):
            if name in bins:
                x = np.array(bins["posterior"]) + offset * (len(bins.get("true", [])) > 0)
                share, low, high = (np.minimum(bins[name + end], 1.0) for end in ("", "_low", "_high"))
                axes.errorbar(x, share, (share - low, high - share), fmt=mark, color=colour, ms=6, lw=1.4, label=label)
        axes.set(xlim=(-0.02, 1.02), ylim=(0, 1.03), xlabel="mean posterior of the unlabelled images in the bin")
        axes.set(ylabel="share of positives")
        _percents(axes)
        axes.legend(ncols=3, **_OUTSIDE)

    return paint


_LINES = {
    "Ranking": {
        "pauc": ("PAUC", _UNLABELLED, "-"),
        "auc": ("AUC, estimated", _POSITIVE, "-"),
        "true_auc": ("AUC, true", _TRUTH, "-"),
    },
    "At the threshold": {
        "f1": ("F1, estimated", _POSITIVE, "-"),
        "true_f1": ("F1, true", _TRUTH, "-"),
        "share_predicted_positive": ("called positive", _UNLABELLED, "--"),
    },
}


def prior_sweep(result: Sweep, used: float | None) -> Callable[[Figure], None]:
    """Chart of a sweep: metrics of the ranking and at the threshold against the prior; a line at the used prior.

    Where only intervals are stated, bands stand for the lines.
    """

    def paint(figure: Figure) -> None:
        rows = result.rows
        priors = [row["prior"] for row in rows]
        for axes, (title, lines) in zip(figure.subplots(1, 2), _LINES.items(), strict=True):
            for name, (label, colour, line) in lines.items():
                if name in rows[0]:
                    axes.plot(priors, [row[name] for row in rows], line, color=colour, lw=2, label=label)
                elif f"{name}_low" in rows[0]:
                    low, high = ([row[f"{name}_{end}"] for row in rows] for end in ("low", "high"))
                    axes.fill_between(priors, low, high, color=colour, alpha=0.35, lw=0, label=label)
            axes.set(xscale="log", ylim=(0, 1.03), xlabel="prior used in training")
            shown = len(axes.get_legend_handles_labels()[0])
            axes.set_title(title, y=1.03 + 0.09 * -(-shown // 2), fontweight="bold")
            axes.xaxis.set_major_formatter(_percent)
            axes.yaxis.set_major_formatter(_percent)
            if used is not None:
                axes.axvline(used, color=_INK, lw=1, ls=":", zorder=0)
            axes.grid()
            axes.legend(ncols=2, columnspacing=1, **_OUTSIDE)

    return paint


def _percents(axes: Axes) -> None:
    axes.xaxis.set_major_formatter(_percent)
    axes.yaxis.set_major_formatter(_percent)
    axes.grid()


def _count(value: float, _: float) -> str:
    return f"{value:,.0f}"


def _percent(value: float, _: float) -> str:
    return f"{100 * value:.6g} %"
