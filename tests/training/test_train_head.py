"""The method distilled, from the labels to the model: what it needs, what it withstands, what it must not change."""

import numpy as np
import pytest
from helpers.neighbourhoods import clusters
from helpers.planted import planted

from pucache import PULinearClassifier

pytestmark = pytest.mark.usefixtures("one_thread")
X, S, Y = clusters(labelled=40)
N = len(X)
OPTIONS = {"prior": 0.12, "penalty": 1e-3, "device": "cpu"}


def fit(X=X, s=S, *, weights=None, groups=None, reviewed=None, **parameters):
    return PULinearClassifier(**OPTIONS | parameters).fit(X, s, weights, groups, reviewed)


@pytest.fixture(scope="module")
def distilled(one_thread):
    return fit()


# --- what it needs -------------------------------------------------------------------------------


def some_labels(count):
    return np.where(np.cumsum(S) <= count, S, 0).astype(np.int8)


@pytest.mark.parametrize("count", [3, 4])
def test_fewer_than_four_positives_say_nothing_about_neighbours(count):
    model = fit(s=some_labels(count))
    assert (model.neighbours_ is None) == (count < 4) and np.isfinite(model.margins(X)).all()
    if count < 4:
        assert (model.coef_ == fit(s=some_labels(count), method="linear").coef_).all()


def test_positives_count_once_for_each_group_and_only_where_they_have_weight():
    few = some_labels(6)
    positives = np.flatnonzero(few)
    groups, weights = np.arange(N), np.ones(N)
    groups[positives] = np.arange(6) // 2
    weights[positives[3:]] = 0
    assert fit(s=few).neighbours_.evidence.labels == 6
    assert fit(s=few, groups=groups).neighbours_ is None
    assert fit(s=few, weights=weights).neighbours_ is None


def test_a_chain_that_would_see_confirmed_positives_alone_is_not_run():
    """Tilts need labels from before the review, which here lie all in one fold."""
    s, reviewed = some_labels(1), np.zeros(N, np.int8)
    reviewed[np.flatnonzero((Y == 1) & (s == 0))[:12]] = 1
    model = fit(s=s, reviewed=reviewed)
    assert model.neighbours_ is None and np.isfinite(model.margins(X)).all()


def test_with_ten_labels_half_of_them_are_called_whatever_prior_is_estimated():
    draw, row = np.random.default_rng(5), np.arange(600)
    apart = 0.9 * ((row < 30)[:, None] & (np.arange(20) < 4))  # twenty more positives are hidden
    s = (row < 10).astype(np.int8)
    model = fit((draw.standard_normal((600, 20)) + apart).astype(np.float32), s, prior=None, penalty="auto")
    assert (model.held_out_margins_[s == 1] >= model.threshold_).mean() >= 0.5


# --- what it withstands --------------------------------------------------------------------------


def no_positive_near():
    rows, s, _ = planted(200, labelled=30, prior=0.0, apart=0.0)
    rows[s == 1] += 50
    return rows, s


def hard_piles():
    rows, s, _ = planted(120, labelled=20)
    ones = np.ones((120, 6), np.float32)
    few = np.r_[np.flatnonzero(s)[:6], np.flatnonzero(s == 0)[:9]]
    mixed = rows.copy()
    mixed[40:] = mixed[40]
    return {
        "all rows equal": (ones, s),
        "fewer rows than neighbours": (rows[few], s[few]),
        "five of six are twins": (np.repeat(rows[:20], 6, axis=0), np.repeat(s[:20], 6)),
        "most rows are one row": (mixed, s),
        "no unlabelled row near any positive": no_positive_near(),
        "one dimension": (rows[:, :1], s),
        "huge": (rows * np.float32(2.0**60), s),
        "tiny": (rows * np.float32(2.0**-60), s),
        "half precision": (rows.astype(np.float16), s),
        "one labelled": (rows, (np.arange(120) < 1).astype(np.int8)),
        "one unlabelled": (rows, (np.arange(120) > 0).astype(np.int8)),
        "almost all labelled": (rows, (np.arange(120) > 5).astype(np.int8)),
        "one of each": (rows[:2], np.arange(2, dtype=np.int8)),
        "three labelled": (rows, (np.arange(120) < 3).astype(np.int8)),
    }


@pytest.mark.parametrize("name", hard_piles())
def test_piles_that_are_hard_on_neighbours_give_a_sound_model(name):
    rows, s = hard_piles()[name]
    model = fit(rows, s, prior=None)
    assert 0 < model.tilt_.prior < 1 and 0 < model.share_ < 1 and model.n_labelled_ == s.sum()
    assert np.isfinite(model.coef_).all() and np.isfinite(model.intercept_)
    assert np.isfinite(model.held_out_margins_).all() and len(model.held_out_margins_) == len(s)
    posterior = model.predict_proba(rows)
    assert ((posterior >= 0) & (posterior <= 1)).all()
    if model.neighbours_ is not None:
        evidence = model.neighbours_.evidence
        assert np.isfinite([evidence.agreement, evidence.held_out, model.neighbours_.threshold]).all()


@pytest.mark.parametrize(("left", "method"), [(0, "linear"), (36, "distilled")])
def test_neighbours_are_for_reviews_that_left_positives_hidden(left, method):
    reviewed, hidden = np.zeros(N, np.int8), np.flatnonzero((Y == 1) & (S == 0))
    reviewed[hidden[: len(hidden) - left]] = 1
    model = fit(reviewed=reviewed)
    assert len(hidden) > 36 and model.method_ == method
    assert (model.neighbours_ is None) == (method == "linear")


# --- what it must not change ---------------------------------------------------------------------


def test_rows_without_weight_change_neither_neighbours_nor_targets(distilled):
    """They are no neighbours and no labels; in whitening and scaling X they count as any row."""
    wrong = np.flatnonzero((Y == 0) & (S == 0))[:100]
    s, weights = S.copy(), np.ones(N)
    s[wrong[:60]], weights[wrong] = 1, 0
    model, spoilt = fit(s=s, weights=weights), fit(s=s)
    assert model.neighbours_.evidence.labels == 40 and model.method_ == "distilled"

    def cosine(one):
        return one.coef_[0] @ distilled.coef_[0] / np.linalg.norm(one.coef_) / np.linalg.norm(distilled.coef_)

    assert cosine(model) > 0.9 > cosine(spoilt)


def test_figures_are_those_of_the_held_out_margins_of_the_distilled_head(distilled):
    """The margins of the final head, which saw the labels, rank the labelled positives higher."""
    held_out, seen = distilled.held_out_margins_, distilled.margins(X)

    def auc(margins):
        return (margins[S == 1, None] > margins[S == 0]).mean()

    assert distilled.estimates_["pauc"] == pytest.approx(auc(held_out), abs=1e-3)
    assert auc(seen) > auc(held_out) + 0.01


def test_figures_are_of_the_rows_that_the_head_calls_positive(distilled):
    """The final head saw hidden positives as unlabelled, so fewer of them are above the threshold than held out."""
    called = (distilled.margins(X)[S == 0] > distilled.threshold_).mean()
    assert distilled.estimates_["share_predicted_positive"] == pytest.approx(called, abs=1 / (S == 0).sum())
