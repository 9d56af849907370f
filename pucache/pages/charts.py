"""Charts of the report: their numbers, computed from held-out margins, and matplotlib figures as inline SVG.

Each chart is drawn in placeholder colours, which are then replaced by the page's CSS variables, so that one
drawing serves the light and the dark scheme.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from ..estimates.calibration import Tilt
from ..estimates.metrics import from_pu, with_labels
from ..estimates.priors import PriorEstimate
from ..estimates.thresholds import cuts

BINS = 40  # of the histogram of margins
POINTS = 60  # of a curve
_TAIL = 0.001  # share of the unlabelled margins at either end that goes into the outer bins
_MIN_COUNTED = 10  # labelled positives above a margin, below which recall by counting is too noisy
_MIN_BIN_ROWS = 10  # unlabelled rows in a bin of the reliability diagram
_RULE_OF_THREE = 3.0  # upper 95 % bound of a Poisson mean when no event was observed


@dataclass(frozen=True)
class HeldOut:
    """Held-out margins, with the calibration and the threshold fitted to them."""

    positive: np.ndarray  # margins of the labelled positives, float32 (p,)
    unlabelled: np.ndarray  # margins of the unlabelled rows, float32 (u,)
    tilt: Tilt  # gives posteriors and holds the prior
    threshold: float
    truth: np.ndarray | None = None  # class of the unlabelled rows, int8 (u,): 1, 0, or -1 where it is unknown

    @property
    def has_class(self) -> np.ndarray:
        """Unlabelled rows whose true class is known, bool (u,)."""
        return np.zeros(len(self.unlabelled), bool) if self.truth is None else self.truth >= 0

    def true(self) -> dict[str, float] | None:
        """True metrics at the threshold, on unlabelled rows whose class is known; None where there are none."""
        if self.truth is None or not self.has_class.any():
            return None
        margins = self.unlabelled[self.has_class]
        return with_labels(self.truth[self.has_class], margins, (margins > self.threshold).astype(int))


def margin_histogram(held_out: HeldOut) -> dict[str, list[float]]:
    """Count margins in bins of equal width; the outer bins also count the margins beyond them.

    Returns
    -------
    dict
        edges (b + 1), and of each bin: labelled, unlabelled, expected (positives among the unlabelled, by
        their posteriors) and, with truth, hidden (true positives among the unlabelled whose class is known).
    """
    low, high = np.quantile(held_out.unlabelled, [_TAIL, 1 - _TAIL])
    low, high = (float(end) for end in (min(low, held_out.positive.min()), max(high, held_out.positive.max())))
    edges = np.linspace(low, high if high > low else low + 1, BINS + 1)

    def count(margins: np.ndarray, weights: np.ndarray | None = None) -> list[float]:
        inside = np.clip(margins.astype(np.float64), edges[0], edges[-1])
        return np.histogram(inside, edges, weights=weights)[0].astype(float).tolist()

    counts = {
        "edges": edges.tolist(),
        "labelled": count(held_out.positive),
        "unlabelled": count(held_out.unlabelled),
        "expected": count(held_out.unlabelled, held_out.tilt.posterior(held_out.unlabelled)),
    }
    if held_out.truth is not None:
        counts["hidden"] = count(held_out.unlabelled[held_out.truth == 1])
    return counts


def precision_recall(held_out: HeldOut) -> dict[str, dict[str, Any]]:
    """Recall and precision among the unlabelled as the threshold falls, as lists, and `at`, the pair at the threshold.

    ``expected`` is from the posteriors. In ``counted`` recall is the share of P above, and precision = prior * recall /
    share of U above, from the tenth labelled positive on. ``true`` is from the true classes, if any known one is
    positive.
    """
    m, recall, precision = cuts(held_out.tilt, held_out.unlabelled, held_out.tilt.prior)
    called = int(np.searchsorted(-m, -held_out.threshold, "left"))  # distinct margins above the threshold
    at = (float(recall[called - 1]), float(precision[called - 1])) if called else (0.0, 1.0)
    curves = {"expected": _curve(recall, precision, at), "counted": _counted(held_out)}
    true = held_out.true()
    if true is not None and true["n_positive"]:
        curves["true"] = _true_curve(held_out, (true["recall"], true["precision"]))
    return curves


def _curve(recall: np.ndarray, precision: np.ndarray, at: tuple[float, float]) -> dict[str, Any]:
    """Thin a curve to at most `POINTS` points, about evenly spaced in recall."""
    steps = np.searchsorted(recall, np.linspace(recall[0], recall[-1], POINTS) * (1 - 1e-12))
    kept = np.unique(np.clip(steps, 0, len(recall) - 1))
    return {"recall": recall[kept].tolist(), "precision": precision[kept].tolist(), "at": at}


def _counted(held_out: HeldOut) -> dict[str, Any]:
    margins = np.unique(held_out.positive)[::-1].astype(np.float64)
    margins = margins[min(_MIN_COUNTED, len(margins)) - 1 :]
    recall, above = (
        1 - np.searchsorted(np.sort(rows), margins, "left") / len(rows)
        for rows in (held_out.positive, held_out.unlabelled)
    )
    precision = np.minimum(1, held_out.tilt.prior * recall / np.maximum(above, 1 / len(held_out.unlabelled)))
    margin = np.concatenate([held_out.positive, held_out.unlabelled])
    s = np.repeat([1, 0], [len(held_out.positive), len(held_out.unlabelled)])
    at_threshold = from_pu(margin, s, held_out.tilt.prior, held_out.threshold)
    return _curve(recall, precision, (float(at_threshold["recall"]), float(at_threshold["precision"])))


def _true_curve(held_out: HeldOut, at: tuple[float, float]) -> dict[str, Any]:
    assert held_out.truth is not None
    margins, y = held_out.unlabelled[held_out.has_class], held_out.truth[held_out.has_class]
    order = np.argsort(-margins, kind="stable")
    positives, last = np.cumsum(y[order]), np.append(np.flatnonzero(np.diff(margins[order])), len(order) - 1)
    return _curve(positives[last] / positives[-1], positives[last] / (last + 1), at)


def reliability(held_out: HeldOut) -> dict[str, list[float]]:
    """Compare the posteriors with counted shares of positives, in bins of the posterior: lists with a value per bin.

    The counted share of positives among the U of a bin is prior * (share of P in it) / (share of U in it). Its ends,
    and those of the true share, are two standard errors away. The true share is NaN where no class is known.
    """
    p, u = held_out.tilt.posterior(held_out.positive), held_out.tilt.posterior(held_out.unlabelled)
    edges = _edges(u)
    in_p, in_u = (np.clip(np.searchsorted(edges, values, "right") - 1, 0, len(edges) - 2) for values in (p, u))
    bins = len(edges) - 1
    n_p, n_u = np.bincount(in_p, minlength=bins), np.bincount(in_u, minlength=bins)
    per = held_out.tilt.prior * len(u) / len(p) / n_u  # share of the bin's U per labelled positive in it
    error = 2 * per * n_p * np.sqrt(1 / np.maximum(n_p, 1) + 1 / n_u)
    columns = {
        "low": edges[:-1],
        "high": edges[1:],
        "n": n_u,
        "labelled": n_p,
        "posterior": np.bincount(in_u, u, bins) / n_u,
        "counted": per * n_p,
        "counted_low": np.maximum(per * n_p - error, 0),
        "counted_high": np.where(n_p > 0, per * n_p + error, per * _RULE_OF_THREE),
    }
    if held_out.truth is not None:
        columns |= _true_shares(held_out.truth, in_u, bins)
    return {name: values.astype(float).tolist() for name, values in columns.items()}


def _edges(posterior: np.ndarray) -> np.ndarray:
    """Edges at tenths, merged downwards until each bin holds enough rows; the lowest bin may hold fewer."""
    edges = [1.0]
    for edge in np.linspace(0.9, 0, 10):
        inside = (posterior >= edge) & (posterior < edges[-1] + (edges[-1] == 1))
        if edge == 0 or np.count_nonzero(inside) >= _MIN_BIN_ROWS:
            edges.append(float(edge))
    if len(edges) > 2 and not np.any(posterior < edges[-2]):
        edges.pop(-2)
    return np.array(edges[::-1])


def _true_shares(truth: np.ndarray, in_u: np.ndarray, bins: int) -> dict[str, np.ndarray]:
    n_known = np.bincount(in_u[truth >= 0], minlength=bins)
    with np.errstate(invalid="ignore"):
        share = np.bincount(in_u[truth == 1], minlength=bins) / n_known
        error = 2 * np.sqrt(share * (1 - share) / n_known)
    return {
        "true": share,
        "true_low": np.maximum(share - error, 0),
        "true_high": np.minimum(share + error, 1),
        "n_known": n_known,
    }


# --- drawings ----------------------------------------------------------------------------------

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
_CURVES = {
    "expected": ("estimated, smooth", _POSITIVE, "-", "o"),
    "counted": ("estimated, counted on the labelled", _UNLABELLED, "--", "s"),
    "true": ("true", _TRUTH, "-", "D"),
}


def draw(name: str, height: float, paint: Callable[..., None], *values: Any) -> dict[str, Markup]:
    """Draw a chart as SVG by ``paint(figure, *values)``, without the tags around it, which name and describe it.

    `name`, of letters only, makes the ids within the drawing differ from those of other charts. `height` is in inches;
    the width is 7.2, and the page scales both. Returns ``box``, the attribute viewBox, and ``body``, the elements and
    the end tag.
    """
    stream = io.StringIO()
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        paint(figure, *values)
        no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(stream, format="svg", transparent=True, metadata=no_metadata)
    svg = stream.getvalue()
    body = svg[svg.index(">", svg.index("<svg")) + 1 :]
    body = re.sub(r"<style.*?</style>", "", body, count=1, flags=re.DOTALL)  # its rules would apply to the whole page
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    body = re.sub(r' *font-family: [^;"]*;?', "", body)
    for placeholder, variable in _VARIABLES.items():
        body = body.replace(placeholder, variable)
    box = re.findall(r'viewBox="[^"]*"', svg)[0]
    return {"box": Markup(box), "body": Markup(body)}  # noqa: S704 - our own SVG; matplotlib escapes texts


def paint_priors(
    figure: Figure, estimates: Sequence[PriorEstimate], used: float | None, truth: float | None, points: bool
) -> None:
    """A dot with its interval per method, intervals alone without `points`; lines at the used and the true prior."""
    axes = figure.subplots()
    ends = [used or 0, truth or 0]
    for row, estimate in enumerate(estimates):
        ends.append(estimate.high if estimate.has_interval else estimate.prior or 0)
        if estimate.prior is not None:
            axes.plot([estimate.prior], [row], "o", color=_POSITIVE, ms=7)
        if estimate.has_interval:
            axes.plot([estimate.low, estimate.high], [row, row], color=_POSITIVE, lw=2 if points else 7)
    if used is not None:
        axes.axvline(used, color=_INK, lw=1, ls=":", label="used on this page", zorder=0)
    if truth is not None:
        axes.axvline(truth, color=_TRUTH, lw=2, label="true share", zorder=0)
    axes.set(yticks=range(len(estimates)), yticklabels=[estimate.method for estimate in estimates])
    axes.set(xlim=(0, min(1.0, 1.08 * max(ends))), ylim=(len(estimates) - 0.5, -0.5))
    axes.set(xlabel="share of positives among the unlabelled")
    axes.xaxis.set_major_formatter(_percent)
    axes.grid(axis="x")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(ncols=2, **_OUTSIDE)


def paint_margins(figure: Figure, bins: dict[str, list[float]], threshold: float) -> None:
    """A histogram of the labelled, and one of the unlabelled with the expected positives."""
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
    _sparse_log_ticks(below.yaxis, 4 * max(bins["unlabelled"]))
    below.yaxis.set_major_formatter("{x:,.0f}")
    above.set(ylabel="images")
    above.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    for axes in (above, below):
        axes.axvline(threshold, color=_INK, lw=1.2, ls="--")
        axes.legend(ncols=3, **_OUTSIDE)
    end = (threshold, 1.04)
    above.annotate("threshold", end, xycoords=("data", "axes fraction"), ha="center", fontsize=9, color=_INK)


def paint_curve(figure: Figure, curves: dict[str, dict[str, Any]]) -> None:
    """Precision against recall: a line per curve, with a mark at the threshold."""
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


def paint_reliability(figure: Figure, bins: dict[str, list[float]]) -> None:
    """Reliability diagram: observed share of positives against mean posterior, with two standard errors."""
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


def _sparse_log_ticks(axis: Any, ratio: float) -> None:
    """Label powers of ten alone; between them, too, where the axis spans less than a `ratio` of 100."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if ratio < 100 else (1,)))
    axis.set_minor_formatter(NullFormatter())


def _percents(axes: Axes) -> None:
    axes.xaxis.set_major_formatter(_percent)
    axes.yaxis.set_major_formatter(_percent)
    axes.grid()


def _percent(value: float, _: float) -> str:
    return f"{100 * value:.6g} %"
