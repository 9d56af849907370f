import math

import numpy as np
import pytest
from helpers.margins import gaussians
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pucache.estimates.calibration import LEAST, MOST, deviance_within_pile, profile_ends, profile_prior
from pucache.estimates.priors import (
    ERROR_BELOW,
    MODEL_ERROR,
    deviance_limit,
    estimate,
    profile_interval,
)


def margins_of(prior, n_p=800, n_u=3000, apart=2.0, seed=0):
    """Margins and s of two Gaussians; at 2 standard deviations either way their ends hardly overlap."""
    return gaussians(prior, n_p, n_u, apart, seed)


@pytest.mark.parametrize("prior", [0.05, 0.3, 0.6])
def test_the_prior_of_margins_that_hardly_overlap_is_found(prior):
    found = [estimate(*margins_of(prior, seed=seed)) for seed in range(3)]
    assert found == pytest.approx([prior] * 3, abs=0.02)
    assert np.mean(found) == pytest.approx(prior, abs=0.013)


@pytest.mark.parametrize("ties", [False, True])
def test_weights_count_rows(ties):
    margins, s = margins_of(0.3, 120, 400, apart=1.2)
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
    margins, s = margins_of(prior, n_p, apart=1.2)
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
    margins, s = margins_of(0.0, 30, 500)
    found = profile_interval(margins, s)
    assert found.low == LEAST < found.high < 0.1
