"""Metrics of a classifier: against true labels, and estimated from positive and unlabelled data."""

from __future__ import annotations

import numpy as np

TINY = 0.01  # share of rows on one side of the threshold below which a classifier counts as collapsed


def with_labels(y: np.ndarray, margins: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Metrics against the truth.

    Parameters
    ----------
    y : ndarray of 0 and 1, (n,)
    margins : ndarray, (n,)
        Higher is more positive.
    predicted : ndarray of 0 and 1, (n,)
        Decisions at the threshold.

    Returns
    -------
    dict of str to float
        n, n_positive, accuracy, precision, recall, f1, auc, average_precision. NaN are precision if nothing is called
        positive, recall and f1 without a positive, and the last two if only one class occurs.
    """
    positive, called = np.asarray(y) == 1, np.asarray(predicted) == 1
    n_positive, n_called, hits = int(positive.sum()), int(called.sum()), int((positive & called).sum())
    auc = average_precision = nan = float("nan")
    if 0 < n_positive < len(positive):
        auc = share_above(margins[positive], margins[~positive])
        average_precision = _average_precision(positive, margins)
    return {
        "n": len(positive),
        "n_positive": n_positive,
        "accuracy": float((positive == called).mean()),
        "precision": hits / n_called if n_called else nan,
        "recall": hits / n_positive if n_positive else nan,
        "f1": 2 * hits / (n_positive + n_called) if n_positive else nan,
        "auc": auc,
        "average_precision": average_precision,
    }


def share_above(high: np.ndarray, low: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Probability that one of `high` is above one of `low`, drawn by weights, ties one half: the area under the ROC."""
    order = np.argsort(low)
    below = np.append(0.0, np.cumsum(np.ones(len(low)) if weights is None else weights[order]))
    ends = np.searchsorted(low[order], high, "left"), np.searchsorted(low[order], high, "right")
    return float((below[ends[0]] + below[ends[1]]).mean() / (2 * below[-1]))


def _average_precision(positive: np.ndarray, margins: np.ndarray) -> float:
    """Mean precision over the steps of recall, without interpolation, as scikit-learn, which takes long to import."""
    order = np.argsort(-margins, kind="stable")
    last = np.append(np.flatnonzero(np.diff(margins[order])), len(order) - 1)  # of rows with equal margins
    true_positives = np.cumsum(positive[order])[last]
    return float(np.sum(np.diff(true_positives, prepend=0) * true_positives / (last + 1)) / true_positives[-1])


def precision_at(y: np.ndarray, scores: np.ndarray, k: int) -> float:
    """Share of true positives y among the k highest scores, or all if there are fewer; ties keep their order."""
    top = np.argsort(-scores, kind="stable")[:k]
    return float(y[top].mean())


def from_pu(margins: np.ndarray, s: np.ndarray, prior: float, threshold: float = 0.0) -> dict[str, float | str]:
    r"""Estimate metrics among the unlabelled rows without any true label.

    P and U are the rows with s = 1 and s = 0, l(m) = 1/(1 + exp m), and all means are unweighted::

        pauc                = share of pairs of P x U in which P has the higher margin, ties one half
        auc                 = (pauc - prior/2) / (1 - prior)
        recall              = share of P above the threshold
        precision           = prior * recall / share of U above
        f1                  = 2 * precision * recall / (precision + recall)
        false_positive_rate = (share of U above - prior * recall) / (1 - prior)
        accuracy            = prior * recall + (1 - prior) * (1 - false_positive_rate)
        upu_risk            = R+ + R-,  R+ = prior * mean_P l(m),  R- = mean_U l(-m) - prior * mean_P l(-m)
        nnpu_risk           = R+ + max(0, R-)

    The estimates are consistent if margins are held out and P is a random sample of the positives.

    Parameters
    ----------
    margins : ndarray, (n,)
        Finite; higher is more positive. Rows with a margin above the threshold are called positive.
    s : ndarray of 0 and 1, (n,)
    prior : float
        Share of positives among the unlabelled, in (0, 1).
    threshold : float
        pauc, auc and the risks do not depend on it.

    Returns
    -------
    dict
        The figures above, and `share_predicted_positive`, the share of U above the threshold, as
        floats; all but the risks are clipped to [0, 1]. `collapsed` is "all-positive" or
        "all-negative" if all but `TINY` of P, and all but the smaller of `TINY` and half the share
        of the other class in U, lie on that side of the threshold; otherwise "".

    Raises
    ------
    ValueError
        Different shapes, margins that are not finite, an s other than 0 and 1, no P or no U, a prior
        outside (0, 1), a threshold that is NaN.

    Notes
    -----
    With constant margins pauc and auc are 1/2, and `collapsed` names their side. With one labelled
    positive pauc is the share of U below it, and recall 0 or 1. If no row of U is above the
    threshold, precision and f1 are 0, whatever the recall. upu_risk lies in [-prior, 1 + prior].

    References
    ----------
    Menon, van Rooyen, Ong, Williamson 2015, Learning from Corrupted Binary Labels via
    Class-Probability Estimation: AUC under label noise, here with U as negatives.
    Jain, White, Radivojac 2017, Recovering True Classifier Performance in Positive-Unlabeled
    Learning: AUC, recall, precision, false positive rate.
    Kiryo, Niu, du Plessis, Sugiyama 2017, Positive-Unlabeled Learning with Non-Negative Risk
    Estimator: the two risks.
    """
    margins, positive = _checked_rows(margins, s)
    prior = float(prior)
    if not 0 < prior < 1:
        raise ValueError(
            f"prior must lie strictly between 0 and 1, got {prior}; it is the share of positives among the unlabelled"
        )
    if np.isnan(threshold):
        raise ValueError("threshold must be a number, got NaN")
    called = margins > threshold
    recall, share_of_u = float(called[positive].mean()), float(called[~positive].mean())
    pauc = share_above(margins[positive], margins[~positive])
    return {
        "pauc": pauc,
        "auc": _clipped((pauc - prior / 2) / (1 - prior)),
        **_decisions(recall, share_of_u, prior),
        **_risks(margins, positive, prior),
        "collapsed": _collapsed(recall, share_of_u, prior),
    }


def _checked_rows(margins: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    margins, s = np.asarray(margins, np.float64), np.asarray(s)
    if margins.ndim != 1 or margins.shape != s.shape:
        raise ValueError(f"margins and s must be vectors of one length, got shapes {margins.shape} and {s.shape}")
    infinite = np.flatnonzero(~np.isfinite(margins))
    if len(infinite):
        raise ValueError(f"margins must be finite, got {margins[infinite[0]]} in row {infinite[0]}")
    if not np.isin(s, (0, 1)).all():
        raise ValueError("s must be 1 for labelled positives and 0 for unlabelled rows, got other values")
    positive = s == 1
    if not 0 < positive.sum() < len(s):
        kind = "unlabelled row (s = 0)" if positive.any() else "labelled positive (s = 1)"
        raise ValueError(f"s must have both kinds of rows, got no {kind} in {len(s)}")
    return margins, positive


def _decisions(recall: float, share_of_u: float, prior: float) -> dict[str, float]:
    hits = prior * recall  # as a share of U
    precision = min(1.0, hits / share_of_u) if share_of_u > 0 else 0.0
    false_positive_rate = _clipped((share_of_u - hits) / (1 - prior))
    total = precision + recall
    return {
        "recall": recall,
        "share_predicted_positive": share_of_u,
        "precision": precision,
        "f1": 2 * precision * recall / total if total else 0.0,
        "false_positive_rate": false_positive_rate,
        "accuracy": hits + (1 - prior) * (1 - false_positive_rate),
    }


def _risks(margins: np.ndarray, positive: np.ndarray, prior: float) -> dict[str, float]:
    as_negative = (1 + np.tanh(margins / 2)) / 2  # l(-m), without an exp that could overflow
    of_P, of_U = float(as_negative[positive].mean()), float(as_negative[~positive].mean())
    positive_part = prior * (1 - of_P)  # l(m) = 1 - l(-m)
    negative_part = of_U - prior * of_P
    return {"upu_risk": positive_part + negative_part, "nnpu_risk": positive_part + max(0.0, negative_part)}


def _collapsed(recall: float, share_of_u: float, prior: float) -> str:
    # Rare positives: almost all of U is rightly below, so the limit is half of the expected positives.
    # Likewise for rare negatives.
    if recall <= TINY and share_of_u <= min(TINY, prior / 2):
        return "all-negative"
    if recall >= 1 - TINY and share_of_u >= 1 - min(TINY, (1 - prior) / 2):
        return "all-positive"
    return ""


def _clipped(value: float) -> float:
    return min(1.0, max(0.0, value))
