import numpy as np
import pytest
from helpers.planted import planted

from pucache import PULinearClassifier
from pucache.estimates.audited_prior import AuditedHidden, share_right
from pucache.estimates.calibration import MOST
from pucache.estimates.priors import PriorEstimate
from pucache.estimates.review_weights import TrainingLabels
from pucache.heads.moments import Moments
from pucache.heads.risks import PURisk
from pucache.heads.solve import fit_heads

pytestmark = pytest.mark.usefixtures("one_thread")
N = 400
X, S, Y = planted(N, labelled=40)
HIDDEN, NEGATIVE = np.flatnonzero((Y == 1) & (S == 0)), np.flatnonzero(Y == 0)
REVIEWED = np.zeros(N, np.int8)
REVIEWED[HIDDEN[:15]], REVIEWED[NEGATIVE[:25]] = 1, -1
WEIGHTS = np.random.default_rng(5).integers(0, 4, N).astype(np.float32)
WEIGHTED = pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
OPTIONS = {"prior": 0.25, "penalty": 1e-3, "device": "cpu"}


def parts(s, reviewed):
    """Positives, negatives and unlabelled, as training takes them."""
    positive, negative = (s == 1) | (reviewed == 1), reviewed == -1
    return positive, negative, ~positive & ~negative


# --- what is trained on ------------------------------------------------------------------------


@WEIGHTED
@pytest.mark.parametrize("loss", ["imbupu", "nnpu"])
def test_the_head_is_that_of_plain_row_weights(loss, weights):
    model = PULinearClassifier(loss=loss, method="linear", **OPTIONS)
    model.fit(X, S, sample_weight=weights, reviewed=REVIEWED)
    each = np.ones(N) if weights is None else weights.astype(float)
    positive, negative, unlabelled = parts(S, REVIEWED)
    share = min(0.5, each[negative].sum() / (each[negative].sum() + each[positive].sum()))
    row = np.where(unlabelled, (1 - share) * each / each[unlabelled].sum(), each)
    row[negative] = share * each[negative] / each[negative].sum()
    hidden = (0.25 * each[S == 0].sum() - each[REVIEWED == 1].sum()) / each[unlabelled].sum()
    options = {"weights": row[:, None].astype(np.float32), "prior": (1 - share) * hidden, "penalty": 1e-3}
    heads = fit_heads(X, positive.astype(np.int8), risk=PURisk(loss), moments=Moments.of(X), device="cpu", **options)
    np.testing.assert_allclose(model.margins(X), heads.coef[0] @ X.T + heads.intercept[0], atol=0.04)
    without = PULinearClassifier(loss=loss, method="linear", **OPTIONS).fit(X, S, sample_weight=weights)
    assert np.abs(model.margins(X) - without.margins(X)).max() > 0.1, "or the review has changed nothing"


@WEIGHTED
def test_of_fewer_unlabelled_rows_shares_stay_what_they_were(weights):
    n = 40_000
    draw = np.random.default_rng(0)
    s, reviewed = (draw.random(n) < 0.01).astype(np.int8), draw.choice([-1, 0, 1], n, p=[0.1, 0.85, 0.05])
    reviewed = np.where(s == 1, 0, reviewed).astype(np.int8)
    weights = None if weights is None else draw.integers(1, 4, n).astype(np.float32)
    known = TrainingLabels.of(s, reviewed, weights)
    rest = np.flatnonzero(known.training_s == 0)
    rows = np.union1d(rest[::4], np.flatnonzero(known.training_s == 1))
    few = known.take(rows, 0.25)
    assert (few.s == s[rows]).all() and (few.training_s == known.training_s[rows]).all()
    assert few.training_prior(0.2) == pytest.approx(known.training_prior(0.2), rel=0.05)

    def confirmed_among(one):
        each = np.ones(len(one.s)) if one.weights is None else one.weights
        return np.average(one.training_s[one.s == 0], weights=each[one.s == 0])

    assert confirmed_among(few) == pytest.approx(confirmed_among(known), rel=0.05)


# --- what figures rest on ----------------------------------------------------------------------


@pytest.mark.slow
def test_a_review_of_what_ranks_highest_leaves_the_figures_where_they_were():
    X, s, y = planted(3000, d=6, labelled=80, prior=0.15, apart=0.6)
    options = {"penalty": 1e-3, "device": "cpu"}
    before = PULinearClassifier(**options).fit(X, s)
    order = np.argsort(-before.margins(X))
    top = order[s[order] == 0][:250]
    reviewed = np.zeros(len(s), np.int8)
    reviewed[top] = 2 * y[top] - 1
    assert (reviewed == 1).sum() > 200
    after = PULinearClassifier(**options).fit(X, s, reviewed=reviewed)
    wrong = PULinearClassifier(**options).fit(X, ((s == 1) | (reviewed == 1)).astype(np.int8))
    assert after.prior_ == pytest.approx(before.prior_, rel=0.1) == pytest.approx(0.15, rel=0.25)
    assert after.estimates_["auc"] == pytest.approx(before.estimates_["auc"], abs=0.05)
    assert after.estimates_["recall"] is after.estimates_["precision"] is None, "they take random images"
    assert wrong.tilt_.prior < 0.5 * y[(s == 0) & (reviewed != 1)].mean(), "which is what it stands for"
    assert (after.n_labelled_, after.n_unlabelled_) == (80, 2920)


# --- what a review makes certain -----------------------------------------------------------------


def test_the_prior_stays_within_what_a_review_has_shown():
    s, reviewed = np.zeros((2, 100), np.int8)
    s[:20], reviewed[20:36], reviewed[36:60] = 1, 1, -1
    known = TrainingLabels.of(s, reviewed)
    assert known.bounds == (16 / 80, 1 - 24 / 80)
    known.check(0.2)
    for wrong in (0.19, 0.71):
        with pytest.raises(ValueError, match=r"cannot be 0\.(19|71): by the review, between 0\.2 and 0\.7 of"):
            known.check(wrong)
    TrainingLabels.of(s).check(1e-9)
    moved = known.within_review(PriorEstimate("tilt", 0.1, 0.08, 0.12))
    assert (moved.low, moved.prior, moved.high) == (0.08, 0.2, 0.2)
    assert known.known_positive_weight == 36 and known.hidden(0.3) == pytest.approx(0.3 * 80 - 16)
    for likeliest, expected in [(4.0, 4.0), (None, 5.0)]:
        hidden = AuditedHidden(low=1, high=9, likeliest=likeliest, draws=30, level=0.95)
        assert TrainingLabels.of(s, reviewed, hidden=hidden).hidden(0.3) == pytest.approx(expected)


def test_an_estimate_is_never_one_that_a_review_has_shown_to_be_wrong():
    X, s, y = planted(n=600, labelled=30, prior=0.2, seed=4)
    reviewed = np.where((y == 1) & (s == 0), 1, 0).astype(np.int8)  # every hidden one is found
    reviewed[np.flatnonzero(reviewed)[:5]] = 0
    estimate = PULinearClassifier(device="cpu", method="linear").fit(X, s, reviewed=reviewed).prior_estimate_
    share = reviewed.sum() / (s == 0).sum()
    assert estimate.prior is None, "it would be at the end of what is possible"
    assert share_right() * share <= estimate.low <= share <= estimate.high


def test_of_a_prior_that_the_labels_do_not_limit_nothing_is_stated_that_follows_from_it():
    model = PULinearClassifier(device="cpu").fit(np.ones_like(X), S)
    assert model.prior_ is None and not model.prior_estimate_.has_interval
    assert model.figures_["auc"].interval is None and model.stated_posterior(S) is None
    at_least = TrainingLabels.of(S).stated(PriorEstimate("tilt", 0.99, 0.5, MOST))
    assert (at_least.prior, at_least.low, at_least.high) == (None, 0.5, MOST)
