import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta

from pucache.estimates.intervals import (
    POINTS,
    WITH_INTERVAL,
    are_uninformative,
    interval_of,
    intervals_from_pu,
    stated_estimates,
    stated_text,
)
from pucache.estimates.label_requirements import LabelCount
from pucache.estimates.metrics import from_pu

GIVEN = 0.1, (0.1, 0.1)


def normal_margins():
    """Margins of 40 labelled positives and of 600 unlabelled rows with unit variance, and s."""
    draw = np.random.default_rng(0)
    hidden = draw.binomial(600, 0.1)
    y = np.repeat([1, 1, 0], [40, hidden, 600 - hidden])
    return draw.normal(size=len(y)) + 2 * y, np.repeat([1, 0], [40, 600])


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


# --- what is stated ------------------------------------------------------------------------------


def stated(labels, *, ends=(0.1, 0.1)):
    margins, s = normal_margins()
    return stated_estimates(margins, s, labels=LabelCount(labels), prior=0.1, prior_range=ends, threshold=1)


@pytest.mark.parametrize("labels", [10, 29])
def test_below_thirty_labels_intervals_alone_are_stated(labels):
    estimates = stated(labels)
    assert all(estimates[name] is None for name in POINTS) and estimates["collapsed"] == ""
    assert all(0 <= estimates[f"{name}_low"] < estimates[f"{name}_high"] <= 1 for name in WITH_INTERVAL)
    assert stated_text(estimates, "recall").count(" to ") == 1 and "(" not in stated_text(estimates, "recall")


@pytest.mark.parametrize("ends", [(0.1, 0.1), (0.01, 0.12), (0.09, 0.5)], ids=str)
def test_from_thirty_labels_figures_are_counts_at_the_likeliest_prior_and_lie_in_their_intervals(ends):
    estimates, (margins, s) = stated(30, ends=ends), normal_margins()
    assert estimates.items() >= from_pu(margins, s, 0.1, 1.0).items(), "whatever the interval of the prior"
    for name in WITH_INTERVAL:
        low, high = interval_of(estimates, name)
        assert low <= estimates[name] <= high
    json.dumps(estimates, allow_nan=False)


def test_without_an_interval_of_the_prior_only_recall_and_pauc_have_one():
    estimates = stated(30, ends=None)
    assert [name for name in WITH_INTERVAL if interval_of(estimates, name)] == ["pauc", "recall"]
    assert stated_text(estimates, "precision").count(" ") == 0


@pytest.mark.parametrize(
    ("labels", "recall", "precision", "nothing"),
    [
        (20, (0.8, 1.0), (0.6, 1.0), False),
        (20, (0.8, 1.0), (0.4, 1.0), True),
        (20, (0.8, 1.0), None, True),
        (40, (0.2, 1.0), (0.0, 1.0), False),
    ],
)
def test_wide_intervals_of_few_labels_say_nothing(labels, recall, precision, nothing):
    estimates = {"labels": labels}
    for name, ends in (("recall", recall), ("precision", precision)):
        estimates |= dict(zip((f"{name}_low", f"{name}_high"), ends or (None, None), strict=True))
    assert are_uninformative(estimates) is nothing
