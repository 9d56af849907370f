import itertools
import json
import math

import numpy as np
import pytest
from helpers.slow import slow
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta
from sklearn.metrics import cohen_kappa_score

from pucache.estimates.agreement import Concordance
from pucache.estimates.calibration import design_effect
from pucache.estimates.intervals import WITH_INTERVAL, Estimate, intervals_from_pu
from pucache.estimates.metrics import share_above
from pucache.estimates.priors import profile_interval
from pucache.estimates.strata import SIDES, Stratum, greatest_total, least_total

GIVEN = 0.1, (0.1, 0.1)


# --- intervals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("above", [0, 3, 12])
def test_recall_has_the_posterior_of_a_uniform_prior_with_rows_of_lower_weight(above):
    margins = np.concatenate([np.linspace(1, 2, above), np.linspace(-2, -1, 12 - above), np.linspace(-3, 3, 400_000)])
    s = np.repeat([1, 0], [12, 400_000])
    posterior = beta(0.8 * above + 1, 0.8 * (12 - above) + 1)
    expected = posterior.ppf([0.05, 0.95])
    assert intervals_from_pu(margins, s, *GIVEN, 0.0)["recall"].interval == pytest.approx(expected, abs=0.02)


def test_where_every_positive_is_called_the_ends_of_the_prior_are_those_of_precision():
    margins = np.concatenate([np.linspace(3, 4, 5000), np.linspace(1, 2, 40_000), np.linspace(-2, -1, 60_000)])
    intervals = intervals_from_pu(margins, np.repeat([1, 0], [5000, 100_000]), 0.2, (0.05, 0.3), 0.0)
    assert intervals["precision"].interval == pytest.approx((0.05 / 0.4, 0.3 / 0.4), rel=0.08)
    assert intervals["auc"].interval == pytest.approx((1, 1), abs=0.01)


def test_the_interval_of_auc_holds_that_of_a_few_hidden_positives():
    held, s = 0, np.repeat([1, 0], [60, 3006])
    for seed in range(40):
        margins = np.random.default_rng(seed).normal(size=3066) + 2 * (np.arange(3066) < 66)
        auc = intervals_from_pu(margins, s, 0.002, (0.001, 0.004), 1.0)["auc"]
        held += auc.low <= share_above(margins[60:66], margins[66:]) <= auc.high
    assert held >= 34


MARGINS = st.lists(st.floats(-5, 5), min_size=1, max_size=40)


@settings(max_examples=30)
@given(MARGINS, MARGINS, st.floats(1e-5, 0.999), st.floats(-6, 6))
def test_any_margins_have_intervals_within_zero_and_one(positive, unlabelled, prior, threshold):
    margins, s = np.array(positive + unlabelled), np.repeat([1, 0], [len(positive), len(unlabelled)])
    intervals = intervals_from_pu(margins, s, prior, (prior / 2, min(1.0, 2 * prior)), threshold)
    assert set(intervals) == set(WITH_INTERVAL)
    for one in intervals.values():
        assert 0 <= one.low <= one.value <= one.high <= 1 + 1e-12


# --- a figure as it is stated ----------------------------------------------------------------------


def test_estimates_are_cut_to_each_other_where_they_agree():
    by_labels = Estimate(0.95, 0.7, 1.0)
    assert Estimate(None, 0.1, 0.9).within(by_labels) == Estimate(0.9, 0.7, 0.9)
    assert Estimate(0.5, 0.4, 0.6).within(Estimate(0.5, 0.2, 0.7)) == Estimate(0.5, 0.4, 0.6)
    assert Estimate(None, 0.1, 0.65).within(by_labels) == Estimate(None, 0.1, 0.65), "they disagree"
    assert Estimate(0.5).within(by_labels) == Estimate(0.5)


# --- Cohen's kappa of two readers, and its interval -----------------------------------------------


@pytest.mark.parametrize("cells", [(20, 3, 5, 72), (1, 0, 0, 9), (0, 5, 5, 0), (50, 0, 0, 50), (7, 0, 3, 0)])
def test_kappa_is_that_of_scikit_learn_within_its_interval(cells):
    first = np.repeat([1, 1, 0, 0], cells)
    second = np.repeat([1, 0, 1, 0], cells)
    value, low, high = Concordance(*cells).kappa()
    assert value == pytest.approx(cohen_kappa_score(first, second))
    assert -1 <= low < high <= 1 and low <= value <= high


@pytest.mark.parametrize("cells", [(0, 0, 0, 0), (50, 0, 0, 0), (0, 0, 0, 50), (4, 1, 0, 4)])
def test_without_two_answers_or_ten_pictures_there_is_no_kappa(cells):
    concordance = Concordance(*cells)
    assert concordance.kappa() is None and "kappa" not in str(concordance)
    assert json.loads(json.dumps(concordance.as_dict()))["kappa_low"] is None


@pytest.mark.parametrize(
    ("positive", "error", "n"), [(0.1, 0.05, 40), slow(0.1, 0.2, 200), slow(0.5, 0.05, 200), slow(0.5, 0.2, 40)]
)  # each pair of values
def test_the_interval_covers_the_kappa_of_two_readers_who_err(n, error, positive):
    rng, covered = np.random.default_rng(0), 0
    right, wrong = (1 - error) ** 2, error**2
    apart = error * (1 - error)
    p = [positive * right + (1 - positive) * wrong, apart, apart, positive * wrong + (1 - positive) * right]
    said = positive * (1 - error) + (1 - positive) * error
    by_chance = said**2 + (1 - said) ** 2
    kappa = (p[0] + p[3] - by_chance) / (1 - by_chance)
    intervals = [Concordance(*rng.multinomial(n, p).tolist()).kappa() for _ in range(200)]
    covered = [one is None or one[1] <= kappa <= one[2] for one in intervals]
    assert np.mean(covered) >= 0.92


# --- Several strata: against a search over every total and every assignment of labels, and the mart---


def stratum(rows, left=()):
    """Of so many rows, and of (label, copies, number of the draw or 0) of each picture that left."""
    label, copies, draw = np.array(left, np.int64).reshape(-1, 3).T
    return Stratum(rows, label, copies, draw, np.zeros(len(label), bool))


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 40), st.data())
def test_no_draw_is_expected_to_raise_the_evidence(unknown, data):
    before = data.draw(st.integers(0, 20))
    hidden = data.draw(st.integers(0, unknown))
    alternatives = np.array(data.draw(st.lists(st.floats(0, 100), min_size=1, max_size=4)))
    expected = np.zeros(len(alternatives))
    for positive, probability in ((1, hidden / unknown), (0, 1 - hidden / unknown)):
        if probability:
            one = stratum(before + unknown, [(1, before, 0), (positive, 1, 2)])
            expected += probability * np.exp(one.log_ratios(before + hidden, alternatives, 0)[:, 0])
    assert (expected <= 1 + 1e-9).all()


@st.composite
def several_strata(draw):
    """Two or three small strata, of which single rows left in turn: labelled 1 or 0, or -1 neither."""
    rows = draw(st.lists(st.integers(2, 7), min_size=2, max_size=3))
    left, number = [[] for _ in rows], 0
    for at in draw(st.lists(st.integers(0, len(rows) - 1), max_size=12)):
        if len(left[at]) < rows[at]:
            number += 1
            left[at].append((draw(st.sampled_from([1, 0, 0, -1])), 1, number * draw(st.sampled_from([1, 1, 0]))))
    return [stratum(count, events) for count, events in zip(rows, left, strict=True)]


def log_evidence(one, total, times, sides):
    """Logarithm of E of a fully labelled stratum after the draws of all of them."""
    above, below = (np.exp(path) for path in (one.evidence_above(total), one.evidence_below(total)))
    path = np.log(sides[0] * above + sides[1] * below)
    return np.append(0.0, path)[np.searchsorted(one.draw[one.drawn], times, side="right")]


def labelled(one, positives):
    """The stratum with some of its pictures without a label positive, and the others negative."""
    label = one.label.copy()
    label[label < 0] = positives
    return stratum(one.rows, np.stack([label, one.copies, one.draw], 1))


def possible_sums(strata, error, sides):
    """Every sum of totals that is not excluded, whatever those without a label are."""
    times = np.sort(np.concatenate([one.draw[one.drawn] for one in strata]))
    paths = []
    for one in strata:
        of_one = {}
        for positives in itertools.product((0, 1), repeat=int((one.label < 0).sum())):
            whole = labelled(one, positives)
            for total in range(whole.range(0)[0], whole.range(0)[1] + 1):
                of_one.setdefault(total, []).append(log_evidence(whole, total, times, sides))
        paths.append({total: np.unique(kept, axis=0) for total, kept in of_one.items()})
    for totals in itertools.product(*paths):
        of_totals = (paths[at][total] for at, total in enumerate(totals))
        if any(np.max(sum(path), initial=0.0) < -math.log(error) for path in itertools.product(*of_totals)):
            yield sum(totals)


@settings(max_examples=60, deadline=None)
@given(several_strata(), st.sampled_from([0.1, 0.3, 0.6]))
def test_limits_of_several_strata_exclude_no_possible_sum_for_any_labels(strata, error):
    assert greatest_total(strata, error) >= max(possible_sums(strata, error, SIDES), default=0)
    assert least_total(strata, error) <= min(possible_sums(strata, error, SIDES[::-1]), default=99)


def test_limits_of_several_strata_are_nearly_those_of_a_search():
    rng, slack = np.random.default_rng(0), []
    for _ in range(40):
        rows, events, number = (7, 6), [[], []], 0
        for at in rng.integers(2, size=8):
            if len(events[at]) < rows[at]:
                number += 1
                events[at].append((int(rng.random() < 0.35), 1, number))
        strata = [stratum(count, left) for count, left in zip(rows, events, strict=True)]
        sums = list(possible_sums(strata, 0.3, SIDES))
        slack.append(greatest_total(strata, 0.3) - max(sums))
    assert min(slack) >= 0 and np.mean(slack) < 0.2


# --- the design effect of groups, and what it does to intervals ------------------------------------

ONE_FOLD = np.zeros(960, np.int64)


def pile():
    """Margins and labels of 60 labelled positives and 900 unlabelled rows, 100 of them positive."""
    draw = np.random.default_rng(0)
    margins = draw.normal(size=960) + 2.5 * (np.arange(960) < 160)
    return margins.astype(np.float32), (np.arange(960) < 60).astype(np.int8)


def test_rows_of_a_group_that_are_independent_count_each():
    margins, s = pile()
    groups = [np.random.default_rng(k).integers(240, size=960) for k in range(20)]
    effects = [design_effect(margins, s, None, group, ONE_FOLD) for group in groups]
    assert np.mean(effects) < 1.25


def test_a_level_that_the_rows_of_a_fold_share_is_none_of_their_groups():
    margins, s = pile()
    fold = np.arange(960) % 5
    groups = 5 * (np.arange(960) // 25) + fold
    levels = margins + np.linspace(-2, 2, 5, dtype=np.float32)[fold]
    assert design_effect(levels, s, None, groups, fold) < 0.7 * design_effect(levels, s, None, groups, ONE_FOLD)


@pytest.mark.parametrize("copies", [1, 7])
def test_copies_count_as_often_as_there_are_groups_of_them(copies):
    rows = [part.repeat(copies) for part in (*pile(), np.arange(960), ONE_FOLD)]
    assert design_effect(*rows[:2], None, *rows[2:]) == pytest.approx(copies, rel=0.02)


def test_intervals_of_copies_are_about_those_of_single_rows():
    margins, s = pile()
    copies = np.repeat(margins, 5), np.repeat(s, 5)
    single, grouped = profile_interval(margins, s), profile_interval(*copies, design_effect=5)
    naive = profile_interval(*copies)
    assert (grouped.low, grouped.high) == pytest.approx((single.low, single.high), rel=0.1)
    assert naive.high - naive.low < 0.8 * (single.high - single.low)
    at = (0.11, (0.09, 0.14), 1.0)
    recall = intervals_from_pu(*copies, *at, design_effect=5)["recall"]
    assert recall.interval == pytest.approx(intervals_from_pu(margins, s, *at)["recall"].interval, abs=0.03)
