"""Numbers of the report's charts, computed from held-out margins: histogram, precision-recall and reliability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..estimates.calibration import Tilt
from ..estimates.metrics import from_pu, with_labels
from ..estimates.thresholds import expected_recall_precision

BINS = 40  # of the histogram of margins
POINTS = 60  # of a curve
_TAIL = 0.001  # share of the unlabelled margins at either end that goes into the outer bins
_MIN_COUNTED = 10  # labelled positives above a margin, below which recall by counting is too noisy
_MIN_BIN_ROWS = 10  # unlabelled rows in a bin of the reliability diagram
_RULE_OF_THREE = 3.0  # upper 95 % bound of a Poisson mean when no event was observed


@dataclass(frozen=True)
class HeldOut:
    """Held-out margins, with the calibration and the threshold fitted to them.

    Attributes
    ----------
    positive : ndarray of float32, (p,)
        Margins of the labelled positives.
    unlabelled : ndarray of float32, (u,)
        Margins of the unlabelled rows.
    tilt : Tilt
        Gives posteriors and holds the prior.
    threshold : float
    truth : ndarray of int8, (u,), or None
        True class of the unlabelled rows: 1, 0, or -1 where it is unknown.
    """

    positive: np.ndarray
    unlabelled: np.ndarray
    tilt: Tilt
    threshold: float
    truth: np.ndarray | None = None

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
    """Recall and precision among the unlabelled as the threshold falls.

    Returns
    -------
    dict
        ``expected``: from the posteriors. ``counted``: recall is the share of P above, and precision = prior *
        recall / share of U above; from the tenth labelled positive on. ``true``: from the true classes, if any
        known one is positive. Each holds the lists recall and precision, and `at`, the pair at the threshold.
    """
    m = np.sort(held_out.unlabelled)[::-1].astype(np.float64)
    last = np.append(np.flatnonzero(np.diff(m)), len(m) - 1)  # rows with equal margins are called together
    recall, precision = (values[last] for values in expected_recall_precision(held_out.tilt, m, held_out.tilt.prior))
    called = int(np.searchsorted(-m[last], -held_out.threshold, "left"))  # distinct margins above the threshold
    at = (float(recall[called - 1]), float(precision[called - 1])) if called else (0.0, 1.0)
    curves = {"expected": _curve(recall, precision, at), "counted": _counted(held_out, m)}
    true = held_out.true()
    if true is not None and true["n_positive"]:
        curves["true"] = _true_curve(held_out, (true["recall"], true["precision"]))
    return curves


def _curve(recall: np.ndarray, precision: np.ndarray, at: tuple[float, float]) -> dict[str, Any]:
    """Thin a curve to at most `POINTS` points, about evenly spaced in recall."""
    steps = np.searchsorted(recall, np.linspace(recall[0], recall[-1], POINTS) * (1 - 1e-12))
    kept = np.unique(np.clip(steps, 0, len(recall) - 1))
    return {"recall": recall[kept].tolist(), "precision": precision[kept].tolist(), "at": at}


def _counted(held_out: HeldOut, falling: np.ndarray) -> dict[str, Any]:
    margins = np.unique(held_out.positive)[::-1].astype(np.float64)
    margins = margins[min(_MIN_COUNTED, len(margins)) - 1 :]
    recall = 1 - np.searchsorted(np.sort(held_out.positive), margins, "left") / len(held_out.positive)
    above = np.searchsorted(-falling, -margins, "right") / len(falling)
    precision = np.minimum(1, held_out.tilt.prior * recall / np.maximum(above, 1 / len(falling)))
    margin, s = (
        np.concatenate([held_out.positive, held_out.unlabelled]),
        np.repeat([1, 0], [len(held_out.positive), len(falling)]),
    )
    at_threshold = from_pu(margin, s, held_out.tilt.prior, held_out.threshold)
    return _curve(recall, precision, (float(at_threshold["recall"]), float(at_threshold["precision"])))


def _true_curve(held_out: HeldOut, at: tuple[float, float]) -> dict[str, Any]:
    assert held_out.truth is not None
    margins, y = held_out.unlabelled[held_out.has_class], held_out.truth[held_out.has_class]
    order = np.argsort(-margins, kind="stable")
    positives, last = np.cumsum(y[order]), np.append(np.flatnonzero(np.diff(margins[order])), len(order) - 1)
    return _curve(positives[last] / positives[-1], positives[last] / (last + 1), at)


def reliability(held_out: HeldOut) -> dict[str, list[float]]:
    """Compare the posteriors with counted shares of positives, in bins of the posterior.

    The counted share of positives among the U of a bin is prior * (share of P in it) / (share of U in it).

    Returns
    -------
    dict
        A list per name, with a value per bin: low and high (its ends), n (unlabelled rows), labelled (labelled
        positives), posterior (mean over U), counted, counted_low and counted_high (two standard errors). With
        truth also n_known, and true, true_low and true_high (NaN where no class is known).
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
        if (
            edge == 0
            or np.count_nonzero((posterior >= edge) & (posterior < edges[-1] + (edges[-1] == 1))) >= _MIN_BIN_ROWS
        ):
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
