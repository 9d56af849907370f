import math

import numpy as np
import pytest
from helpers.margins import gaussians
from helpers.planted import two_kinds
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu

from pucache import PULabels, PULinearClassifier
from pucache.estimates import scar
from pucache.estimates.calibration import LEAST, MOST, Tilt, deviance_within_pile, fit_tilt, profile_ends, profile_prior
from pucache.estimates.priors import ERROR_BELOW, MODEL_ERROR, deviance_limit, estimate, profile_interval

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("ties", [False, True])
def test_weights_count_rows(ties):
    margins, s = gaussians(0.3, 120, 400, 1.2)
    margins = margins.round(1) if ties else margins
    counts = np.random.default_rng(4).integers(0, 4, len(s))
    weighted = estimate(margins, s, counts)
    assert weighted == pytest.approx(estimate(margins.repeat(counts), s.repeat(counts)), rel=2e-3)  # up to a tolerance
    assert weighted != pytest.approx(estimate(margins, s), abs=1e-4)
    assert weighted == pytest.approx(estimate(margins, s, counts.astype(np.uint8)), rel=1e-6)
    assert estimate(margins, s, np.ones(len(s))) == estimate(margins, s)


@settings(max_examples=40)
@example([(0.0, False), (float(np.float32(1e-17)), False), (-1.0, False)])
@given(st.lists(st.tuples(st.floats(-1e6, 1e6, width=32), st.booleans()), min_size=2, max_size=12))
def test_estimates_are_held_within_bounds_whatever_the_margins(rows):
    margins = np.array([margin for margin, _ in rows], np.float32)
    s = np.array([positive for _, positive in rows], np.int8)
    s[:2] = 0, 1
    assert LEAST <= estimate(margins, s) <= MOST


# --- intervals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("prior", "n_p"), [(0.01, 20), (0.1, 40), (0.1, 500), (0.6, 100)])
def test_the_interval_is_the_profile_s_widened_by_the_model_error(prior, n_p):
    margins, s = gaussians(prior, n_p, 3000, 1.2)
    found = profile_interval(margins, s)
    assert found.prior == pytest.approx(estimate(margins, s), rel=1e-6)
    assert (found.method, found.draws, found.level, found.has_interval) == ("tilt", 0, 0.9, True)
    limit = deviance_limit(n_p)
    centre, priors, deviance = profile_prior(margins, s, depth=limit)
    ends = profile_ends(priors, deviance_within_pile(centre, priors, deviance, (s == 0).sum()), limit)
    centre, sides = math.log(found.prior / (1 - found.prior)), ((-1, ERROR_BELOW), (1, MODEL_ERROR))
    for (sign, error), end, got in zip(sides, ends, (found.low, found.high), strict=True):
        far = centre + sign * math.hypot(math.log(end / (1 - end)) - centre, error * math.sqrt(limit))
        assert got == pytest.approx(1 / (1 + math.exp(-far)), rel=1e-6)


def test_the_limit_of_the_deviance_is_student_s_t_of_the_labels():
    assert deviance_limit(10**9) == pytest.approx(2.7055, abs=1e-4)  # of the chi-squared distribution
    assert deviance_limit(10) == pytest.approx(2.3534**2, rel=1e-3)  # these from a table, 3 degrees of freedom
    assert deviance_limit(10, 0.5) == pytest.approx(0.7649**2, rel=1e-3)
    assert deviance_limit(1) == deviance_limit(8) and np.isfinite(deviance_limit(0.5))


def test_where_nothing_excludes_that_no_positive_is_hidden_the_interval_is_one_sided():
    margins, s = gaussians(0.0, 30, 500, 2.0)
    found = profile_interval(margins, s)
    assert found.low == LEAST < found.high < 0.1
    limit = deviance_limit(30, 0.95)  # all misses are above: at 0.9 of 51 piles with 10 to 20 labels one in ten
    centre, priors, deviance = profile_prior(margins, s, depth=limit)
    end = profile_ends(priors, deviance_within_pile(centre, priors, deviance, (s == 0).sum()), limit)[1]
    assert end < found.high < 1.1 * end


# --- scar -----------------------------------------------------------------------------------------

RARE = Tilt(alpha=0.0, slope=4.0, prior=0.1)  # half sure at a margin of 0.55


def checked(X, s, **options):
    model = PULinearClassifier(method="linear", penalty=0.01, device="cpu").fit(X, s)
    tilt = fit_tilt(model.held_out_margins_, s, prior=model.prior_)
    return scar.check_scar(X, PULabels.of(s), model.held_out_margins_, tilt, **options)


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
    found = scar.check_scar(X, PULabels.of(s), np.full(700, margin), RARE)
    assert found.p_value < 0.01 and found.auc > 0.55
    assert found.explained == pytest.approx(0.5 + 0.4 / 2) and found.verdict == "explained"


@pytest.mark.parametrize(("labelled", "found"), [(scar.LEAST - 1, 50), (50, scar.LEAST - 1), (0, 0)])
def test_too_few_likely_positives_of_either_kind_are_not_compared(labelled, found):
    s = (np.arange(200) < 60).astype(np.int8)
    margins = np.full(200, -9.0)
    margins[:labelled] = margins[60 : 60 + found] = 9.0
    got = scar.check_scar(np.eye(200, dtype=np.float32), PULabels.of(s), margins, RARE)
    assert (got.n_labelled, got.n_likely, got.auc, len(got.rows_by_likeness)) == (labelled, found, None, 0)
    assert got.verdict == ("none found" if labelled > scar.LEAST else "too few")
    assert ("hardly any unlabelled image looks like the labelled" if labelled > scar.LEAST else "too few") in str(got)


def test_known_negatives_and_copies_of_labelled_positives_are_not_among_the_found():
    X = np.random.default_rng(0).standard_normal((100, 4)).astype(np.float32)
    s, reviewed, group = (np.arange(100) < 40).astype(np.int8), np.zeros(100, np.int8), np.arange(100)
    reviewed[40:50], group[50:55], reviewed[60:70] = -1, 0, 1
    group[10:15], group[80:90] = 10, 80  # pictures that were labelled, or found, several times count once
    got = scar.check_scar(X, PULabels(s, reviewed), np.full(100, 9.0), RARE, group=group)
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
    auc, error, _, likeness = scar.two_sample(X, first, np.random.default_rng(0), permutations=400)
    assert likeness == pytest.approx(share)
    by_chance = [by_hand(X, np.random.default_rng(n).permutation(first))[1] for n in range(60)]
    assert auc == pytest.approx(np.clip(expected - np.mean(by_chance) + 0.5, 0, 1), abs=0.03)
    assert error == pytest.approx(np.std(by_chance), rel=0.3)


def test_equal_rows_are_told_by_nothing():
    """Not by their places either: the rows of one sample stand before those of the other."""
    first = np.arange(60) < 20
    for X in (np.ones((60, 3)), np.zeros((60, 3)), np.repeat(np.eye(3), 20, axis=0)[np.arange(60) % 3 * 20]):
        found = [scar.two_sample(X, first, np.random.default_rng(seed), permutations=99) for seed in range(20)]
        assert np.mean([auc for auc, *_ in found]) == pytest.approx(0.5, abs=0.06)
        assert sum(p_value <= 0.01 for _, _, p_value, _ in found) <= 2
