"""Several strata: against a search over every total and every assignment of labels, and the martingale of one draw."""

import itertools
import math

import numpy as np
import pytest
from helpers.strata import stratum
from hypothesis import given, settings
from hypothesis import strategies as st

from pucache.estimates.strata import SIDES, greatest_total, least_total


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


@pytest.mark.parametrize("error", [0.03, 0.3])
def test_one_stratum_is_searched_exactly(error):
    one = stratum(40, [(int(at % 7 == 0), 1, at + 1) for at in range(20)])
    least, greatest = one.range(1)
    kept = [
        total
        for total in range(least, greatest + 1)
        if (one.evidence_above(total) + math.log(SIDES[0])).max() < -math.log(error)
    ]
    assert greatest_total([one], error) == max(kept)
