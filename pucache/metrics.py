"""How good it is: with true labels, and from positive and unlabelled data alone."""

from __future__ import annotations

import numpy as np
from sklearn import metrics as sk


def with_labels(y: np.ndarray, margins: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Metrics against the truth.

    Parameters
    ----------
    y : ndarray of 0 and 1, (n,)
    margins : ndarray, (n,)
        Higher is more positive.
    predicted : ndarray of 0 and 1, (n,)
        The decision at the threshold.

    Returns
    -------
    dict
        n, n_positive, accuracy, precision, recall, f1; auc and average_precision are NaN where
        only one class is there.
    """
    both = 0 < y.sum() < len(y)
    return {
        "n": len(y),
        "n_positive": int(y.sum()),
        "accuracy": float(sk.accuracy_score(y, predicted)),
        "precision": float(sk.precision_score(y, predicted, zero_division=0)),
        "recall": float(sk.recall_score(y, predicted, zero_division=0)),
        "f1": float(sk.f1_score(y, predicted, zero_division=0)),
        "auc": float(sk.roc_auc_score(y, margins)) if both else float("nan"),
        "average_precision": float(sk.average_precision_score(y, margins)) if both else float("nan"),
    }


def precision_at(y: np.ndarray, scores: np.ndarray, k: int) -> float:
    """Share of true positives among the k highest scores; ties are broken by position."""
    top = np.argsort(-scores, kind="stable")[:k]
    return float(y[top].mean())


def from_pu(margins: np.ndarray, s: np.ndarray, prior: float, threshold: float = 0.0) -> dict[str, float]:
    """Estimate the metrics among the unlabelled without any true label.

    With margins of rows that the head did not see: recall is that of the labelled positives,
    precision = prior * recall / share of U above the threshold, and the AUC of P against U is
    (1 - prior) * AUC + prior / 2 in expectation, solved for the AUC.

    Parameters
    ----------
    margins : ndarray, (n,)
    s : ndarray, (n,)
    prior : float
    threshold : float

    Returns
    -------
    dict
        pauc, auc, recall, share_predicted_positive, precision, f1; every estimate is held
        within [0, 1].
    """
    positive = s == 1
    recall = float((margins[positive] > threshold).mean())
    share = float((margins[~positive] > threshold).mean())
    pauc = float(sk.roc_auc_score(positive, margins))
    precision = min(1.0, prior * recall / share) if share > 0 else 0.0
    total = precision + recall
    return {
        "pauc": pauc,
        "auc": float(np.clip((pauc - prior / 2) / (1 - prior), 0.0, 1.0)),
        "recall": recall,
        "share_predicted_positive": share,
        "precision": precision,
        "f1": 2 * precision * recall / total if total else 0.0,
    }
