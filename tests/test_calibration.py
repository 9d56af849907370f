import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pucache.calibration import Posterior, fit_posterior


def gaussians(prior, n=20000, apart=1.0, seed=0):
    """Margins and s: P from N(apart, 1), U from prior * N(apart, 1) + (1 - prior) * N(-apart, 1)."""
    draw = np.random.default_rng(seed)
    centre = np.where(draw.random(n) < prior, apart, -apart)
    margins = np.concatenate([draw.normal(apart, size=n // 2), draw.normal(centre)])
    return margins, (np.arange(len(margins)) < n // 2).astype(np.int8)


@pytest.mark.parametrize("prior", [0.05, 0.3, 0.8])
def test_on_gaussians_the_posterior_is_the_analytic_one(prior):
    m = np.linspace(-2, 2, 200)
    analytic = 1 / (1 + (1 - prior) / prior * np.exp(-2 * m))  # f_N / f_P = exp(-2 m)
    error = [np.abs(fit_posterior(*gaussians(prior, n), prior)(m) - analytic) for n in (2_000, 200_000)]
    assert error[1].mean() < 0.015 and error[1].max() < 0.1
    assert error[1].mean() < error[0].mean() / 2


@pytest.mark.parametrize("prior", [0.05, 0.3, 0.8])
def test_the_posterior_of_the_unlabelled_averages_to_the_prior(prior):
    margins, s = gaussians(prior)
    assert fit_posterior(margins, s, prior)(margins[s == 0]).mean() == pytest.approx(prior, rel=0.03)


def test_the_prior_scales_the_posterior_up_to_one():
    margins, s = gaussians(0.2, n=2000)
    low, high = fit_posterior(margins, s, 0.1), fit_posterior(margins, s, 0.4)
    np.testing.assert_allclose(high(margins), np.minimum(4 * low(margins), 1), rtol=1e-6, atol=1e-12)
    assert low(margins).max() > 0.25  # so that the cut at one was needed


@given(
    rows=st.lists(st.tuples(st.floats(-1e6, 1e6, width=32), st.booleans()), min_size=2, max_size=30),
    prior=st.floats(0.01, 0.99),
)
def test_the_posterior_rises_within_0_and_1_whatever_the_margins(rows, prior):
    margins = np.array([margin for margin, _ in rows], np.float32)
    s = np.array([positive for _, positive in rows], np.int8)
    s[:2] = 0, 1
    posterior = fit_posterior(margins, s, prior)
    values = posterior(np.sort(np.concatenate([margins, [-np.inf, np.inf], np.linspace(-1e6, 1e6, 50)])))
    assert (np.diff(values) >= 0).all() and values[0] >= 0 and values[-1] <= 1
    assert (np.diff(posterior.margin) > 0).all()


def test_beyond_the_margins_seen_the_posterior_is_constant_and_between_them_linear():
    posterior = Posterior(np.array([-1.0, 1.0]), np.array([0.2, 0.6]))
    assert posterior(np.array([-9.0, -1.0, 0.0, 1.0, 9.0])).tolist() == pytest.approx([0.2, 0.2, 0.4, 0.6, 0.6])


@pytest.mark.parametrize("prior", [0.1, 0.7])
def test_margins_that_say_nothing_give_the_prior(prior):
    posterior = fit_posterior(np.zeros(10, np.float32), np.arange(10) < 3, prior)
    assert posterior(np.array([-1.0, 0.0, 1.0])).tolist() == pytest.approx([prior] * 3)


def test_a_margin_that_only_positives_reach_is_certain():
    posterior = fit_posterior(np.array([2.0, 3.0, -1.0, 0.0]), np.array([1, 1, 0, 0]), 0.01)
    assert posterior(np.array([0.0, 2.0])).tolist() == [0, 1]
