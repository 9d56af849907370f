"""The numbers behind the report's figures, from held-out margins: binned, or at a bounded number of points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..pu.calibration import Tilt
from ..pu.metrics import from_pu, with_labels
from ..pu.thresholds import expected_recall_precision

BINS = 40  # of the histogram of margins
POINTS = 60  # of a curve
_TAIL = 0.001  # of the unlabelled margins at either end goes into the outer bins
_COUNTED = 10  # labelled positives, from which on their count says something
_LEAST = 10  # unlabelled rows in a bin of the reliability
_UNSEEN = 3.0  # events that none seen are still compatible with, at 95 %


@dataclass(frozen=True)
class HeldOut:
    """Margins by heads that did not see the row, and what was made of them.

    Attributes
    ----------
    positive : ndarray of float32, (p,)
        Of labelled positives.
    unlabelled : ndarray of float32, (u,)
    tilt : Tilt
        With the prior.
    threshold : float
    truth : ndarray of int8, (u,), or None
        True class of the unlabelled rows: 1, 0, or -1 where it is not known.
    """

    positive: np.ndarray
    unlabelled: np.ndarray
    tilt: Tilt
    threshold: float
    truth: np.ndarray | None = None

    @property
    def known(self) -> np.ndarray:
        """Which unlabelled rows have a true class, (u,) bool."""
        return np.zeros(len(self.unlabelled), bool) if self.truth is None else self.truth >= 0

    def true(self) -> dict[str, float] | None:
        """`with_labels` at the threshold on the unlabelled rows whose class is known; None where there are none."""
        if self.truth is None or not self.known.any():
            return None
        margins = self.unlabelled[self.known]
        return with_labels(self.truth[self.known], margins, (margins > self.threshold).astype(int))


def margin_histogram(held: HeldOut) -> dict[str, list[float]]:
    """Count margins in bins of equal width; the outer ones hold what lies beyond.

    Returns
    -------
    dict
        edges (b + 1), and of each bin: labelled, unlabelled, expected (positives among the unlabelled, by
        their posteriors) and, with truth, hidden (true positives among the unlabelled whose class is known).
    """
    low, high = np.quantile(held.unlabelled, [_TAIL, 1 - _TAIL])
    low, high = (float(end) for end in (min(low, held.positive.min()), max(high, held.positive.max())))
    edges = np.linspace(low, high if high > low else low + 1, BINS + 1)

    def count(margins: np.ndarray, weights: np.ndarray | None = None) -> list[float]:
        inside = np.clip(margins.astype(np.float64), edges[0], edges[-1])
        return np.histogram(inside, edges, weights=weights)[0].astype(float).tolist()

    counts = {
        "edges": edges.tolist(),
        "labelled": count(held.positive),
        "unlabelled": count(held.unlabelled),
        "expected": count(held.unlabelled, held.tilt.posterior(held.unlabelled)),
    }
    if held.truth is not None:
        counts["hidden"] = count(held.unlabelled[held.truth == 1])
    return counts


def precision_recall(held: HeldOut) -> dict[str, dict[str, Any]]:
    """Recall and precision among the unlabelled as the threshold falls.

    Returns
    -------
    dict
        ``expected``: by the posteriors. ``counted``: recall counted on P, precision = prior * recall / share of
        U above, from the tenth labelled positive on. ``true``: with truth that knows some positive. Each holds
        the lists recall and precision, and `at`: the pair at the threshold.
    """
    m = np.sort(held.unlabelled)[::-1].astype(np.float64)
    last = np.append(np.flatnonzero(np.diff(m)), len(m) - 1)  # rows with equal margins are called together
    recall, precision = (values[last] for values in expected_recall_precision(held.tilt, m, held.tilt.prior))
    called = int(np.searchsorted(-m[last], -held.threshold, "left"))  # of the distinct margins
    at = (float(recall[called - 1]), float(precision[called - 1])) if called else (0.0, 1.0)
    curves = {"expected": _curve(recall, precision, at), "counted": _counted(held, m)}
    true = held.true()
    if true is not None and true["n_positive"]:
        curves["true"] = _true_curve(held, (true["recall"], true["precision"]))
    return curves


def _curve(recall: np.ndarray, precision: np.ndarray, at: tuple[float, float]) -> dict[str, Any]:
    """At most `POINTS` of the points, about evenly spaced in recall."""
    steps = np.searchsorted(recall, np.linspace(recall[0], recall[-1], POINTS) * (1 - 1e-12))
    kept = np.unique(np.clip(steps, 0, len(recall) - 1))
    return {"recall": recall[kept].tolist(), "precision": precision[kept].tolist(), "at": at}


def _counted(held: HeldOut, falling: np.ndarray) -> dict[str, Any]:
    margins = np.unique(held.positive)[::-1].astype(np.float64)
    margins = margins[min(_COUNTED, len(margins)) - 1 :]
    recall = 1 - np.searchsorted(np.sort(held.positive), margins, "left") / len(held.positive)
    above = np.searchsorted(-falling, -margins, "right") / len(falling)
    precision = np.minimum(1, held.tilt.prior * recall / np.maximum(above, 1 / len(falling)))
    margin, s = np.concatenate([held.positive, held.unlabelled]), np.repeat([1, 0], [len(held.positive), len(falling)])
    here = from_pu(margin, s, held.tilt.prior, held.threshold)
    return _curve(recall, precision, (float(here["recall"]), float(here["precision"])))


def _true_curve(held: HeldOut, at: tuple[float, float]) -> dict[str, Any]:
    assert held.truth is not None
    margins, y = held.unlabelled[held.known], held.truth[held.known]
    order = np.argsort(-margins, kind="stable")
    found, last = np.cumsum(y[order]), np.append(np.flatnonzero(np.diff(margins[order])), len(order) - 1)
    return _curve(found[last] / found[-1], found[last] / (last + 1), at)


def reliability(held: HeldOut) -> dict[str, list[float]]:
    """Hold the posteriors against what counting says, in bins of the posterior.

    By counting, the share of positives among the U of a bin is prior * (share of P in it) / (share of U in it).

    Returns
    -------
    dict
        Of each bin: low and high (its ends), n (unlabelled rows), labelled (P in it), posterior (their mean
        over U), counted with counted_low and counted_high (two standard errors), and with truth true, true_low,
        true_high and n_known (NaN where no class is known).
    """
    p, u = held.tilt.posterior(held.positive), held.tilt.posterior(held.unlabelled)
    edges = _edges(u)
    in_p, in_u = (np.clip(np.searchsorted(edges, values, "right") - 1, 0, len(edges) - 2) for values in (p, u))
    bins = len(edges) - 1
    n_p, n_u = np.bincount(in_p, minlength=bins), np.bincount(in_u, minlength=bins)
    per = held.tilt.prior * len(u) / len(p) / n_u  # what one labelled positive stands for
    error = 2 * per * n_p * np.sqrt(1 / np.maximum(n_p, 1) + 1 / n_u)
    found = {
        "low": edges[:-1],
        "high": edges[1:],
        "n": n_u,
        "labelled": n_p,
        "posterior": np.bincount(in_u, u, bins) / n_u,
        "counted": per * n_p,
        "counted_low": np.maximum(per * n_p - error, 0),
        "counted_high": np.where(n_p > 0, per * n_p + error, per * _UNSEEN),
    }
    if held.truth is not None:
        found |= _true_shares(held.truth, in_u, bins)
    return {name: values.astype(float).tolist() for name, values in found.items()}


def _edges(posterior: np.ndarray) -> np.ndarray:
    """Tenths, joined downwards until each bin holds enough rows; the lowest may hold fewer."""
    edges = [1.0]
    for edge in np.linspace(0.9, 0, 10):
        if edge == 0 or np.count_nonzero((posterior >= edge) & (posterior < edges[-1] + (edges[-1] == 1))) >= _LEAST:
            edges.append(float(edge))
    if len(edges) > 2 and not np.any(posterior < edges[-2]):
        edges.pop(-2)
    return np.array(edges[::-1])


def _true_shares(truth: np.ndarray, in_u: np.ndarray, bins: int) -> dict[str, np.ndarray]:
    known = np.bincount(in_u[truth >= 0], minlength=bins)
    with np.errstate(invalid="ignore"):
        share = np.bincount(in_u[truth == 1], minlength=bins) / known
        error = 2 * np.sqrt(share * (1 - share) / known)
    return {
        "true": share,
        "true_low": np.maximum(share - error, 0),
        "true_high": np.minimum(share + error, 1),
        "n_known": known,
    }
