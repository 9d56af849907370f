"""Simulated reviews for the audit: their check against audit(), the exact interval, and the page."""

import numpy as np
import pytest
from scipy.stats import hypergeom

from benchmarks.quality.audit import (
    CASES,
    LIMITS,
    Hypergeometric,
    coverage,
    excluded_limits,
    length,
    missed_review,
    page,
)
from benchmarks.quality.audit_reviews import Review
from pucache.reviewing.log import Stream

pytestmark = pytest.mark.slow


def test_limits_that_exclude_the_truth_at_the_end_are_found():
    """The check of every moment has what `audit_entries` says at the last one."""
    for seed in range(6):
        review = Review(1200, 0.05, "negatives first", np.random.default_rng(seed))
        review.rank(300)
        review.fix_zone(200)
        review.close(Stream.ZONE, 30)
        review.close(Stream.AUDIT, 40)
        result, total = review.audit(), int(review.copies[review.truth].sum())
        upper, lower, _, chance = excluded_limits(review)
        assert upper or total <= result.total_high
        assert lower or total >= result.total_low
        assert chance or total <= result.found + result.chance_high


def test_a_ranking_that_shows_negatives_first_breaks_the_limit_by_chance():
    assert np.mean(coverage("negatives first", 3000, 0.1, 0, 5)["excluded"], axis=0)[3] > 0.5


@pytest.mark.parametrize(("rows", "draws", "positive"), [(50, 10, 0), (50, 10, 3), (50, 10, 10), (300, 120, 17)])
def test_the_exact_interval_is_that_of_scipy(rows, draws, positive):
    possible = range(positive, rows - draws + positive + 1)
    kept = [
        k
        for k in possible
        if hypergeom.cdf(positive, rows, k, draws) > 0.025 and hypergeom.sf(positive - 1, rows, k, draws) > 0.025
    ]
    assert Hypergeometric(rows).interval(positive, rows, draws) == (kept[0], kept[-1])


def test_the_truth_stays_within_the_limit_of_a_reviewer_who_misses_a_tenth():
    """At every glance, in 95 % of the reviews of 2,000 rows to the end."""
    reviews = [missed_review(2000, 0.02, np.random.default_rng(seed)) for seed in range(60)]
    assert np.sum(reviews, axis=0)[0] <= 3


def test_the_page():
    case, rows, share = CASES[0]
    covered = {"case": case, "rows": rows, "share": share, "excluded": [[False, True, False, False]] * 4}
    ratio = {"rows": 3000, "share": 0.01, "draws": 30} | length(3000, 0.01, 30, 2)
    wide = {"rows": 3000, "share": 0.01, "looks": 300, "means": [9, 89, 6, 43, 6, 270]}
    text = page([covered], [ratio], [wide], "Rules.")
    assert f"| {case} | 3,000 | 1 % | 4 | 0.00 ± 0.00 | 100.00 ± 0.00 |" in text
    assert f"| 3,000 | 1 % | {ratio['ratio']:.2f} |" in text and "| 3,000 | 1 % | 300 | 9 | 89 | 6 |" in text
    assert all(f"{limit} wrong, %" in text for limit in LIMITS)
