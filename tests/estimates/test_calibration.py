import numpy as np
import pytest
from helpers.margins import gaussians
from hypothesis import given
from hypothesis import strategies as st

from pucache.estimates.calibration import (
    LEAST,
    MOST,
    Likelihood,
    Tilt,
    deviance_within_pile,
    fit_tilt,
    profile_ends,
    profile_prior,
    stated_tilt,
)
from pucache.estimates.thresholds import choose_threshold, near_share, parse_rule

pytestmark = pytest.mark.filterwarnings("error")


def log_likelihood(alpha, slope, prior, margins, s):
    """Of the rows' labels, by the formula of the module."""
    e, positive = alpha + slope * margins.astype(np.float64), s == 1
    log_odds = np.log(positive.sum() / (~positive).sum()) + e - np.logaddexp(np.log1p(-prior), np.log(prior) + e)
    return -np.logaddexp(0, np.where(positive, -log_odds, log_odds)).sum()


def lost(margins, s, prior):
    """Twice the log likelihood that is lost at a fixed prior."""
    best, there = fit_tilt(margins, s), fit_tilt(margins, s, prior=prior)
    values = [log_likelihood(tilt.alpha, tilt.slope, tilt.prior, margins, s) for tilt in (best, there)]
    return 2 * (values[0] - values[1])


# --- the tilt ----------------------------------------------------------------------------------


@given(
    tilt=st.builds(Tilt, st.floats(-5, 5), st.floats(0.1, 10), st.floats(1e-3, 0.999)),
    share=st.none() | st.floats(1e-3, 0.999),
    posterior=st.floats(1e-3, 0.999),
)
def test_margin_inverts_posterior(tilt, share, posterior):
    assert tilt.posterior(tilt.margin(posterior, share), share) == pytest.approx(posterior)


@pytest.mark.parametrize(("prior", "apart"), [(0.05, 1.0), (0.3, 0.7), (0.7, 1.0)])
def test_where_the_tilt_holds_its_three_numbers_are_recovered(prior, apart):
    found = [fit_tilt(*gaussians(prior, 1500, 5000, apart, seed)) for seed in range(5)]
    for name, truth in (("alpha", 0.0), ("slope", 2 * apart), ("prior", prior)):
        values = np.array([getattr(tilt, name) for tilt in found])
        assert values.mean() == pytest.approx(truth, abs=3 * values.std() / np.sqrt(5) + 0.01), name
    assert np.std([tilt.prior for tilt in found]) < 0.06 and np.std([tilt.slope for tilt in found]) < 0.3


@pytest.mark.parametrize("weighted", [False, True])
def test_stated_posteriors_average_to_the_prior_and_are_flatter_than_the_likeliest(weighted):
    margins, s = gaussians(0.1, 40, 3000)
    weights = np.random.default_rng(1).uniform(0.5, 2, len(s)).astype(np.float32) if weighted else None
    likeliest = fit_tilt(margins, s, weights, 0.15)
    stated = stated_tilt(margins, s, weights, prior=0.15)
    mean = np.average(stated.posterior(margins[s == 0]), weights=None if weights is None else weights[s == 0])
    assert mean == pytest.approx(0.15, abs=1e-6) and stated.prior == 0.15
    assert 0.4 * likeliest.slope < stated.slope < 0.95 * likeliest.slope


@pytest.mark.parametrize("prior", [1e-9, 0.3, 0.9999, 0.99999])
def test_a_known_prior_is_held_and_the_rest_is_fitted_at_it(prior):
    margins, s = gaussians(0.95)
    tilt = fit_tilt(margins, s, prior=prior)
    best = log_likelihood(tilt.alpha, tilt.slope, prior, margins, s)
    steps = [(0.05, 0), (-0.05, 0), (0, 0.05), (0, -0.05), (0.05, -0.05)]
    assert tilt.prior == prior
    assert all(best >= log_likelihood(tilt.alpha + a, tilt.slope + b, prior, margins, s) for a, b in steps)


@pytest.mark.parametrize("at", [(-1.5, 0.5, -1.0), (0.3, -1.0, 2.0), (-6.0, 2.0, -7.0)])
def test_the_gradient_of_the_likelihood_is_its_slope(at):
    draw = np.random.default_rng(0)
    objective = Likelihood(draw.normal(size=30), np.repeat([1, 0], [11, 19]), draw.uniform(0.1, 3, 30))
    _, gradient = objective(np.array(at))
    numeric = [(objective(at + step)[0] - objective(at - step)[0]) / 2e-6 for step in 1e-6 * np.eye(3)]
    np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-8)


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
    "one of each, equal": ([1, 1], [1, 0]),
    "two values": ([1, 0, 1, 0, 0], [1, 1, 0, 0, 0]),
}


@pytest.fixture(params=EXTREME)
def extreme(request):
    margins, s = EXTREME[request.param]
    return np.array(margins, np.float32), np.array(s)


@pytest.mark.parametrize("prior", [None, 1e-6, 0.3, 0.999999])
def test_extreme_margins_give_a_finite_rising_posterior_and_a_finite_threshold(extreme, prior):
    margins, s = extreme
    tilt = fit_tilt(margins, s, prior=prior)
    assert np.isfinite([tilt.alpha, tilt.slope]).all() and tilt.slope > 0
    assert tilt.prior == prior if prior else LEAST <= tilt.prior <= MOST
    assert np.isfinite(stated_tilt(margins, s, prior=prior or 0.3).posterior(margins)).all()
    for share in (None, 0.5):
        posterior = tilt.posterior(np.sort(margins), share)
        assert (np.diff(posterior) >= 0).all() and posterior[0] >= 0 and posterior[-1] <= 1
    for rule in ("f1", "precision=0.9", "precision=1", "recall=0.9", "recall=1", 0.25):
        assert np.isfinite(choose_threshold(tilt, margins[s == 0], rule, 0.2)), rule


# --- the profile of the prior ------------------------------------------------------------------


@pytest.mark.parametrize(("prior", "n_p"), [(0.02, 30), (0.7, 60)])
def test_the_deviance_is_twice_the_log_likelihood_that_a_fixed_prior_loses(prior, n_p):
    margins, s = gaussians(prior, n_p, 1000)
    estimate, priors, deviance = profile_prior(margins, s)
    assert estimate == pytest.approx(fit_tilt(margins, s).prior, rel=1e-6) and estimate in priors
    assert (np.diff(priors) > 0).all() and deviance.min() == 0
    np.testing.assert_allclose(deviance, [lost(margins, s, at) for at in priors.tolist()], atol=2e-3)


def test_the_profile_ends_beyond_its_depth_or_at_the_bounds():
    _, priors, deviance = profile_prior(*gaussians(0.2), depth=5.0)
    assert (deviance[[0, -1]] > 5).all() and (deviance[1:-1] <= 5).all()
    low, high = profile_ends(priors, deviance, 5.0)
    assert priors[0] < low < priors[1] and priors[-2] < high < priors[-1]
    assert [lost(*gaussians(0.2), end) for end in (low, high)] == pytest.approx([5, 5], abs=0.05)
    _, priors, deviance = profile_prior(*gaussians(0.2), depth=5.0, bounds=(0.19, 0.21))
    assert profile_ends(priors, deviance, 5.0) == (None, None)
    assert priors[[0, -1]] == pytest.approx([0.19, 0.21])


def test_within_a_pile_the_variance_of_sampling_is_subtracted():
    p, q, deviance = profile_prior(*gaussians(0.2, 300, 500))
    visible = 2 * 500 * (p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q)))
    other = deviance > 0
    within = deviance_within_pile(p, q, deviance, 500)
    np.testing.assert_allclose(1 / within[other], 1 / deviance[other] - 1 / visible[other], rtol=1e-9)
    assert within[~other] == 0
    ends = [profile_ends(q, one, 2.7) for one in (within, deviance, deviance_within_pile(p, q, deviance, 10**9))]
    assert np.ptp(ends[0]) < 0.95 * np.ptp(ends[1]) and ends[1] == pytest.approx(ends[2])


def test_the_profile_of_extreme_margins_is_finite(extreme):
    margins, s = extreme
    estimate, priors, deviance = profile_prior(margins, s)
    within = deviance_within_pile(estimate, priors, deviance, (s == 0).sum())
    assert np.isfinite(within).all() and (within >= deviance).all() and LEAST <= estimate <= MOST
    ends = [end for one in (deviance, within) for end in profile_ends(priors, one, 4.0) if end is not None]
    assert all(LEAST <= end <= MOST for end in ends)


# --- thresholds -----------------------------------------------------------------------------------

TILT = Tilt(-0.2, 1.7, 0.25)
SAMPLES = {
    "distinct": gaussians(0.3, 1, 60, seed=3)[0],
    "with ties": np.round(gaussians(0.3, 1, 150, seed=4)[0] * 2) / 2,
    "few values": np.repeat(np.array([-1, 0, 2], np.float32), [20, 9, 3]),
}


def expected(tilt, margins, share, threshold):
    """Precision, recall and F1 above a threshold from the densities of P and of N relative to that of U."""
    ratio = np.exp(tilt.alpha + tilt.slope * margins.astype(np.float64))
    mixture = 1 - tilt.prior + tilt.prior * ratio
    of_p, of_n, called = ratio / mixture, 1 / mixture, margins > threshold
    hits, false_alarms = share * of_p[called].sum(), (1 - share) * of_n[called].sum()
    recall = hits / (share * of_p.sum())
    precision = hits / (hits + false_alarms) if called.any() else 1.0
    return precision, recall, 2 * precision * recall / (precision + recall) if recall else 0.0


def cuts(margins):
    """Every threshold that calls another set of rows positive, from all rows to none."""
    values = np.unique(margins)
    return [values[0] - 1, *((values[1:].astype(np.float64) + values[:-1]) / 2), values[-1]]


@pytest.mark.parametrize("share", [0.02, 0.25, 0.8])
@pytest.mark.parametrize("sample", SAMPLES)
def test_f1_is_the_greatest_of_all_thresholds(sample, share):
    margins = SAMPLES[sample]
    chosen = choose_threshold(TILT, margins, "f1", share)
    of_all = [expected(TILT, margins, share, cut)[2] for cut in cuts(margins)]
    assert expected(TILT, margins, share, chosen)[2] == pytest.approx(max(of_all), rel=1e-9)
    assert min(of_all) < max(of_all) - 0.01


@pytest.mark.parametrize("share", [0.02, 0.8])
def test_where_no_positive_is_expected_the_threshold_is_at_even_odds_of_the_share(share):
    assert choose_threshold(Tilt(-0.2, 1.7, 0.001), np.arange(9.0), "f1", share) == TILT.margin(0.5, share)


@pytest.mark.parametrize("share", [0.02, 0.25, 0.8])
@pytest.mark.parametrize("target", [0.05, 0.6, 0.9, 1.0])
@pytest.mark.parametrize("sample", SAMPLES)
def test_precision_and_recall_meet_their_targets_and_are_the_most_generous_to_do_so(sample, target, share):
    margins = SAMPLES[sample]
    by_cut = [(cut, *expected(TILT, margins, share, cut)) for cut in cuts(margins)]
    chosen = choose_threshold(TILT, margins, f"precision={target}", share)
    precise = [cut for cut, precision, _, _ in by_cut if precision >= target * (1 - 1e-12)]
    assert (margins > chosen).tolist() == (margins > min(precise)).tolist()  # the lowest; none where none is enough
    chosen = choose_threshold(TILT, margins, f"recall={target}", share)
    complete = [cut for cut, _, recall, _ in by_cut if recall >= target * (1 - 1e-9)]
    assert (margins > chosen).tolist() == (margins > max(complete)).tolist()


@pytest.mark.parametrize("rule", ["f1", "precision=0.9", "recall=0.1"])
def test_the_threshold_lies_between_neighbours_even_in_float32(rule):
    high = np.nextafter(np.float32(100), np.float32(101))
    for top, low in ((high, np.float32(100)), (np.float32(100), np.nextafter(np.float32(100), np.float32(0)))):
        margins, middle = np.repeat([top, low], [30, 2]), (float(top) + float(low)) / 2
        chosen = np.float32(choose_threshold(Tilt(-2e7 * middle, 2e7, 0.9), margins, rule, 0.5))
        assert (margins > chosen).tolist() == [True] * 30 + [False] * 2


WRONG = ("", "f2", "f1=0.5", "precision=", "recall=0", "recall=nan", "precision=high", "-inf", "1,5", None, True)


@pytest.mark.parametrize("rule", WRONG, ids=repr)
def test_any_other_rule_is_refused_in_one_line(rule):
    with pytest.raises(ValueError, match=r"^threshold must be f1, precision=P or recall=R with .*; got .*$") as caught:
        parse_rule(rule)
    assert str(caught.value).endswith(f"got {rule!r}") and "\n" not in str(caught.value)


@pytest.mark.parametrize(("threshold", "called"), [(9.0, 25), (-9.0, 100), (0.0, 50)])
def test_a_threshold_near_a_share_calls_half_to_twice_of_it(threshold, called):
    margins = np.random.default_rng(0).permutation(np.linspace(-9.5, 0.5, 1001))[:1000].astype(np.float32)
    above = np.sum(margins > near_share(threshold, margins, 0.05))
    assert above == pytest.approx(called, abs=2)
    by_f1 = np.sum(margins > choose_threshold(TILT, margins, "f1", 0.2, near=0.05, most=-9.0))
    assert by_f1 == pytest.approx(100, abs=2)
