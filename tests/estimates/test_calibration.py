import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pucache.estimates import calibration
from pucache.estimates.calibration import LEAST, MOST, PriorProfile, Tilt, _binned, _Likelihood, fit_tilt, profile_prior
from pucache.estimates.thresholds import choose_threshold


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def gaussians(prior, n_p=400, n_u=2000, apart=1.0, seed=0):
    """Margins and s: P from N(apart, 1), U a mixture with N(-apart, 1). The tilt is exactly 2 * apart * m."""
    draw = np.random.default_rng(seed)
    hidden = round(prior * n_u)
    margins = np.concatenate([draw.normal(apart, size=n_p + hidden), draw.normal(-apart, size=n_u - hidden)])
    return margins.astype(np.float32), (np.arange(n_p + n_u) < n_p).astype(np.int8)


# --- the tilt ----------------------------------------------------------------------------------


def test_the_tilt_shifts_inverts_and_weighs_as_its_formulas_say():
    tilt = Tilt(-0.5, 2.0, 0.2)
    m = np.linspace(-3, 3, 13)
    ratio = np.exp(-0.5 + 2 * m)
    np.testing.assert_allclose(tilt.log_ratio(m), np.log(ratio))
    np.testing.assert_allclose(tilt.posterior(m), 0.2 * ratio / (0.2 * ratio + 0.8))
    np.testing.assert_allclose(tilt.posterior(m, 0.7), 0.7 * ratio / (0.7 * ratio + 0.3))
    np.testing.assert_allclose(tilt.shifted(1.5).posterior(m - 1.5), tilt.posterior(m))
    assert tilt.shifted(1.5).prior == 0.2


@given(
    tilt=st.builds(Tilt, st.floats(-5, 5), st.floats(0.1, 10), st.floats(1e-3, 0.999)),
    share=st.floats(1e-3, 0.999),
    posterior=st.floats(1e-3, 0.999),
)
def test_margin_inverts_posterior_and_another_share_shifts_the_odds(tilt, share, posterior):
    for at in (None, share):
        assert tilt.posterior(tilt.margin(posterior, at), at) == pytest.approx(posterior)
    q, moved = tilt.posterior(0.3), tilt.posterior(0.3, share)
    shift = share / (1 - share) / (tilt.prior / (1 - tilt.prior))
    assert moved * (1 - q) == pytest.approx(q * (1 - moved) * shift, rel=1e-6)


@pytest.mark.parametrize("apart", [0.7, 1.0])
@pytest.mark.parametrize("prior", [0.05, 0.3, 0.7])
def test_where_the_tilt_holds_its_three_numbers_are_recovered(prior, apart):
    found = [fit_tilt(*gaussians(prior, 1500, 5000, apart, seed)) for seed in range(5)]
    for name, truth in (("alpha", 0.0), ("slope", 2 * apart), ("prior", prior)):
        values = np.array([getattr(tilt, name) for tilt in found])
        assert values.mean() == pytest.approx(truth, abs=3 * values.std() / np.sqrt(5) + 0.01), name
    assert np.std([tilt.prior for tilt in found]) < 0.06 and np.std([tilt.slope for tilt in found]) < 0.3


def test_on_gaussians_the_posterior_is_the_analytic_one_and_averages_to_the_prior():
    margins, s = gaussians(0.2, 2000, 8000)
    m = np.linspace(-3, 3, 100)
    for tilt in (fit_tilt(margins, s), fit_tilt(margins, s, prior=0.2)):
        np.testing.assert_allclose(tilt.posterior(m), 1 / (1 + 4 * np.exp(-2 * m)), atol=0.04)
        assert tilt.posterior(margins[s == 0]).mean() == pytest.approx(tilt.prior, abs=0.01)


@pytest.mark.parametrize("prior", [1e-5, 0.003, 0.1, 0.9])
def test_a_start_far_away_finds_the_same_tilt(prior):
    draw = np.random.default_rng(0)
    y = np.arange(1500) < 200
    margins = np.where(y, draw.normal(10, 3, len(y)), draw.normal(-12, 6, len(y)))
    s = (np.arange(1500) < 20).astype(np.int8)
    there, here = fit_tilt(margins, s), fit_tilt(margins, s, start=Tilt(0.0, 1.0, prior))
    assert there.prior == pytest.approx(180 / 1480, rel=0.1)
    assert here.prior == pytest.approx(there.prior, rel=0.02)


def test_a_known_prior_is_held_and_moves_the_rest():
    margins, s = gaussians(0.3)
    known = fit_tilt(margins, s, prior=0.3)
    assert known.prior == 0.3 and known.slope == pytest.approx(2, abs=0.4)
    assert fit_tilt(margins, s, prior=0.1).slope < known.slope < fit_tilt(margins, s, prior=0.4).slope


@pytest.mark.parametrize("prior", [1e-9, 0.9999, 0.99999])
def test_a_known_prior_beyond_the_bounds_of_estimates_is_fitted_at_its_own_value(prior):
    margins, s = gaussians(0.95)
    tilt = fit_tilt(margins, s, prior=prior)
    m, positive = margins.astype(np.float64), s == 1

    def log_likelihood(alpha, slope):
        e = alpha + slope * m
        log_odds = np.log(positive.sum() / (~positive).sum()) + e - np.logaddexp(np.log1p(-prior), np.log(prior) + e)
        return -np.logaddexp(0, np.where(positive, -log_odds, log_odds)).sum()

    best = log_likelihood(tilt.alpha, tilt.slope)
    steps = [(0.05, 0), (-0.05, 0), (0, 0.05), (0, -0.05), (0.05, -0.05)]
    assert all(best >= log_likelihood(tilt.alpha + a, tilt.slope + b) for a, b in steps)


@pytest.mark.parametrize("at", [(-1.5, 0.5, -1.0), (0.3, -1.0, 2.0), (-6.0, 2.0, -7.0)])
def test_the_gradient_of_the_likelihood_is_its_slope(at):
    draw = np.random.default_rng(0)
    objective = _Likelihood(draw.normal(size=30), draw.uniform(0.1, 3, 30), 11)
    at = np.array(at)
    _, gradient = objective(at)
    steps = 1e-6 * np.eye(3)
    numeric = [(objective(at + step)[0] - objective(at - step)[0]) / 2e-6 for step in steps]
    np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("prior", [None, 0.3])
def test_weights_count_rows(prior):
    margins, s = gaussians(0.3, 150, 400)
    counts = np.random.default_rng(1).integers(0, 4, len(s))
    weighted, repeated = (
        fit_tilt(margins, s, counts, prior),
        fit_tilt(margins.repeat(counts), s.repeat(counts), None, prior),
    )
    for name in ("alpha", "slope", "prior"):
        assert getattr(weighted, name) == pytest.approx(getattr(repeated, name), rel=1e-3, abs=1e-3)
    scaled = fit_tilt(margins, s, counts * 1e-9, prior)
    assert scaled.posterior(0.0) == pytest.approx(weighted.posterior(0.0), rel=1e-4)
    assert abs(fit_tilt(margins, s, None, prior).slope - weighted.slope) > 0.01


@pytest.mark.parametrize("scale", [1e-30, 1e-9, 1e9, 1e30], ids="{:.0e}".format)
@pytest.mark.parametrize("shift", [0.0, 5.0])
def test_the_unit_and_the_zero_of_margins_do_not_matter(scale, shift):
    margins, s = gaussians(0.3)
    plain = fit_tilt(margins, s)
    moved = (margins + np.float32(shift)) * np.float32(scale)
    tilt = fit_tilt(moved, s)
    np.testing.assert_allclose(tilt.posterior(moved), plain.posterior(margins), atol=2e-3)
    assert tilt.prior == pytest.approx(plain.prior, abs=2e-3)


EXTREME = {
    "perfect separation": ([1, 2, 3, -1, -2, -3], [1, 1, 1, 0, 0, 0]),
    "separation the wrong way": ([-1, -2, -3, 1, 2, 3], [1, 1, 1, 0, 0, 0]),
    "all equal": ([0] * 6, [1, 1, 0, 0, 0, 0]),
    "all equal, huge": ([5e8] * 6, [1, 1, 0, 0, 0, 0]),
    "equal but for rounding": ([1, 1, 1, np.nextafter(np.float32(1), 2)], [1, 0, 0, 0]),
    "one positive": ([3, *np.linspace(-2, 2, 50)], [1] + [0] * 50),
    "one positive far away": ([1e6, *np.linspace(-2, 2, 50)], [1] + [0] * 50),
    "one unlabelled": ([-3, *np.linspace(-2, 2, 50)], [0] + [1] * 50),
    "one unlabelled far away": ([-1e6, *np.linspace(-2, 2, 5000)], [0] + [1] * 5000),
    "one of each": ([1, 0], [1, 0]),
    "one of each, the other way": ([0, 1], [1, 0]),
    "one of each, equal": ([1, 1], [1, 0]),
    "two values": ([1, 0, 1, 0, 0], [1, 1, 0, 0, 0]),
}


@pytest.mark.parametrize("prior", [None, 1e-6, 0.3, 0.999999])
@pytest.mark.parametrize("name", EXTREME)
def test_extreme_margins_give_a_finite_rising_posterior_and_a_finite_threshold(name, prior):
    margins, s = np.array(EXTREME[name][0], np.float32), np.array(EXTREME[name][1])
    tilt = fit_tilt(margins, s, prior=prior)
    assert np.isfinite([tilt.alpha, tilt.slope]).all() and tilt.slope > 0
    assert tilt.prior == prior if prior else LEAST <= tilt.prior <= MOST
    for share in (None, 0.5):
        posterior = tilt.posterior(np.sort(margins), share)
        assert (np.diff(posterior) >= 0).all() and posterior[0] >= 0 and posterior[-1] <= 1
    for rule in ("f1", "precision=0.9", "precision=1", "recall=0.9", "recall=1", 0.25):
        assert np.isfinite(choose_threshold(tilt, margins[s == 0], rule, 0.2)), rule


@settings(deadline=None, max_examples=40)
@given(rows=st.lists(st.tuples(st.floats(-1e6, 1e6, width=32), st.booleans()), min_size=2, max_size=20))
def test_the_posterior_is_finite_and_rises_whatever_the_margins(rows):
    margins = np.array([margin for margin, _ in rows], np.float32)
    s = np.array([positive for _, positive in rows], np.int8)
    s[:2] = 0, 1
    tilt = fit_tilt(margins, s)
    posterior = tilt.posterior(np.sort(margins))
    assert np.isfinite(posterior).all() and (np.diff(posterior) >= 0).all() and LEAST <= tilt.prior <= MOST


def test_perfect_separation_is_certain_on_both_sides():
    margins = np.concatenate([np.linspace(5, 6, 30), np.linspace(-6, -5, 300)]).astype(np.float32)
    tilt = fit_tilt(margins, np.arange(330) < 30)
    assert tilt.prior < 0.005 and tilt.posterior(-5.0) < 1e-6 and tilt.posterior(5.0, 0.5) > 0.99


# --- the profile of the prior --------------------------------------------------------------------


def log_likelihood(tilt, margins, s):
    """Of the rows of P and U, by the formula of the module, row by row."""
    e, positive = tilt.log_ratio(margins), s == 1
    log_odds = np.log(positive.sum() / (~positive).sum()) + e - np.log(1 - tilt.prior + tilt.prior * np.exp(e))
    return -np.logaddexp(0, np.where(positive, -log_odds, log_odds)).sum()


@pytest.mark.parametrize(("prior", "n_p"), [(0.02, 30), (0.2, 200), (0.7, 60)])
def test_the_deviance_is_twice_the_log_likelihood_that_a_fixed_prior_loses(prior, n_p):
    margins, s = gaussians(prior, n_p, 1000)
    profile, best = profile_prior(margins, s), fit_tilt(margins, s)
    assert profile.estimate == pytest.approx(best.prior, rel=1e-6) and profile.estimate in profile.priors
    assert (np.diff(profile.priors) > 0).all() and profile.deviance.min() == 0
    top = log_likelihood(best, margins, s)
    lost = [2 * (top - log_likelihood(fit_tilt(margins, s, prior=at), margins, s)) for at in profile.priors.tolist()]
    np.testing.assert_allclose(profile.deviance, lost, atol=2e-3)


def test_the_profile_ends_beyond_its_depth_or_at_the_bounds():
    profile = profile_prior(*gaussians(0.2), depth=5.0)
    assert (profile.deviance[[0, -1]] > 5).all() and (profile.deviance[1:-1] <= 5).all()
    low, high = profile.ends(5.0)
    assert profile.priors[0] < low < profile.priors[1] and profile.priors[-2] < high < profile.priors[-1]
    within = profile_prior(*gaussians(0.2), depth=5.0, bounds=(0.19, 0.21))
    assert within.ends(5.0) == (None, None)
    assert within.priors[[0, -1]] == pytest.approx([0.19, 0.21])


def test_a_bound_moves_the_estimate_and_the_deviance_counts_from_there():
    profile = profile_prior(*gaussians(0.2), depth=3.0, bounds=(0.4, MOST))
    assert profile.estimate == pytest.approx(0.4) and profile.deviance[0] == 0
    assert (np.diff(profile.deviance) > 0).all() and profile.ends(3.0)[0] is None


def test_ends_are_where_the_deviance_reaches_the_threshold():
    margins, s = gaussians(0.2, 100, 1000)
    top = log_likelihood(fit_tilt(margins, s), margins, s)
    for end in profile_prior(margins, s).ends(3.5):
        reached = 2 * (top - log_likelihood(fit_tilt(margins, s, prior=end), margins, s))
        assert reached == pytest.approx(3.5, abs=0.05)


def test_within_a_pile_the_variance_of_sampling_is_subtracted():
    profile = profile_prior(*gaussians(0.2, 300, 500))
    p, q = profile.estimate, profile.priors
    visible = 2 * 500 * (p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q)))
    other = profile.deviance > 0
    within = profile.within_pile(500)
    np.testing.assert_allclose(1 / within.deviance[other], 1 / profile.deviance[other] - 1 / visible[other], rtol=1e-9)
    assert within.deviance[~other] == 0 and within.estimate == p and (within.priors == q).all()
    ends = [np.subtract(*one.ends(2.7)) for one in (within, profile, profile.within_pile(10**9))]
    assert abs(ends[0]) < 0.95 * abs(ends[1]) and ends[1] == pytest.approx(ends[2])


def test_pile_deviances_are_finite_where_sampling_is_all_the_error_there_is():
    priors = np.array([0.05, 0.1, 0.2])
    within = PriorProfile(estimate=0.1, priors=priors, deviance=np.array([50.0, 0.0, 50.0])).within_pile(100)
    np.testing.assert_allclose(within.deviance, [5000, 0, 5000])


def test_only_ratios_of_weights_matter_and_equal_weights_count_rows():
    margins, s = gaussians(0.2, 50, 500)
    plain = profile_prior(margins, s)
    np.testing.assert_allclose(
        profile_prior(margins, s, np.full(len(s), 7.0)).deviance, plain.deviance, rtol=1e-3, atol=1e-3
    )
    weights = np.where(np.arange(len(s)) % 2, 2.0, 0.0)  # half of the rows
    half = profile_prior(margins[1::2], s[1::2])
    np.testing.assert_allclose(profile_prior(margins, s, weights).ends(3.5), half.ends(3.5), rtol=1e-3)


@pytest.mark.parametrize("name", EXTREME)
def test_the_profile_of_extreme_margins_is_finite(name):
    margins, s = np.array(EXTREME[name][0], np.float32), np.array(EXTREME[name][1])
    profile = profile_prior(margins, s)
    assert np.isfinite(profile.deviance).all() and LEAST <= profile.estimate <= MOST
    within = profile.within_pile((s == 0).sum())
    assert np.isfinite(within.deviance).all() and (within.deviance >= profile.deviance).all()
    assert all(end is None or LEAST <= end <= MOST for one in (profile, within) for end in one.ends(4.0))


# --- bins --------------------------------------------------------------------------------------

MARGINS = arrays(np.float32, st.integers(1, 60), elements=st.floats(-1e6, 1e6, width=32))


@settings(deadline=None)
@given(margins=MARGINS, data=st.data())
def test_bins_preserve_sums_order_and_limits(margins, data):
    weights = data.draw(
        arrays(np.float64, len(margins), elements=st.floats(0, 100).filter(lambda w: w == 0 or w > 1e-3))
    )
    weights[data.draw(st.integers(0, len(margins) - 1))] = 1.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "_TOP_ROWS", data.draw(st.integers(1, 30)))
        patch.setattr(calibration, "_BINS", data.draw(st.integers(1, 10)))
        m, w = _binned(margins, weights)
        assert len(m) <= 2 * calibration._BINS
    margins = margins.astype(float)
    held = margins[weights > 0]
    assert len(m) == len(w) <= len(held) and (w > 0).all()
    assert w.sum() == pytest.approx(weights.sum())
    assert m @ w == pytest.approx(margins @ weights, rel=1e-9, abs=1e-9 * (np.abs(margins) @ weights))
    scale = 1e-12 * np.abs(margins).max()
    assert (np.diff(m) >= -scale).all() and m[0] >= held.min() - scale and m[-1] <= held.max() + scale


@given(margins=MARGINS)
def test_few_rows_are_kept_one_by_one(margins):
    m, w = _binned(margins)
    assert m.tolist() == np.sort(margins).astype(float).tolist() and (w == 1).all() and m.dtype == w.dtype == np.float64


def test_many_rows_are_merged_and_the_top_the_least():
    draw = np.random.default_rng(0)
    margins = draw.normal(size=100_000).astype(np.float32)
    m, w = _binned(margins)
    assert len(m) == 3000 and w.sum() == 100_000 and m @ w == pytest.approx(margins.astype(float).sum())
    assert w[:1500].mean() > 20 * w[1500:].mean() and w[1500:].max() <= 3
    assert np.average(np.tanh(m), weights=w) == pytest.approx(np.tanh(margins).mean(), abs=1e-5)


def test_rows_without_weight_are_left_out_before_any_merging():
    margins = np.arange(10.0)
    m, w = _binned(margins, np.array([0, 2, 0, 0, 1, 0, 0, 0, 3, 0]))
    assert m.tolist() == [1, 4, 8] and w.tolist() == [2, 1, 3]
