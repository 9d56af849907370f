import json
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from pucache.estimates.metrics import TINY, from_pu, precision_at, with_labels
from pucache.heads.risks import PURisk

ROWS = st.lists(st.tuples(st.integers(0, 1), st.integers(-3, 3), st.integers(0, 1)), min_size=1, max_size=25)
SOME = st.lists(st.integers(-3, 3), min_size=1, max_size=15)
NOT_ZERO = st.lists(st.sampled_from([-3, -2, -1, 1, 2, 3]), min_size=1, max_size=15)
PRIORS = st.floats(0.01, 0.99)
SHARES = "auc", "pauc", "recall", "precision", "f1", "accuracy", "false_positive_rate", "share_predicted_positive"


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


@settings(deadline=None)
@given(ROWS, st.sampled_from([0.1, 0.7, 1.0]))
def test_metrics_with_labels_equal_those_of_scikit_learn_to_the_last_bit(rows, unit):
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
    assert with_labels(y, margins, predicted) == {"n": len(y), "n_positive": int(y.sum()), **expected}


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


def pu(P, U):
    """Margins and s."""
    return np.concatenate([P, U]).astype(float), np.repeat([1, 0], [len(P), len(U)])


def truth_in_U(positives, negatives, threshold):
    """Every figure of U by its true classes."""
    margins, y = pu(positives, negatives)
    called = margins > threshold
    return with_labels(y, margins, called.astype(int)) | {
        "false_positive_rate": called[y == 0].mean(),
        "share_predicted_positive": called.mean(),
        "upu_risk": np.mean(1 / (1 + np.exp(np.where(y == 1, margins, -margins)))),
    }


# --- the world of U ------------------------------------------------------------------------------


@settings(deadline=None)
@given(SOME, SOME, st.integers(-4, 4))
def test_where_P_is_a_copy_of_the_positives_in_U_every_figure_is_the_truth(positives, negatives, threshold):
    prior = len(positives) / (len(positives) + len(negatives))
    estimate = from_pu(*pu(positives, positives + negatives), prior, threshold)
    for name, value in truth_in_U(positives, negatives, threshold).items():
        if name in estimate:
            assert estimate[name] == pytest.approx(value, abs=1e-9), name
    assert estimate["nnpu_risk"] == pytest.approx(estimate["upu_risk"])  # no clamp: R- is a sum of losses


@pytest.mark.parametrize("threshold", [-0.5, 0.0, 1.0])
@pytest.mark.parametrize("prior", [0.1, 0.4])
def test_without_labels_the_estimates_come_close_to_the_truth(prior, threshold):
    margins, s, y = scar(prior)
    among_U = s == 0
    estimate = from_pu(margins, s, prior, threshold)
    truth = truth_in_U(margins[among_U & (y == 1)], margins[among_U & (y == 0)], threshold)
    for name in ("auc", "recall", "precision", "f1", "accuracy", "false_positive_rate", "upu_risk"):
        assert estimate[name] == pytest.approx(truth[name], abs=0.03), name
    assert estimate["share_predicted_positive"] == pytest.approx(truth["share_predicted_positive"])
    assert estimate["pauc"] == pytest.approx((1 - prior) * truth["auc"] + prior / 2, abs=0.01)
    assert estimate["collapsed"] == ""


@settings(deadline=None)
@given(st.floats(-1, 3), st.floats(0.05, 0.6), st.integers(0, 2**32 - 1))
def test_the_corrected_auc_agrees_with_the_true_one_within_its_sampling_error(apart, prior, seed):
    draw, n_P, n_U = np.random.default_rng(seed), 300, 1000
    P, U = draw.normal(apart, size=n_P), draw.normal(apart * (draw.random(n_U) < prior))
    auc = (1 + math.erf(apart / 2)) / 2  # of N(apart, 1) against N(0, 1)
    pauc = (1 - prior) * auc + prior / 2
    deviation = math.sqrt(pauc * (1 - pauc) / n_P) / (1 - prior)  # an upper bound
    assert from_pu(*pu(P, U), prior)["auc"] == pytest.approx(auc, abs=4.5 * deviation)


# --- bounds, ties, order -------------------------------------------------------------------------


@settings(deadline=None)
@given(ROWS, PRIORS, st.integers(-4, 4))
def test_every_figure_lies_within_its_bounds_and_pauc_counts_pairs(rows, prior, threshold):
    margins = np.array([margin for _, margin, _ in rows] + [0, 1])
    s = np.array([label for label, _, _ in rows] + [0, 1])
    result = from_pu(margins, s, prior, threshold)
    assert all(0 <= result[name] <= 1 for name in SHARES)
    assert -prior - 1e-12 <= result["upu_risk"] <= result["nnpu_risk"] <= 1 + prior + 1e-12
    assert result["nnpu_risk"] >= 0
    assert result["pauc"] == pytest.approx(share_of_pairs_in_order(s == 1, margins))
    assert set(result) == {*SHARES, "upu_risk", "nnpu_risk", "collapsed"}
    assert json.loads(json.dumps(result, allow_nan=False)) == result


@settings(deadline=None)
@given(SOME, SOME, PRIORS, st.lists(st.floats(-1e300, 1e300), min_size=7, max_size=7, unique=True))
def test_pauc_and_auc_keep_under_a_monotone_map_and_mirror_under_a_falling_one(P, U, prior, image):
    margins, s = pu(P, U)
    before, mapped = from_pu(margins, s, prior), np.sort(image)[margins.astype(int) + 3]
    for name in ("pauc", "auc"):
        assert from_pu(mapped, s, prior)[name] == before[name]
    assert from_pu(-mapped, s, prior)["pauc"] == pytest.approx(1 - before["pauc"])


@settings(deadline=None)
@given(SOME, SOME, PRIORS, st.randoms(use_true_random=False))
def test_the_order_of_the_rows_and_the_type_of_numbers_do_not_matter(P, U, prior, random):
    margins, s = pu(P, U)
    order = list(range(len(s)))
    random.shuffle(order)
    shuffled = from_pu(margins[order].astype(np.float32), s[order].astype(np.int8), prior)
    assert shuffled == pytest.approx(from_pu(margins, s, prior))


def test_ties_are_half_and_a_margin_on_the_threshold_is_not_called_positive():
    result = from_pu(np.array([0.0, 1.0, 0.0, -1.0]), np.array([1, 1, 0, 0]), 0.5)
    assert result["pauc"] == (0.5 + 1 + 1 + 1) / 4
    assert (result["recall"], result["share_predicted_positive"]) == (0.5, 0.0)


def test_one_labelled_positive_is_a_rank():
    result = from_pu(*pu([0.5], [-2, -1, 0.5, 1]), 0.25)
    assert (result["pauc"], result["recall"], result["precision"]) == (2.5 / 4, 1.0, 0.25 / 0.5)


def test_nothing_above_the_threshold_is_no_recall_no_precision_and_no_error():
    result = from_pu(np.array([-1.0, -2.0, -3.0]), np.array([1, 0, 0]), 0.5)
    low, high = (1 / (1 + math.exp(2)) + 1 / (1 + math.exp(3))) / 2, 1 / (1 + math.exp(1))
    assert result == pytest.approx(
        {
            "pauc": 1.0,
            "auc": 1.0,  # (1 - 0.25) / 0.5, held at one
            "recall": 0.0,
            "share_predicted_positive": 0.0,
            "precision": 0.0,
            "f1": 0.0,
            "false_positive_rate": 0.0,
            "accuracy": 0.5,
            "upu_risk": 0.5 * (1 - high) + low - 0.5 * high,
            "nnpu_risk": 0.5 * (1 - high),
            "collapsed": "all-negative",
        }
    )


def test_P_above_and_no_U_above_is_recall_without_precision():
    result = from_pu(*pu([2, 2], [-1, -2]), 0.5)
    assert (result["recall"], result["precision"], result["f1"]) == (1, 0, 0)
    assert result["collapsed"] == ""


def test_a_prior_too_large_for_what_is_called_is_cut():
    result = from_pu(*pu([2, 2], [1, -1]), 0.9)
    assert (result["precision"], result["false_positive_rate"]) == (1, 0)  # uncut 1.8 and -4
    assert (result["f1"], result["accuracy"]) == (1, pytest.approx(1))


# --- risks ---------------------------------------------------------------------------------------


@settings(deadline=None)
@given(SOME, SOME, PRIORS)
@pytest.mark.parametrize("name", ["upu", "nnpu"])
def test_the_risks_are_those_that_training_reports(name, P, U, prior):
    margins, s = pu(P, U)
    m, s_, w = (torch.tensor(value, dtype=torch.float64) for value in (margins, s, np.ones_like(margins)))
    trained = PURisk(name).value_and_step(m[None], w[None], s_, torch.tensor([prior], dtype=torch.float64)).value.item()
    assert from_pu(margins, s, prior)[f"{name}_risk"] == pytest.approx(trained, abs=1e-9)


@settings(deadline=None)
@given(NOT_ZERO, NOT_ZERO, PRIORS)
def test_the_risks_of_huge_margins_count_errors_and_nothing_overflows(P, U, prior):
    margins, s = pu(P, U)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = from_pu(margins * 1e307, s, prior)
    above_P, above_U = result["recall"], result["share_predicted_positive"]
    assert result["upu_risk"] == pytest.approx(prior * (1 - 2 * above_P) + above_U, abs=1e-9)
    if prior * above_P <= above_U <= prior * above_P + 1 - prior:  # the false positive rate is not clipped
        assert result["upu_risk"] == pytest.approx(1 - result["accuracy"], abs=1e-9)


def test_the_threshold_has_no_part_in_ranking_and_risk():
    margins, s, _ = scar(0.3, n=200)
    low, high = from_pu(margins, s, 0.3, -1), from_pu(margins, s, 0.3, 1)
    assert all(low[name] == high[name] for name in ("pauc", "auc", "upu_risk", "nnpu_risk"))
    assert low["recall"] > high["recall"]


# --- collapse ------------------------------------------------------------------------------------


@pytest.mark.parametrize("margin, verdict", [(0.3, "all-positive"), (0.0, "all-negative"), (-5.0, "all-negative")])
@pytest.mark.parametrize("prior", [0.001, 0.5, 0.999])
@pytest.mark.parametrize("labelled, unlabelled", [(1, 1), (1, 300), (300, 1)])
def test_constant_margins_rank_nothing_and_have_collapsed(margin, verdict, prior, labelled, unlabelled):
    result = from_pu(*pu(np.full(labelled, margin), np.full(unlabelled, margin)), prior)
    assert (result["pauc"], result["auc"]) == (0.5, pytest.approx(0.5))
    assert result["collapsed"] == verdict
    assert result["recall"] == result["share_predicted_positive"] == (verdict == "all-positive")


def called(recall, share, prior, n=10000):
    """The verdict on n P and n U of which these shares lie above the threshold."""
    P, U = (np.where(np.arange(n) < round(n * part), 1.0, -1.0) for part in (recall, share))
    return from_pu(*pu(P, U), prior)["collapsed"]


def test_all_but_a_tiny_share_on_one_side_is_a_collapse():
    assert called(TINY, TINY, 0.3) == called(0, 0, 0.3) == "all-negative"
    assert called(1 - TINY, 1 - TINY, 0.3) == called(1, 1, 0.3) == "all-positive"
    assert called(TINY + 0.0001, 0, 0.3) == called(0, TINY + 0.0001, 0.3) == ""
    assert called(1 - TINY - 0.0001, 1, 0.3) == called(1, 1 - TINY - 0.0001, 0.3) == ""


def test_rare_positives_found_and_rare_negatives_left_out_are_no_collapse():
    assert called(0.9, 0.002, 0.002) == "" and called(0, 0.002, 0.002) == ""
    assert called(0, 0.0005, 0.002) == "all-negative"
    assert called(1, 0.998, 0.998) == "" and called(1, 0.9995, 0.998) == "all-positive"


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"margins": [1, np.inf, 0]}, "margins must be finite, got inf in row 1"),
        ({"margins": [1, 0, -np.inf]}, "margins must be finite, got -inf in row 2"),
        ({"margins": [np.nan, 0, 1]}, "margins must be finite, got nan in row 0"),
        ({"margins": [1, 0]}, r"one length, got shapes \(2,\) and \(3,\)"),
        ({"margins": [[1], [0], [0]]}, r"vectors of one length, got shapes \(3, 1\)"),
        ({"margins": [[1], [0], [0]], "s": [[1], [0], [0]]}, "vectors of one length"),
        ({"margins": [], "s": []}, r"no labelled positive \(s = 1\) in 0"),
        ({"s": [0, 0, 0]}, r"no labelled positive \(s = 1\) in 3"),
        ({"s": [1, 1, 1]}, r"no unlabelled row \(s = 0\) in 3"),
        ({"s": [1, -1, 0]}, "s must be 1 for labelled positives and 0"),
        ({"s": [1, np.nan, 0]}, "s must be 1 for labelled positives and 0"),
        ({"prior": 0}, "prior must lie strictly between 0 and 1, got 0"),
        ({"prior": 1.0}, "prior must lie strictly between 0 and 1, got 1.0"),
        ({"prior": -0.1}, "got -0.1; it is the share of positives among the unlabelled"),
        ({"prior": math.nan}, "prior must lie strictly between 0 and 1, got nan"),
        ({"threshold": math.nan}, "threshold must be a number, got NaN"),
    ],
)
def test_what_has_no_estimate_is_refused_by_name(changed, message):
    arguments = {"margins": [2, 1, 0], "s": [1, 0, 0], "prior": 0.5} | changed
    with pytest.raises(ValueError, match=message):
        from_pu(**{name: np.array(value) if name in ("margins", "s") else value for name, value in arguments.items()})


# --- pulearn -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pulearn():
    return pytest.importorskip("pulearn.metrics")


def overall(prior, s):
    """The share of positives among all rows, which is what pulearn calls pi."""
    return s.mean() + (1 - s.mean()) * prior


@pytest.mark.parametrize("threshold", [-1.0, 0.0, 1.5])
@pytest.mark.parametrize("prior", [0.05, 0.3])
def test_pulearn_has_the_same_recall_and_corrected_auc(pulearn, prior, threshold):
    margins, s, _ = scar(prior, n=4000)
    ours = from_pu(margins, s, prior, threshold)
    assert pulearn.pu_recall_score(s, margins, threshold) == pytest.approx(ours["recall"])
    # its correction is of P against U, so it takes the share among the unlabelled, not converted
    assert pulearn.pu_roc_auc_score(s, margins, prior) == pytest.approx(ours["auc"])
    assert pulearn.pu_roc_curve(s, margins, prior).corrected_auc == pytest.approx(ours["auc"])
    with pytest.warns(UserWarning, match="outside"):
        assert pulearn.pu_roc_auc_score(s, margins, float(overall(prior, s))) > 1


@pytest.mark.parametrize("threshold", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("prior", [0.05, 0.3])
def test_precision_and_f1_of_pulearn_are_ours_with_P_put_back(pulearn, prior, threshold):
    margins, s, _ = scar(prior, n=4000)
    ours, pi = from_pu(margins, s, prior, threshold), float(overall(prior, s))
    P = s.mean() * ours["recall"]  # rows called positive, as shares of all rows
    U = (1 - s.mean()) * ours["share_predicted_positive"]
    precision = (P + U * ours["precision"]) / (P + U)
    assert pulearn.pu_precision_score(s, margins, pi, threshold) == pytest.approx(precision)
    assert precision > ours["precision"]
    f1 = 2 * precision * ours["recall"] / (precision + ours["recall"])
    assert pulearn.pu_f1_score(s, margins, pi, threshold) == pytest.approx(f1)


def test_few_labelled_rows_make_the_precision_of_pulearn_ours(pulearn):
    margins, s = pu([2.0, -1.0], np.tile([3.0, 1.0, -1.0, -2.0], 10**5))
    ours, pi = from_pu(margins, s, 0.3), float(overall(0.3, s))
    assert pulearn.pu_precision_score(s, margins, pi, 0.0) == pytest.approx(ours["precision"], abs=1e-4)
    assert pulearn.pu_f1_score(s, margins, pi, 0.0) == pytest.approx(ours["f1"], abs=1e-4)


def test_the_risks_of_pulearn_have_our_clamp_but_the_logistic_loss(pulearn):
    margins, s = pu([3.0, 2.0, 4.0], [-3.0, -2.0, -4.0, -3.0])
    posterior, prior = 1 / (1 + np.exp(-margins)), torch.tensor([0.6], dtype=torch.float64)
    m, s_, w = (torch.tensor(value, dtype=torch.float64) for value in (margins, s, np.ones_like(margins)))
    ours = from_pu(margins, s, 0.6)
    for name, theirs in {"upu": pulearn.pu_unbiased_risk, "nnpu": pulearn.pu_non_negative_risk}.items():
        logistic = PURisk(name, "logistic").value_and_step(m[None], w[None], s_, prior).value.item()
        assert theirs(s, posterior, 0.6) == pytest.approx(logistic)
        assert theirs(s, posterior, 0.6) != pytest.approx(ours[f"{name}_risk"], rel=0.02)
    assert ours["upu_risk"] < 0 <= ours["nnpu_risk"]


@pytest.mark.parametrize("level, flag", [(2.0, "all_positive"), (-2.0, "all_negative")])
def test_pulearn_also_calls_constant_margins_degenerate(pulearn, level, flag):
    margins, s = pu(np.full(20, level), np.full(200, level))
    assert flag in pulearn.detect_degenerate_predictor(s, margins, 0.0).flags
    assert from_pu(margins, s, 0.1)["collapsed"] == flag.replace("_", "-")


def test_unlike_pulearn_rare_positives_all_found_are_no_collapse(pulearn):
    margins, s = pu(np.ones(4), np.where(np.arange(2000) < 4, 1.0, -1.0))
    assert "all_negative" in pulearn.detect_degenerate_predictor(s, margins, 0.0).flags
    assert from_pu(margins, s, 0.002)["collapsed"] == ""
