import numpy as np
import pytest
from helpers.planted import two_kinds
from scipy.stats import mannwhitneyu

from pucache.estimates.calibration import Tilt, fit_tilt
from pucache.estimates.scar import LEAST, check_scar, two_sample
from pucache.labels.labels import PULabels
from pucache.training.sklearn_classifier import PULinearClassifier

pytestmark = pytest.mark.usefixtures("one_thread")
RARE = Tilt(alpha=0.0, slope=4.0, prior=0.1)  # half sure at a margin of 0.55


def checked(X, s, **options):
    model = PULinearClassifier(device="cpu").fit(X, s)
    tilt = fit_tilt(model.held_out_margins_, s, prior=model.prior_)
    return check_scar(X, PULabels.of(s), model.held_out_margins_, tilt, **options)


# --- the verdict -------------------------------------------------------------------------------


def test_a_fair_sample_of_the_positives_is_not_told_from_those_found():
    X, s, _ = two_kinds()
    found = checked(X, s)
    assert found.verdict == "alike" and abs(found.auc - 0.5) < 0.08 and found.p_value > 0.01
    assert found.n_labelled > 100 and found.n_likely > 300


def test_labelled_positives_mostly_of_one_kind_differ_from_those_found():
    X, s, y = two_kinds(side=0.4)
    found = checked(X, s)
    assert found.verdict == "differ" and found.auc > 0.6 and found.p_value < 0.01
    apart, kind = found.rows_by_likeness, np.sign(X[:, 1])
    assert kind[apart[:50]].mean() > 0.8 and kind[apart[-50:]].mean() < -0.8
    assert y[apart].mean() > 0.9 and len(np.unique(apart)) == len(apart)


def test_negatives_among_the_found_are_not_held_against_the_labels():
    """A fair sample of labels, and found rows of which two in five are negatives that are easily told."""
    X = np.random.default_rng(0).standard_normal((700, 8)).astype(np.float32)
    X[500:, 0] += 8
    s = (np.arange(700) < 200).astype(np.int8)
    margin = RARE.margin(0.6)
    found = check_scar(X, PULabels.of(s), np.full(700, margin), RARE)
    assert found.p_value < 0.01 and found.auc > 0.55
    assert found.explained == pytest.approx(0.5 + 0.4 / 2) and found.verdict == "explained"


@pytest.mark.parametrize(("labelled", "found"), [(LEAST - 1, 50), (50, LEAST - 1), (0, 0)])
def test_too_few_likely_positives_of_either_kind_are_not_compared(labelled, found):
    s = (np.arange(200) < 60).astype(np.int8)
    margins = np.full(200, -9.0)
    margins[:labelled] = margins[60 : 60 + found] = 9.0
    got = check_scar(np.eye(200, dtype=np.float32), PULabels.of(s), margins, RARE)
    assert (got.n_labelled, got.n_likely, got.auc, len(got.rows_by_likeness)) == (labelled, found, None, 0)
    assert got.verdict == ("none found" if labelled > LEAST else "too few")
    assert ("hardly any unlabelled image looks like the labelled" if labelled > LEAST else "too few") in str(got)


def test_known_negatives_and_copies_of_labelled_positives_are_not_among_the_found():
    X = np.random.default_rng(0).standard_normal((100, 4)).astype(np.float32)
    s, reviewed, group = (np.arange(100) < 40).astype(np.int8), np.zeros(100, np.int8), np.arange(100)
    reviewed[40:50], group[50:55], reviewed[60:70] = -1, 0, 1
    group[10:15], group[80:90] = 10, 80  # pictures that were labelled, or found, several times count once
    got = check_scar(X, PULabels(s, reviewed), np.full(100, 9.0), RARE, group=group)
    assert (got.n_labelled, got.n_likely) == (36, 36)
    left_out = [*range(11, 15), *range(40, 55), *range(81, 90)]
    assert not np.isin(left_out, got.rows_by_likeness).any() and np.isin(np.arange(60, 70), got.rows_by_likeness).all()


# --- the test ----------------------------------------------------------------------------------


def by_hand(X, first):
    """AUC of the share of `first` among the sqrt(n) nearest rows, one row at a time."""
    Z = X - X.mean(0)
    Z /= np.linalg.norm(Z, axis=1, keepdims=True)
    k, share = round(len(X) ** 0.5), []
    for row in range(len(X)):
        near = np.argsort(-(Z @ Z[row]), kind="stable")
        share.append(first[near[near != row][:k]].mean())
    share = np.array(share)
    return share, mannwhitneyu(share[first], share[~first]).statistic / (first.sum() * (~first).sum())


@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_the_auc_is_that_of_the_nearest_neighbours_counted_one_by_one(shift):
    X = np.random.default_rng(1).standard_normal((90, 5))
    first = np.arange(90) < 30
    X[first, 2] += shift
    share, expected = by_hand(X, first)
    auc, error, _, likeness = two_sample(X, first, np.random.default_rng(0), permutations=400)
    assert likeness == pytest.approx(share)
    by_chance = [by_hand(X, np.random.default_rng(n).permutation(first))[1] for n in range(60)]
    assert auc == pytest.approx(np.clip(expected - np.mean(by_chance) + 0.5, 0, 1), abs=0.03)
    assert error == pytest.approx(np.std(by_chance), rel=0.3)


def test_equal_rows_are_told_by_nothing():
    """Not by their places either: the rows of one sample stand before those of the other."""
    first = np.arange(60) < 20
    for X in (np.ones((60, 3)), np.zeros((60, 3)), np.repeat(np.eye(3), 20, axis=0)[np.arange(60) % 3 * 20]):
        found = [two_sample(X, first, np.random.default_rng(seed), permutations=99) for seed in range(20)]
        assert np.mean([auc for auc, *_ in found]) == pytest.approx(0.5, abs=0.06)
        assert sum(p_value <= 0.01 for _, _, p_value, _ in found) <= 2
