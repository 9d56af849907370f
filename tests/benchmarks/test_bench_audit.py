"""Simulated reviews for the audit: their check of each draw is that of audit(), and the exact interval is exact."""

import numpy as np
import pytest
from scipy.stats import hypergeom

from benchmarks.quality.audit import Hypergeometric, bets_limits, cell_row, ending, exact_limits, measure, page
from benchmarks.quality.audit_reviews import CASES, simulate, simulate_lapses
from pucache.reviewing.audit import audit_entries
from pucache.reviewing.audit_log import replay

pytestmark = pytest.mark.slow


def ever_excluded(review, level):
    """Limits that audit() puts on the wrong side of K after the decision on some random image."""
    entries, drawn, ends = review.entries(), set(), set()
    for at, entry in enumerate(entries, start=1):
        if entry.is_draw:
            drawn.add(entry.row)
        elif entry.row in drawn:
            result = audit_entries(entries[:at], [review.pile], level=level)
            if result.total_high < review.positives:
                ends.add("above")
            if result.total_low > review.positives:
                ends.add("below")
    return ends


@pytest.mark.parametrize("case", CASES[:3])
@pytest.mark.parametrize(("rows", "positives"), [(1200, 3), (1200, 60), (5000, 400)])
def test_the_check_of_each_draw_is_that_of_the_audit(case, rows, positives):
    level = 0.2
    for seed in range(4):
        review = simulate(rows, positives, case, np.random.default_rng(seed), level=level, closing=40)
        assert ever_excluded(review, level) == review.excluded


def test_the_check_finds_exclusions():
    excluded = [simulate(1200, 60, CASES[0], np.random.default_rng(seed), level=0.2).excluded for seed in range(20)]
    assert {"above"} in excluded and {"below"} in excluded


@pytest.mark.parametrize("case", CASES)
def test_history_and_log_agree(case):
    review = simulate(3000, 300, case, np.random.default_rng(5), closing=60)
    log = replay(review.entries(), [review.pile])
    for doubtful_are, history in ((True, log.all_positive), (False, log.all_negative)):
        ours = review.history(doubtful_are=doubtful_are)
        assert (ours.positive == history.positive).all()
        assert (ours.unknown == history.unknown).all()
        assert (ours.positives_before == history.positives_before).all()
    assert (log.skipped > 0) == (case == "ranking, skips")


def test_reviews_with_undo_are_checked_with_their_final_labels():
    level = 0.3
    for seed in range(3):
        review = simulate(1200, 60, CASES[3], np.random.default_rng(seed), level=level, closing=40)
        result = audit_entries(review.entries(), [review.pile], level=level)
        wrong = {"above"} if result.total_high < 60 else set()
        wrong |= {"below"} if result.total_low > 60 else set()
        assert wrong <= review.excluded


def test_drawn_rows_are_uniform_over_the_unknown():
    """Share of positives among the random images of the closing audit, whatever the ranking has taken out."""
    expected, drawn = [], []
    for seed in range(300):
        review = simulate(1000, 100, CASES[1], np.random.default_rng(seed), closing=20)
        first = review.closing_from
        expected.append((100 - review.before[first]) / review.unknown[first])
        drawn.append(np.mean(review.truth[first:]))
    assert abs(np.mean(drawn) - np.mean(expected)) < 4 * np.std(np.subtract(drawn, expected)) / np.sqrt(300)


@pytest.mark.parametrize(("rows", "draws", "positive"), [(50, 10, 0), (50, 10, 3), (50, 10, 10), (300, 120, 17)])
def test_the_exact_interval_is_that_of_scipy(rows, draws, positive):
    possible = range(positive, rows - draws + positive + 1)
    kept = [
        k
        for k in possible
        if hypergeom.cdf(positive, rows, k, draws) > 0.025 and hypergeom.sf(positive - 1, rows, k, draws) > 0.025
    ]
    assert Hypergeometric(rows).interval(positive, positive, rows, draws) == (kept[0], kept[-1])


def test_skips_widen_the_exact_interval_too():
    exact = Hypergeometric(300)
    low, high = exact.interval(4, 6, 300, 50)
    assert (low, high) == (exact.interval(4, 4, 300, 50)[0], exact.interval(6, 6, 300, 50)[1])


@pytest.mark.parametrize("case", CASES)
def test_endings_hold_all_methods(case):
    exact = Hypergeometric(3000)
    review = simulate(3000, 100, case, np.random.default_rng(2))
    end = ending(review, exact, 2.0)
    assert end.exact == exact_limits(review, exact) and end.bets == bets_limits(review, end.found, 2.0)
    for low, high in (end.limits, end.exact, end.bets):
        assert 0 <= low < high <= 3000


def test_the_truth_stays_within_the_limit_of_a_reviewer_who_misses_a_tenth():
    """At every moment, in 95 % of the reviews of 2,000 rows to the end."""
    reviews = [simulate_lapses(2000, 40, 0.1, np.random.default_rng(seed), every=200) for seed in range(60)]
    assert sum(any(audited.total_high < 40 for audited in review) for review in reviews) <= 3
    assert np.mean([review[-1].total_high for review in reviews]) < 80, "and it says something"


def test_the_page():
    outcomes = measure(3000, 0.01, CASES[3], reviews=6)
    assert [one.ending is not None for one in outcomes] == [True, False, False, False, False, True]
    assert cell_row(3000, 0.01, CASES[3], outcomes)[:3] == ["3,000", "1 %", CASES[3]]
    text = page({(3000, 0.01, CASES[3]): outcomes}, {(3000, 0.01, 30): 1.25}, "python -m x", 60.0)
    assert "| 3,000 | 1 % | 1.25 |" in text and "1.0 minutes" in text
