import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from pucache.estimates.metrics import TINY, from_pu, with_labels

ROWS = st.lists(st.tuples(st.integers(0, 1), st.integers(-3, 3), st.integers(0, 1)), min_size=1, max_size=25)
SOME = st.lists(st.integers(-3, 3), min_size=1, max_size=15)
PRIORS = st.floats(0.01, 0.99)
SHARES = "auc", "pauc", "recall", "precision", "f1", "accuracy", "false_positive_rate", "share_predicted_positive"


@settings(max_examples=25)
@given(ROWS, st.sampled_from([0.1, 0.7, 1.0]))
def test_metrics_with_labels_equal_those_of_scikit_learn(rows, unit):
    y, margins, predicted = np.array([*rows, (0, 0, 1), (1, 1, 1)]).T
    margins = margins * np.float32(unit)
    expected = {
        "accuracy": sk.accuracy_score(y, predicted),
        "precision": sk.precision_score(y, predicted, zero_division=0),
        "recall": sk.recall_score(y, predicted, zero_division=0),
        "f1": sk.f1_score(y, predicted, zero_division=0),
        "auc": sk.roc_auc_score(y, margins),
        "average_precision": sk.average_precision_score(y, margins),
    }
    expected |= {"n": len(y), "n_positive": int(y.sum())}
    assert with_labels(y, margins, predicted) == pytest.approx(expected, abs=1e-12)


def pu(P, U):
    """Margins and s."""
    return np.concatenate([P, U]).astype(float), np.repeat([1, 0], [len(P), len(U)])


def truth_in_U(positives, negatives, threshold):
    """Every figure of U by its true classes."""
    margins, y = pu(positives, negatives)
    called = margins > threshold
    return with_labels(y, margins, called.astype(int)) | {
        **({} if called.any() else {"precision": 0.0}),
        "false_positive_rate": called[y == 0].mean(),
        "share_predicted_positive": called.mean(),
        "upu_risk": np.mean(1 / (1 + np.exp(np.where(y == 1, margins, -margins)))),
    }


# --- the figures ---------------------------------------------------------------------------------


@settings(max_examples=40)
@given(SOME, SOME, st.integers(-4, 4))
def test_where_P_is_a_copy_of_the_positives_in_U_every_figure_is_the_truth(positives, negatives, threshold):
    prior = len(positives) / (len(positives) + len(negatives))
    estimate = from_pu(*pu(positives, positives + negatives), prior, threshold)
    truth = truth_in_U(positives, negatives, threshold)
    assert {name: truth[name] for name in estimate if name in truth} == pytest.approx(
        {name: estimate[name] for name in estimate if name in truth}, abs=1e-9
    )
    assert estimate["nnpu_risk"] == pytest.approx(estimate["upu_risk"])  # no clamp: R- is a sum of losses


@settings(max_examples=40)
@given(ROWS, PRIORS, st.integers(-4, 4))
def test_every_figure_lies_within_its_bounds_and_pauc_counts_pairs(rows, prior, threshold):
    s, margins, _ = np.array([*rows, (0, 0, 0), (1, 1, 1)]).T
    result = from_pu(margins, s, prior, threshold)
    assert all(0 <= result[name] <= 1 for name in SHARES)
    assert -prior - 1e-12 <= result["upu_risk"] <= result["nnpu_risk"] <= 1 + prior + 1e-12 and result["nnpu_risk"] >= 0
    high, low = margins[s == 1][:, None], margins[s == 0]
    assert result["pauc"] == pytest.approx(((high > low) + (high == low) / 2).mean())
    assert set(result) == {*SHARES, "upu_risk", "nnpu_risk", "collapsed"}
    assert json.loads(json.dumps(result, allow_nan=False)) == result


@pytest.mark.parametrize(
    ("P", "U", "prior", "expected"),
    [
        ([0.5], [-2, -1, 0.5, 1], 0.25, {"pauc": 2.5 / 4, "recall": 1, "precision": 0.25 / 0.5}),
        ([-1], [-2, -3], 0.5, {"auc": 1, "recall": 0, "precision": 0, "f1": 0, "accuracy": 0.5}),  # none is called
        ([2, 2], [-1, -2], 0.5, {"recall": 1, "precision": 0, "f1": 0, "collapsed": ""}),  # of U none is called
        ([2, 2], [1, -1], 0.9, {"precision": 1, "false_positive_rate": 0, "f1": 1}),  # unclipped 1.8 and -4
        ([1e3], [-1e3], 0.5, {"upu_risk": -0.5, "nnpu_risk": 0}),  # P alone has losses as negatives, which are cut
    ],
)
def test_figures_of_few_rows_are_those_computed_by_hand(P, U, prior, expected):
    result = from_pu(*pu(P, U), prior)
    assert {name: result[name] for name in expected} == expected


# --- collapse ------------------------------------------------------------------------------------


def collapse(recall, share, prior, n=10000):
    """The verdict on n P and n U of which these shares lie above the threshold."""
    P, U = (np.where(np.arange(n) < round(n * part), 1.0, -1.0) for part in (recall, share))
    return from_pu(*pu(P, U), prior)["collapsed"]


def test_all_but_a_tiny_share_on_one_side_is_a_collapse():
    assert collapse(TINY, TINY, 0.3) == collapse(0, 0, 0.3) == "all-negative"
    assert collapse(1 - TINY, 1 - TINY, 0.3) == collapse(1, 1, 0.3) == "all-positive"
    assert collapse(TINY + 0.0001, 0, 0.3) == collapse(0, TINY + 0.0001, 0.3) == ""
    assert collapse(1 - TINY - 0.0001, 1, 0.3) == collapse(1, 1 - TINY - 0.0001, 0.3) == ""
