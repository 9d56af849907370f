"""The report's figures, drawn by matplotlib, as SVG to stand inside a page, in whatever colours the page has.

Drawn in stand-in colours, which become the page's variables; so one drawing serves light and dark.
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

from ..pu.prior_sweep import Sweep
from ..pu.priors import PriorEstimate

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


def draw(name: str, title: str, finding: str, onto: Callable[[Figure], None], *, height: float = 3.2) -> Markup:
    """Draw a figure as an SVG element.

    Parameters
    ----------
    name : str
        Of letters; makes the ids within the element differ from those of other figures.
    title, finding : str
        What it shows and what it says, for those who do not see it.
    onto : callable
        Draws on the empty figure it is given.
    height : float
        In inches; the width is 7.2, and the page scales both.
    """
    stream = io.StringIO()
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        sheet = Figure(figsize=(_WIDTH, height), layout="constrained")
        onto(sheet)
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        sheet.savefig(stream, format="svg", transparent=True, metadata=nothing)
    return Markup(_inline(stream.getvalue(), name, title, finding))  # noqa: S704 - ours, and what is told is escaped


def _inline(svg: str, name: str, title: str, finding: str) -> str:
    body = svg[svg.index(">", svg.index("<svg")) + 1 :]
    body = re.sub(r"<style.*?</style>", "", body, count=1, flags=re.DOTALL)  # it would hold for the whole page
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    body = re.sub(r' *font-family: [^;"]*;?', "", body)
    for stand_in, variable in _VARIABLES.items():
        body = body.replace(stand_in, variable)
    box = re.search(r'viewBox="[^"]*"', svg)
    assert box
    return (
        f'<svg {box[0]} role="img" aria-labelledby="{name}-title {name}-finding" class="figure">'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-finding">{escape(finding)}</desc>{body}'
    )


def prior_methods(estimates: Sequence[PriorEstimate], used: float, truth: float | None) -> Callable[[Figure], None]:
    """Dots with intervals, a row per method; a line where the prior that is used lies, another for the true one."""

    def onto(sheet: Figure) -> None:
        axes = sheet.subplots()
        for row, one in enumerate(estimates):
            axes.plot([one.prior], [row], "o", color=_POSITIVE, ms=7)
            if one.draws > 1:
                axes.plot([one.low, one.high], [row, row], color=_POSITIVE, lw=2)
        axes.axvline(used, color=_INK, lw=1, ls=":", label="used on this page", zorder=0)
        if truth is not None:
            axes.axvline(truth, color=_TRUTH, lw=2, label="true share", zorder=0)
        shown = [value for one in estimates for value in (one.prior, *((one.low, one.high) if one.draws > 1 else ()))]
        high = min(1.0, 1.08 * max(*shown, used, truth or 0))
        axes.set(yticks=range(len(estimates)), yticklabels=[one.method for one in estimates], xlim=(0, high))
        axes.set(ylim=(len(estimates) - 0.5, -0.5), xlabel="share of positives among the unlabelled")
        axes.xaxis.set_major_formatter(_percent)
        axes.grid(axis="x")
        axes.legend(ncols=2, **_OUTSIDE)

    return onto


def margins(bins: dict[str, list[float]], threshold: float) -> Callable[[Figure], None]:
    """Two histograms over one axis: of the labelled; of the unlabelled, and the positives expected among them."""

    def onto(sheet: Figure) -> None:
        above, below = sheet.subplots(2, 1, sharex=True, height_ratios=(1, 1.5))
        edges = bins["edges"]
        above.stairs(bins["labelled"], edges, fill=True, color=_POSITIVE, label="labelled positives")
        below.stairs(bins["unlabelled"], edges, fill=True, color=_UNLABELLED, alpha=0.45, label="unlabelled")
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
        at = ("data", "axes fraction")
        above.annotate("threshold", (threshold, 1.04), xycoords=at, ha="center", fontsize=9, color=_INK)

    return onto


_CURVES = {
    "expected": ("estimated, smooth", _POSITIVE, "-", "o"),
    "counted": ("estimated, counted on the labelled", _UNLABELLED, "--", "s"),
    "true": ("true", _TRUTH, "-", "D"),
}


def precision_recall(curves: dict[str, dict[str, Any]]) -> Callable[[Figure], None]:
    """A line per curve, its mark at the threshold."""

    def onto(sheet: Figure) -> None:
        axes = sheet.subplots()
        for name, curve in curves.items():
            label, colour, line, mark = _CURVES[name]
            axes.plot(curve["recall"], curve["precision"], line, color=colour, lw=2, label=label)
            axes.plot(*[[value] for value in curve["at"]], mark, color=colour, ms=8, clip_on=False)
        axes.plot([], [], "o", color=_INK, mfc="none", label="at the threshold")
        axes.set(xlim=(0, 1.01), ylim=(0, 1.03), xlabel="recall: share of the positives found")
        axes.set(ylabel="precision: share that is right")
        _percents(axes)
        axes.legend(ncols=2, **_OUTSIDE)

    return onto


def reliability(bins: dict[str, list[float]]) -> Callable[[Figure], None]:
    """Shares that the data say against the posterior, with two standard errors, and the diagonal."""

    def onto(sheet: Figure) -> None:
        axes = sheet.subplots()
        axes.plot([0, 1], [0, 1], color=_INK, lw=1, ls=":", label="as they should be")
        for name, label, colour, mark, aside in (
            ("counted", "counted on the labelled", _POSITIVE, "o", -0.004),
            ("true", "true share", _TRUTH, "D", 0.004),
        ):
            if name in bins:
                x = np.array(bins["posterior"]) + aside * (len(bins.get("true", [])) > 0)
                share, low, high = (np.minimum(bins[name + end], 1.0) for end in ("", "_low", "_high"))
                axes.errorbar(x, share, (share - low, high - share), fmt=mark, color=colour, ms=6, lw=1.4, label=label)
        axes.set(xlim=(-0.02, 1.02), ylim=(0, 1.03), xlabel="mean posterior of the unlabelled images in the bin")
        axes.set(ylabel="share of positives")
        _percents(axes)
        axes.legend(ncols=3, **_OUTSIDE)

    return onto


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


def prior_sweep(result: Sweep, used: float) -> Callable[[Figure], None]:
    """What ranking and threshold come to at every prior told; a line where the prior that is used lies."""

    def onto(sheet: Figure) -> None:
        rows = [row.to_dict() for row in result.rows]
        priors = [row["prior"] for row in rows]
        for axes, (title, lines) in zip(sheet.subplots(1, 2), _LINES.items(), strict=True):
            for name, (label, colour, line) in lines.items():
                if name in rows[0]:
                    axes.plot(priors, [row[name] for row in rows], line, color=colour, lw=2, label=label)
            axes.set(xscale="log", ylim=(0, 1.03), xlabel="prior told to the training")
            axes.set_title(title, y=1.03 + 0.09 * -(-len(axes.lines) // 2), fontweight="bold")
            axes.xaxis.set_major_formatter(_percent)
            axes.yaxis.set_major_formatter(_percent)
            axes.axvline(used, color=_INK, lw=1, ls=":", zorder=0)
            axes.grid()
            axes.legend(ncols=2, columnspacing=1, **_OUTSIDE)

    return onto


def _percents(axes: Axes) -> None:
    axes.xaxis.set_major_formatter(_percent)
    axes.yaxis.set_major_formatter(_percent)
    axes.grid()


def _count(value: float, _: float) -> str:
    return f"{value:,.0f}"


def _percent(value: float, _: float) -> str:
    return f"{100 * value:.6g} %"
