"""The limit that assumes a ranking no worse than chance: brute force, monotony and coverage over all orders."""

import math
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pucache.reviewing.audit import audit_entries
from pucache.reviewing.audit_log import looks_of, replay
from pucache.reviewing.hidden_interval import FACTORS, RUNS, Looks
from pucache.reviewing.log import Choice, Entry, Stream

POSITIVE, NEGATIVE, SKIP, UNDONE = Choice


def entries_of(steps):
    """Log of (row, stream, choice or None); each row is a picture of its own."""
    return [
        Entry(
            serial=serial,
            row=row,
            group=row,
            copies=1,
            stream=stream,
            choice=choice,
            unknown=0,
            positives=0,
            time=0.0,
            request=None if choice is None else str(serial),
        )
        for serial, (row, stream, choice) in enumerate(steps, 1)
    ]


def looks(steps, rows, since=0):
    entries = entries_of(steps)
    last = {entry.group: entry.choice for entry in entries if entry.choice is not None}
    return looks_of(entries, rows, last, since)


@st.composite
def some_looks(draw):
    m = draw(st.integers(1, 30))
    positive = np.array(draw(st.lists(st.booleans(), min_size=m, max_size=m)))
    before = np.append(0, np.cumsum(positive)[:-1]).astype(float)
    runs = draw(st.lists(st.sampled_from([0.0, 5.0, 30.0, 100.0, 400.0, np.inf]), min_size=m, max_size=m))
    left = draw(st.integers(0, 40))
    return Looks(positive, m + left - np.arange(m, dtype=float), before, np.array(runs), left, int(positive.sum()))


def evidence_by_hand(of, total):
    """Mean of M(K) after each look."""
    paths = []
    for factor in FACTORS:
        for run in RUNS:
            path, product = [], 1.0
            for y, n, f, since in zip(of.positive, of.unknown, of.positives_before, of.run, strict=True):
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
        steps = [(row, Stream.RANKED, POSITIVE if y else NEGATIVE) for row, y in enumerate(truth[:-1])]
        mean += Fraction(float(np.exp(looks(steps, rows).evidence(positives)[-1])))
    assert float(mean / len(truths)) <= 1.0 + 1e-9  # below it where all rows that are left are positive


def test_looks_are_first_decisions_and_random_images_when_they_are_drawn():
    ranked, audit, recheck = Stream.RANKED, Stream.AUDIT, Stream.RECHECK
    steps = [
        (0, ranked, POSITIVE),
        (1, audit, None),
        (2, ranked, NEGATIVE),
        (1, audit, NEGATIVE),
        (3, ranked, SKIP),
        (0, recheck, None),
        (0, recheck, POSITIVE),
        (4, ranked, POSITIVE),
        (4, ranked, UNDONE),
        (4, ranked, NEGATIVE),
        (5, audit, None),
    ]
    of = looks(steps, 20)
    assert of.positive.tolist() == [True, False, False, True, False]
    assert of.unknown.tolist() == [20, 19, 18, 17, 16] and of.positives_before.tolist() == [0, 1, 1, 1, 2]
    assert of.run.tolist() == [0, np.inf, 0, 2, 2] and (of.left, of.found) == (15, 2)
    later = looks(steps, 20, since=3)
    assert later.unknown.tolist() == [17, 16] and later.found == 2


@pytest.mark.parametrize("ranking", ["chance", "negatives first"])
def test_the_limit_holds_by_chance_and_breaks_where_negatives_come_first(ranking):
    wrong, rows, positives = 0, 300, 60
    for seed in range(60):
        rng = np.random.default_rng(seed)
        order = rng.permutation(rows)
        if ranking != "chance":
            order = np.argsort((np.arange(rows) < positives) + 0.3 * rng.random(rows))
        steps = [(row, Stream.RANKED, POSITIVE if row < positives else NEGATIVE) for row in order[:150].tolist()]
        wrong += looks(steps, rows).greatest_total(0.05) < positives
    assert wrong <= 7 if ranking == "chance" else wrong == 60


def test_the_words_say_what_is_assumed():
    steps = [(row, Stream.RANKED, POSITIVE if row < 30 else NEGATIVE) for row in range(400)]
    audited = audit_entries(entries_of(steps), [5000])
    assert audited.hidden_high == 4600 and 0 < audited.chance_high < 200
    (said,) = (one for one in audited.statements() if "chance" in one)
    assert said.startswith("If the ranking shows positives at least as often as chance would: at most ")
    assert "90 % would take about" in said or "90 % would take more" in said
    assert audited._chance_outlook(0)[0] - audited.found == audited.chance_high
    assert audited._chance_outlook(1000)[0] < audited.found + audited.chance_high
    nothing = audit_entries([], [10])
    assert nothing.statements() == [nothing.sentence()] and nothing.chance_high == 10
    every = audit_entries(entries_of([(row, Stream.RANKED, NEGATIVE) for row in range(10)]), [10])
    assert every.chance_high == 0 and every.statements()[0].endswith("every image is decided.")
    assert replay(entries_of(steps), [5000]).labels[3] is POSITIVE
