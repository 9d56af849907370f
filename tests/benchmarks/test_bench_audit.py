"""Simulated reviews for the audit: their check of each draw is that of audit(), and the exact interval is exact."""

import numpy as np
import pytest

from benchmarks.quality.audit import cell_row, measure, page
from benchmarks.quality.audit_reviews import CASES, simulate_lapses

pytestmark = pytest.mark.slow


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
