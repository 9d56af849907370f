import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pucache.metrics import from_pu, precision_at, with_labels

ROWS = st.lists(st.tuples(st.integers(0, 1), st.integers(-3, 3), st.integers(0, 1)), min_size=1, max_size=25)


def share_of_pairs_in_order(positive, margins):
    high, low = np.asarray(margins)[positive][:, None], np.asarray(margins)[~positive]
    return ((high > low) + (high == low) / 2).mean()


def average_precision(y, margins):
    """Sum over thresholds, falling, of the recall gained times the precision there."""
    total, before = 0.0, 0
    for threshold in sorted(set(margins), reverse=True):
        found = y[margins >= threshold]
        total += (found.sum() - before) / y.sum() * found.mean()
        before = found.sum()
    return total


@given(ROWS)
def test_metrics_with_labels_are_those_counted_by_hand(rows):
    y, margins, predicted = np.array(rows).T
    result = with_labels(y, margins, predicted)
    hits, called, n_positive = int((y & predicted).sum()), int(predicted.sum()), int(y.sum())
    expected = {
        "n": len(y),
        "n_positive": n_positive,
        "accuracy": (y == predicted).mean(),
        "precision": hits / called if called else 0,
        "recall": hits / n_positive if n_positive else 0,
        "f1": 2 * hits / (called + n_positive) if called + n_positive else 0,
    }
    both = 0 < n_positive < len(y)
    expected["auc"] = share_of_pairs_in_order(y == 1, margins) if both else math.nan
    expected["average_precision"] = average_precision(y, margins) if both else math.nan
    assert result == pytest.approx(expected, nan_ok=True)


def test_precision_at_breaks_ties_by_position():
    y, scores = np.array([0, 1, 1, 0, 1]), np.array([0.5, 0.5, 0.9, 0.5, 0.1], np.float32)
    assert [precision_at(y, scores, k) for k in (1, 2, 3, 4, 5)] == pytest.approx([1, 1 / 2, 2 / 3, 2 / 4, 3 / 5])
    y, scores = np.arange(1000) < 30, np.arange(1000) % 2
    assert [precision_at(y, scores, k) for k in (15, 30, 500)] == pytest.approx([1, 1 / 2, 15 / 500])


def scar(prior, n=40000, seed=0):
    """Margins, s and y: labelled and hidden positives from N(1, 1), negatives from N(-1, 1)."""
    draw = np.random.default_rng(seed)
    s = (np.arange(n) < n // 4).astype(np.int8)
    y = np.maximum(s, draw.random(n) < prior)
    return draw.normal(2 * y - 1), s, y


@pytest.mark.parametrize("threshold", [-0.5, 0.0, 1.0])
@pytest.mark.parametrize("prior", [0.1, 0.4])
def test_without_labels_the_estimates_come_close_to_the_truth(prior, threshold):
    margins, s, y = scar(prior)
    among_U, predicted = s == 0, (margins > threshold).astype(int)
    estimate, truth = (
        from_pu(margins, s, prior, threshold),
        with_labels(y[among_U], margins[among_U], predicted[among_U]),
    )
    for name in ("auc", "recall", "precision", "f1"):
        assert estimate[name] == pytest.approx(truth[name], abs=0.03), name
    assert estimate["share_predicted_positive"] == predicted[among_U].mean()
    assert estimate["pauc"] == pytest.approx((1 - prior) * truth["auc"] + prior / 2, abs=0.01)


@given(ROWS, st.floats(0.01, 0.99), st.integers(-4, 4))
def test_every_estimate_lies_within_0_and_1_and_pauc_counts_pairs(rows, prior, threshold):
    margins = np.array([margin for _, margin, _ in rows] + [0, 1])
    s = np.array([label for label, _, _ in rows] + [0, 1])
    result = from_pu(margins, s, prior, threshold)
    assert all(0 <= value <= 1 for value in result.values())
    assert result["pauc"] == pytest.approx(share_of_pairs_in_order(s == 1, margins))


def test_nothing_above_the_threshold_is_no_recall_no_precision_and_no_error():
    result = from_pu(np.array([-1.0, -2.0, -3.0]), np.array([1, 0, 0]), 0.5)
    assert result == {
        "pauc": 1.0,
        "auc": 1.0,  # (1 - 0.25) / 0.5, held at one
        "recall": 0.0,
        "share_predicted_positive": 0.0,
        "precision": 0.0,
        "f1": 0.0,
    }


def test_a_margin_on_the_threshold_is_not_called_positive():
    result = from_pu(np.array([0.0, 1.0, 0.0, -1.0]), np.array([1, 1, 0, 0]), 0.5)
    assert (result["recall"], result["share_predicted_positive"]) == (0.5, 0.0)
