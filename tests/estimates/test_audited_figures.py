import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pucache.estimates.audited_figures import ReviewedPile
from pucache.estimates.audited_prior import AuditedHidden, AuditedPrior, share_right
from pucache.estimates.calibration import Tilt
from pucache.estimates.intervals import Estimate
from pucache.estimates.metrics import with_labels

TILT = Tilt(alpha=-1.0, slope=2.0, prior=0.2)
FIGURES = ("recall", "precision", "f1", "false_positive_rate", "accuracy")


def hidden(low, high, likeliest=None, **rest):
    return AuditedHidden(low=low, high=high, likeliest=likeliest, draws=100, level=0.95, **rest)


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
