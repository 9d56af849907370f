import numpy as np
import pytest
from helpers.planted import planted
from hypothesis import given
from hypothesis import strategies as st

from pucache import PULinearClassifier
from pucache.devices import choose_device
from pucache.estimates.audited_prior import (
    ALONE,
    COMBINED,
    CONTRADICTED,
    AuditedHidden,
    AuditedPrior,
    ReviewedPile,
    share_right,
)
from pucache.estimates.calibration import LEAST, Tilt
from pucache.estimates.intervals import LEVEL, Estimate
from pucache.estimates.metrics import with_labels
from pucache.estimates.priors import PriorEstimate
from pucache.estimates.review_weights import TrainingLabels
from pucache.estimates.share_of_new_images import estimate_share
from pucache.labels.labels import PULabels
from pucache.training.sklearn_classifier import linear_margins
from pucache.training.training_set import TrainingRows, TrainingSet


def hidden(low, high, likeliest=None, **rest):
    return AuditedHidden(low=low, high=high, likeliest=likeliest, draws=100, level=0.95, **rest)


def test_the_prior_counts_known_and_hidden_positives():
    audited = AuditedPrior(hidden(10, 60, 30.0), 20, 1000)
    assert (audited.low, audited.likeliest, audited.high) == (0.03, 0.05, 0.08)
    assert AuditedPrior(hidden(0, 5), 0, 1000).low == LEAST and AuditedPrior(hidden(0, 5), 0, 1000).likeliest is None
    assert [audited.estimate(prior).prior for prior in (0.01, 0.05, 0.2)] == [0.03, 0.05, 0.08]
    estimate = audited.estimate(0.05)
    assert estimate == PriorEstimate(method="audit", prior=0.05, low=0.03, high=0.08, level=0.95, draws=100)


def profile(positives, draws, rows):
    """Deviance of so many positives among random draws from a pile, as if with replacement."""
    numbers = np.arange(positives, rows - draws + positives + 1.0)
    share = np.clip(numbers / rows, 1e-9, 1 - 1e-9)
    lost = -(positives * np.log(share) + (draws - positives) * np.log(1 - share))
    return numbers, 2 * (lost - lost.min())


LABELS = PriorEstimate("tilt", 0.03, 0.02, 0.045)


def combined(positives, draws, *, low=0, high=2900, labels=LABELS, **rest):
    both = AuditedPrior(hidden(low, high, **{"profile": profile(positives, draws, 3000), **rest}), 0, 3000)
    return both.combined(labels, has_points=True)


def test_an_estimate_at_the_least_possible_prior_does_not_contradict_the_images():
    at_bound = PriorEstimate("tilt", 48 / 2970 + 1e-8, 48 / 2970 + 1e-8, 0.0325)
    both, sources = AuditedPrior(hidden(0, 2293, profile=profile(0, 4, 2293)), 48, 2970).combined(
        at_bound, has_points=True
    )
    assert sources == COMBINED and both.likeliest == pytest.approx(48 / 2970) and both.high < 0.034


@pytest.mark.parametrize(("positives", "draws"), [(0, 2), (0, 30), (3, 100), (12, 400), (60, 2000)])
def test_more_random_images_that_agree_never_widen_the_interval(positives, draws):
    both, sources = combined(positives, draws)
    assert sources == COMBINED and both.high / both.low <= 0.045 / 0.02 + 0.01
    assert both.low <= both.likeliest <= both.high and both.hidden.level == LEVEL


def test_where_sources_contradict_each_other_the_random_images_stand():
    both, sources = combined(40, 200, low=400, high=900)
    assert sources == CONTRADICTED and (both.low, both.high) == (400 / 3000, 900 / 3000)
    alone, sources = combined(0, 2, labels=None)
    assert sources == ALONE and alone.high == 2900 / 3000


def test_images_without_a_label_and_rejected_ones_move_the_ends():
    both, _ = combined(3, 100)
    assert combined(3, 100, without_label=30)[0].high == pytest.approx(both.high + 0.01)
    doubted = AuditedPrior(hidden(0, 60, accepted_right=0.8), 100, 1000)
    assert (doubted.low, doubted.high) == (0.08, 0.16)


def test_one_accepted_image_in_twenty_may_be_wrong_until_as_many_were_accepted_again():
    assert 0.85 < share_right() < share_right(30) < 0.95 < share_right(200) < 1
    assert share_right(30, 4) < share_right(30, 1) < share_right(30)


def test_after_a_wrong_answer_the_interval_of_the_labels_stands_as_far_as_the_audit_allows():
    both, sources = combined(3, 100, low=0, high=900, profile=None, accepted_right=0.5)
    assert sources == COMBINED and both.high == pytest.approx(0.045, abs=1e-3)
    assert combined(3, 100, low=400, high=900, profile=None)[1] == CONTRADICTED


# --- models --------------------------------------------------------------------------------------


def trained(X, s, reviewed, audit, prior=None):
    training = TrainingLabels.of(s, reviewed, hidden=audit)
    model = PULinearClassifier(prior=prior, method="linear", penalty=0.01)
    return model.train(TrainingSet(TrainingRows(X, choose_device("cpu")), PULabels(s, reviewed), training))


def fitted(labels, *, likeliest, prior=None):
    X, s, y = planted(n=900, labelled=labels, prior=0.2, seed=4)
    reviewed = np.zeros(len(s), np.int8)
    rows = np.flatnonzero(s == 0)[:120]
    reviewed[rows] = 2 * y[rows] - 1
    here = int(((y == 1) & (s == 0) & (reviewed == 0)).sum())
    audit = hidden(here - 40, here + 40, None if likeliest is None else here + likeliest)
    return trained(X, s, reviewed, audit, prior), float(y[s == 0].mean())


@pytest.mark.parametrize("labels", [4, 60])
def test_prior_and_figures_of_a_model_rest_on_the_audit_however_few_labels_there_are(labels):
    model, share = fitted(labels, likeliest=0)
    assert model.figures_.is_audited and model.prior_ == pytest.approx(share)
    estimate = model.prior_estimate_
    assert estimate.prior == pytest.approx(share) and estimate.low < share < estimate.high
    assert model.figures_.note == ""
    assert all(model.estimates_[f"{name}_low"] < model.estimates_[name] for name in ("recall", "precision", "f1"))


def test_without_a_likeliest_number_there_is_an_interval_and_a_prior_that_is_given_stays():
    model, _ = fitted(4, likeliest=None)
    estimate = model.prior_estimate_
    assert model.prior_ is None and estimate.prior is None and estimate.low <= model.tilt_.prior <= estimate.high
    assert model.estimates_["recall"] is None and model.estimates_["recall_low"] < model.estimates_["recall_high"]
    model, _ = fitted(60, likeliest=0, prior=0.3)
    assert model.prior_ == 0.3 and not model.figures_.is_audited and model.estimates_["labels"] == 60


def test_once_most_are_found_what_a_review_confirmed_counts_as_labels():
    X, s, y = planted(n=900, labelled=12, prior=0.06, seed=4)
    for found, has_posterior in ((1.0, True), (0.2, False)):
        rows = np.flatnonzero((s == 0) & (y == 1))
        reviewed = np.where((s == 0) & (y == 0) & (np.arange(900) % 3 == 0), -1, 0).astype(np.int8)
        confirmed = rows[: round(found * len(rows))]
        reviewed[confirmed] = 1
        left = len(rows) - len(confirmed)
        model = trained(X, s, reviewed, hidden(left // 2, 2 * left + 20))
        count = model.figures_.labels
        assert count.has_points == has_posterior and count.labels == (12 + len(confirmed) if has_posterior else 12)
        new, _, of_new = planted(n=400, labelled=1, prior=0.06, seed=5)
        margins = linear_margins(new, model.fold_coef_, model.fold_intercept_)
        share = estimate_share(model.pile_margins_, model.tilt_.prior, margins)
        if has_posterior:
            assert share.low <= of_new.mean() <= share.high and share.prior is not None


# --- figures -------------------------------------------------------------------------------------

TILT = Tilt(alpha=-1.0, slope=2.0, prior=0.2)
FIGURES = ("recall", "precision", "f1", "false_positive_rate", "accuracy")


def reviewed(margins, decided, audit):
    audited = AuditedPrior(audit, int((decided == 1).sum()), len(decided))
    return ReviewedPile(margins, decided, audited, audited.likeliest or audited.low, TILT)


@given(st.integers(0, 2**32 - 1), st.integers(0, 40), st.integers(0, 3))
def test_figures_of_the_pile_hold_wherever_hidden_positives_and_wrong_answers_are(seed, rechecks, missed):
    draw = np.random.default_rng(seed)
    n = int(draw.integers(5, 60))
    y = (draw.random(n) < draw.random()).astype(np.int8)
    decided = np.where(draw.random(n) < draw.random(), 2 * y - 1, 0)
    called = draw.normal(size=n) + draw.normal() * y > 0
    share = 1 - share_right(rechecks, min(missed, rechecks))
    accepted, rejected = (np.flatnonzero((decided == value) & called) for value in (1, -1))
    wrong = accepted[: int(share * len(accepted))]
    y[wrong] = 0
    overlooked = rejected[: int(share / (1 - share) * (1 - share) * len(accepted))]
    y[overlooked] = 1
    here = int(((y == 1) & (decided == 0)).sum())
    low, high = here - int(draw.integers(0, here + 1)), here + int(draw.integers(0, n))
    audit = hidden(low, high, float(low), rechecks=rechecks, missed=min(missed, rechecks))
    stated = reviewed(draw.normal(size=n), decided, audit).figures(called)
    true = with_labels(y, called.astype(float), called.astype(int))
    true["false_positive_rate"] = float(called[y == 0].mean()) if (y == 0).any() else 0.0
    for name in FIGURES if 0 < y.sum() < n and called.any() else ():
        assert stated[name].low - 1e-9 <= true[name] <= stated[name].high + 1e-9, name
    assert all(one.low <= one.value <= one.high for one in stated.values())


def test_hidden_positives_are_placed_by_posteriors_that_sum_to_their_number():
    margins, pile = np.linspace(-3, 3, 400), reviewed(np.linspace(-3, 3, 400), np.zeros(400, int), hidden(0, 400, 80.0))
    everywhere = pile.figures(margins > -9)
    assert everywhere["precision"].value == pytest.approx(80 / 400) and everywhere["recall"].value == pytest.approx(1)
    above = pile.figures(margins > 1)
    assert 0.5 < above["recall"].value < 1 and above["recall"].low == 0 and above["precision"].high == 1


def test_figures_of_new_images_are_the_same_at_each_call_and_cut_to_the_labels_recall():
    margins = np.linspace(-1, 1, 200)
    pile = reviewed(margins, np.repeat([0, -1, 1], [120, 40, 40]), hidden(0, 12, 4.0))
    first, again = (pile.of_new_images(margins > 0, Estimate(0.9, 0.8, 0.95), 1.0) for _ in range(2))
    assert first == again and 0.8 <= first["recall"].low <= first["recall"].high <= 0.95
    grouped = pile.of_new_images(margins > 0, Estimate(), 4.0)
    for name in ("recall", "precision", "f1"):
        assert grouped[name].low < first[name].low <= first[name].value <= first[name].high


@pytest.mark.parametrize("right", [1.0, 0.95])
def test_precision_of_new_images_holds_with_wrong_answers_and_hidden_positives(right):
    """One answer in twenty is wrong at most; rows that are called and new images are alike."""
    held, draw = [], np.random.default_rng(0)
    for _ in range(200):
        y = draw.random(80) < 0.8
        decided = np.where(draw.random(80) < 0.9, np.where(y ^ (draw.random(80) > right), 1, -1), 0)
        audit = hidden(0, 30, 5.0, rechecks=100, missed=round(100 * (1 - right)))
        pile = reviewed(np.zeros(500), np.append(decided, np.zeros(420, int)), audit)
        low, high = pile.of_new_images(np.arange(500) < 80, Estimate(), 1.0)["precision"].interval
        held.append(low <= 0.8 <= high)
    assert np.mean(held) > 0.85
