"""The limit that assumes a ranking no worse than chance: brute force, monotony and coverage over all orders."""

import math
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from helpers.reviews import Log
from hypothesis import given, settings
from hypothesis import strategies as st

from pucache.estimates.looks import FACTORS, RUNS, Looks
from pucache.reviewing.log import Choice, Stream

POSITIVE, NEGATIVE, SKIP, UNDONE = Choice


@st.composite
def some_looks(draw):
    m = draw(st.integers(1, 30))
    positive = np.array(draw(st.lists(st.booleans(), min_size=m, max_size=m)))
    before = np.append(0, np.cumsum(positive)[:-1]).astype(float)
    runs = draw(st.lists(st.sampled_from([0.0, 5.0, 30.0, 100.0, 400.0, np.inf]), min_size=m, max_size=m))
    left = draw(st.integers(0, 40))
    return Looks(
        positive, m + left - np.arange(m, dtype=float), before, np.array(runs), positive, left, int(positive.sum())
    )


def evidence_by_hand(of, total):
    """Mean of M(K) after each look."""
    paths = []
    for factor in FACTORS:
        for run in RUNS:
            path, product = [], 1.0
            for y, n, f, since in zip(of.positive, of.unknown, of.before, of.run, strict=True):
                p = (total - f) / n
                if since >= run:
                    product *= factor if y else (1 - factor * p) / (1 - p)
                path.append(product)
            paths.append(path)
    return np.mean(paths, axis=0)


@settings(deadline=None)
@given(some_looks(), st.floats(0.01, 0.9))
def test_the_limit_is_that_of_a_search_over_every_total_and_evidence_rises_with_it(of, error):
    totals = range(of.found, of.found + of.left + 1)
    with np.errstate(all="ignore"):
        evidence = [evidence_by_hand(of, total).max() for total in totals]
    for total, by_hand in zip(totals, evidence, strict=True):
        assert math.exp(of.evidence(total).max()) == pytest.approx(by_hand, rel=1e-9)
    assert (np.diff(evidence) >= -1e-9).all()
    kept = [total for total, value in zip(totals, evidence, strict=True) if max(1.0, value) < 1 / error]
    assert of.greatest_total(error) == max(kept, default=of.found)


@pytest.mark.parametrize(("rows", "positives"), [(6, 1), (6, 3), (7, 2)])
def test_no_order_of_chance_raises_the_mean_of_the_evidence(rows, positives):
    truths = set(permutations([True] * positives + [False] * (rows - positives)))
    mean = Fraction(0)
    for truth in truths:
        log = Log(rows)
        for row, positive in enumerate(truth[:-1]):
            log.decide(row, POSITIVE if positive else NEGATIVE)
        mean += Fraction(float(np.exp(log.history().looks().evidence(positives)[-1])))
    assert float(mean / len(truths)) <= 1.0 + 1e-9  # below it where all rows that are left are positive


def test_looks_are_first_decisions_and_random_images_when_they_are_drawn():
    log = Log(20).decide(0, POSITIVE).draw(1).decide(2, NEGATIVE).decide(1, NEGATIVE).decide(3, SKIP)
    log.draw(0, POSITIVE, stream=Stream.RECHECK)
    log.decide(4, POSITIVE).decide(4, UNDONE).decide(4, NEGATIVE).draw(5)
    of = log.history().looks()
    assert of.positive.tolist() == [True, False, False, True, False]
    assert of.unknown.tolist() == [20, 19, 18, 17, 16] and of.before.tolist() == [0, 1, 1, 1, 2]
    assert of.run.tolist() == [0, np.inf, 0, 2, 2] and (of.left, of.found) == (15, 2)
    later = log.history().looks(since=3)
    assert later.unknown.tolist() == [17, 16] and later.found == 2
