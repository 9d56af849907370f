import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta

from pucache.estimates.intervals import WITH_INTERVAL, Estimate, intervals_from_pu

GIVEN = 0.1, (0.1, 0.1)


# --- intervals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("above", [0, 3, 12])
def test_recall_has_the_posterior_of_a_uniform_prior_with_rows_of_lower_weight(above):
    margins = np.concatenate([np.linspace(1, 2, above), np.linspace(-2, -1, 12 - above), np.linspace(-3, 3, 400_000)])
    s = np.repeat([1, 0], [12, 400_000])
    posterior = beta(0.8 * above + 1, 0.8 * (12 - above) + 1)
    expected = posterior.ppf([0.05, 0.95])
    assert intervals_from_pu(margins, s, *GIVEN, 0.0)["recall"] == pytest.approx(expected, abs=0.02)


MARGINS = st.lists(st.floats(-5, 5), min_size=1, max_size=40)


@settings(max_examples=30)
@given(MARGINS, MARGINS, st.floats(1e-5, 0.999), st.floats(-6, 6))
def test_any_margins_have_intervals_within_zero_and_one(positive, unlabelled, prior, threshold):
    margins, s = np.array(positive + unlabelled), np.repeat([1, 0], [len(positive), len(unlabelled)])
    intervals = intervals_from_pu(margins, s, prior, (prior / 2, min(1.0, 2 * prior)), threshold)
    assert set(intervals) == set(WITH_INTERVAL)
    for low, high in intervals.values():
        assert 0 <= low <= high <= 1 + 1e-12


# --- a figure as it is stated ----------------------------------------------------------------------


def test_estimates_are_cut_to_each_other_where_they_agree():
    by_labels = Estimate(0.95, 0.7, 1.0)
    assert Estimate(None, 0.1, 0.9).within(by_labels) == Estimate(0.9, 0.7, 0.9)
    assert Estimate(0.5, 0.4, 0.6).within(Estimate(0.5, 0.2, 0.7)) == Estimate(0.5, 0.4, 0.6)
    assert Estimate(None, 0.1, 0.65).within(by_labels) == Estimate(None, 0.1, 0.65), "they disagree"
    assert Estimate(0.5).within(by_labels) == Estimate(0.5)


@pytest.mark.parametrize("estimate", [Estimate(), Estimate(0.5), Estimate(None, 0.1, 0.9), Estimate(0.5, 0.25, 0.75)])
def test_an_estimate_comes_back_from_its_json(estimate):
    assert (
        Estimate.from_json({f"recall{end}": value for end, value in estimate.to_json().items()}, "recall") == estimate
    )
