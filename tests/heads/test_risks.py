import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from pucache.heads.risks import RISKS, SURROGATES, PURisk, falling, rising

CLAMPED = {"nnpu": "upu", "imbnnpu": "imbupu"}  # and what each is without its clamp
PU = ("upu", "nnpu", "imbupu", "imbnnpu")
EACH = [(name, surrogate) for name in PU for surrogate in SURROGATES]
EACH += [("weighted_bce", "logistic"), ("bce", "logistic")]
PRIORS = torch.tensor([0.02, 0.3, 0.5, 0.9], dtype=torch.float64)


def row(values):
    return torch.tensor(values, dtype=torch.float64)[None]


def batch(shift=0.0, rows=12, positives=5, seed=0, heads=4):
    """Margins, weights (some zero) and flags; a high `shift` of the positives makes the negative part fall."""
    draw = torch.Generator().manual_seed(seed)
    is_positive = (torch.arange(rows) < positives).double()
    margins = 2 * torch.randn(heads, rows, dtype=torch.float64, generator=draw) + shift * (2 * is_positive - 1)
    weights = torch.rand(heads, rows, dtype=torch.float64, generator=draw)
    weights[:, ::4] = 0
    return margins, weights, is_positive


def numeric_gradient(value, margins, step=1e-6):
    """Central differences; head k's value depends on its own margins alone, so a row is moved in all heads at once."""
    gradient = torch.zeros_like(margins)
    for at in range(margins.shape[1]):
        moved = torch.zeros_like(margins)
        moved[:, at] = step
        gradient[:, at] = (value(margins + moved) - value(margins - moved)) / (2 * step)
    return gradient


# --- METHOD.md once more, for one head and in plain Python -------------------------------------


def loss_and_slope(surrogate, margin):
    if surrogate == "sigmoid":
        return 1 / (1 + math.exp(margin)), -math.exp(margin) / (1 + math.exp(margin)) ** 2
    return math.log(1 + math.exp(-margin)), -1 / (1 + math.exp(margin))


def mean(values, weights):
    return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights) if sum(weights) else 0.0


def parts(risk, P, U, pi):
    """Weights of mean_P l(m), of mean_U l(-m) and of mean_P l(-m)."""
    t = risk.target_prior
    if risk.name in ("upu", "nnpu"):
        return pi, 1.0, -pi
    if risk.name in ("imbupu", "imbnnpu"):
        factor = (1 - t) / (1 - pi)
        return t, factor, -factor * pi
    if risk.name == "weighted_bce":
        return t, 1 - t, 0.0
    everything = sum(P) + sum(U)
    return (sum(P) / everything, sum(U) / everything, 0.0) if everything else (0.0, 1.0, 0.0)


def by_hand(risk, margins, weights, flags, pi):
    """Reported value, stepped gradient, and how far the negative part is above the clamp."""
    under_positive = [loss_and_slope(risk.surrogate, m) for m in margins]
    under_negative = [(value, -slope) for value, slope in (loss_and_slope(risk.surrogate, -m) for m in margins)]
    P = [w * f for w, f in zip(weights, flags, strict=True)]
    U = [w * (1 - f) for w, f in zip(weights, flags, strict=True)]
    a, u, p = parts(risk, P, U, pi)
    positive = a * mean([value for value, _ in under_positive], P)
    losses = [value for value, _ in under_negative]
    negative = u * mean(losses, U) + p * mean(losses, P)
    share_P, share_U = ([w / sum(side) if sum(side) else 0.0 for w in side] for side in (P, U))
    d_positive = [a * share * slope for share, (_, slope) in zip(share_P, under_positive, strict=True)]
    d_negative = [
        (u * of_U + p * of_P) * slope for of_U, of_P, (_, slope) in zip(share_U, share_P, under_negative, strict=True)
    ]
    above = negative + risk.beta
    if "nn" in risk.name and above < 0:
        return positive - risk.beta, [-risk.gamma * d for d in d_negative], above
    return positive + negative, [a + b for a, b in zip(d_positive, d_negative, strict=True)], above


@st.composite
def cases(draw):
    rows = draw(st.integers(1, 8))
    few = {"min_size": rows, "max_size": rows}
    fraction = st.floats(0.01, 0.99)
    risk = PURisk(
        *draw(st.sampled_from(EACH)),
        target_prior=draw(fraction),
        beta=draw(st.sampled_from([0.0, 0.05, 0.3])),
        gamma=draw(st.sampled_from([0.0, 0.5, 1.0])),
    )
    margins = draw(st.lists(st.floats(-30, 30), **few))
    weights = draw(st.lists(st.just(0.0) | st.floats(0.1, 5), **few))
    return risk, margins, weights, draw(st.lists(st.sampled_from([0, 1]), **few)), draw(fraction)


@settings(max_examples=400, deadline=None)
@given(cases())
def test_value_and_step_are_those_of_the_printed_method(case):
    risk, margins, weights, flags, prior = case
    value, step, above = by_hand(risk, margins, weights, flags, prior)
    assume(abs(above) > 1e-9)
    got = risk.value_and_step(row(margins), row(weights), row(flags)[0], torch.tensor([prior], dtype=torch.float64))
    assert got.value.item() == pytest.approx(value, rel=1e-9, abs=1e-12)
    assert got.step[0].tolist() == pytest.approx(step, rel=1e-9, abs=1e-12)
    assert got.clamped.item() == ("nn" in risk.name and above < 0)


@pytest.mark.parametrize("name, surrogate", EACH)
def test_total_is_the_sum_of_the_magnitudes(name, surrogate):
    risk = PURisk(name, surrogate, 0.3)
    share = torch.full_like(PRIORS, 0.2)
    expected = [sum(map(abs, parts(risk, [0.2], [0.8], pi))) for pi in PRIORS.tolist()]
    assert risk.coefficients(PRIORS, share).total.tolist() == pytest.approx(expected)


# --- derivatives -------------------------------------------------------------------------------


@pytest.mark.parametrize("target_prior", [0.2, 0.5])
@pytest.mark.parametrize("name, surrogate", EACH)
def test_without_a_clamp_the_step_is_the_gradient_of_the_value(name, surrogate, target_prior):
    risk = PURisk(name, surrogate, target_prior)
    margins, weights, is_positive = batch(shift=-3.0)
    result = risk.value_and_step(margins, weights, is_positive, PRIORS)
    free = ~result.clamped
    assert free.sum() >= 3
    numeric = numeric_gradient(lambda m: risk.value_and_step(m, weights, is_positive, PRIORS).value, margins)
    torch.testing.assert_close(result.step[free], numeric[free], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("beta, gamma", [(0.0, 1.0), (0.02, 0.3), (0.0, 0.0)])
@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("name", CLAMPED)
def test_clamped_the_step_goes_against_the_negative_part_and_the_value_reports_the_positive_one(
    name, surrogate, beta, gamma
):
    risk, free = PURisk(name, surrogate, 0.3, beta, gamma), PURisk(CLAMPED[name], surrogate, 0.3)
    margins, weights, is_positive = batch(shift=3.0)
    result = risk.value_and_step(margins, weights, is_positive, PRIORS)
    clamped = result.clamped
    assert clamped.sum() >= 2

    def positive_part(m):
        of_positives = (weights * is_positive * falling(surrogate, m)[0]).sum(1) / (weights * is_positive).sum(1)
        return (PRIORS if name == "nnpu" else 0.3) * of_positives

    def negative_part(m):
        return free.value_and_step(m, weights, is_positive, PRIORS).value - positive_part(m)

    torch.testing.assert_close(result.value[clamped], (positive_part(margins) - beta)[clamped])
    expected = -gamma * numeric_gradient(negative_part, margins)
    torch.testing.assert_close(result.step[clamped], expected[clamped], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", CLAMPED)
def test_slack_beta_moves_the_clamp(name):
    arguments = (*batch(shift=3.0), PRIORS)
    assert PURisk(name, "logistic").value_and_step(*arguments).clamped.any()
    slack = PURisk(name, "logistic", beta=1e3).value_and_step(*arguments)
    free = PURisk(CLAMPED[name], "logistic").value_and_step(*arguments)
    assert not slack.clamped.any()
    torch.testing.assert_close(slack.step, free.step)


# --- what the prior does -----------------------------------------------------------------------


def scaled_steps(surrogate, target_prior, name="imbupu"):
    """The steps of heads that differ in the prior alone, each times (1 - prior)."""
    margins, weights, is_positive = batch(heads=1)
    same = margins.expand(len(PRIORS), -1), weights.expand(len(PRIORS), -1)
    step = PURisk(name, surrogate, target_prior).value_and_step(*same, is_positive, PRIORS).step
    return step * (1 - PRIORS)[:, None]


def test_at_target_one_half_the_prior_only_scales_the_sigmoid_gradient():
    steps = scaled_steps("sigmoid", 0.5)
    torch.testing.assert_close(steps, steps[:1].expand_as(steps))
    margins, weights, is_positive = batch(heads=1)  # w_P = w_U = 1/2 / (1 - prior), as METHOD.md works out
    slope = -torch.sigmoid(margins) * (1 - torch.sigmoid(margins)) / 2
    signed = [side * weights / (side * weights).sum() for side in (is_positive, 1 - is_positive)]
    torch.testing.assert_close(steps[:1], slope * (signed[0] - signed[1]))


MATTERS = [("logistic", 0.5, "imbupu"), ("sigmoid", 0.3, "imbupu"), ("sigmoid", 0.5, "upu"), ("logistic", 0.5, "upu")]


@pytest.mark.parametrize("surrogate, target_prior, name", MATTERS)
def test_elsewhere_the_prior_turns_the_gradient(surrogate, target_prior, name):
    steps = torch.nn.functional.normalize(scaled_steps(surrogate, target_prior, name), dim=1)
    assert (steps @ steps.T).min() < 0.999
    assert PURisk(name, surrogate, target_prior).needs_prior


def smallest(X, is_positive, prior):
    """Coefficients that minimise imbalanced uPU with the sigmoid loss and a penalty relative to its size."""
    risk, weights = PURisk("imbupu"), torch.ones(1, len(X), dtype=torch.float64)
    size = risk.coefficients(prior, prior).total.item()

    def objective(coef):
        coef = torch.from_numpy(coef)
        result = risk.value_and_step((X @ coef)[None], weights, is_positive, prior)
        value, gradient = result.value[0] + 0.05 * size * (coef @ coef), result.step[0] @ X + 0.1 * size * coef
        return value.item() / size, (gradient / size).numpy()

    return minimize(objective, np.zeros(X.shape[1]), jac=True, tol=1e-12).x


def test_at_target_one_half_imbalanced_upu_has_one_minimiser_whatever_the_prior():
    draw = torch.Generator().manual_seed(0)
    X, is_positive = torch.randn(60, 3, dtype=torch.float64, generator=draw), (torch.arange(60) < 20).double()
    X += is_positive[:, None]
    found = [smallest(X, is_positive, prior[None]) for prior in PRIORS]
    assert np.linalg.norm(found[0]) > 0.1
    np.testing.assert_allclose(found, [found[0]] * len(found), atol=1e-5)


@pytest.mark.parametrize(
    "risk, needed",
    [
        (PURisk(), False),
        (PURisk("imbnnpu"), True),  # its clamp looks at the prior
        (PURisk("nnpu"), True),
        (PURisk("weighted_bce", target_prior=0.3), False),
        (PURisk("bce"), False),
    ],
)
def test_whether_the_prior_is_needed(risk, needed):
    assert risk.needs_prior == needed


def test_at_target_equal_to_the_prior_the_imbalanced_risk_is_the_plain_one():
    prior = torch.tensor([0.3], dtype=torch.float64)
    plain, imbalanced = (
        PURisk(name, target_prior=0.3).value_and_step(*batch(heads=1), prior) for name in ("upu", "imbupu")
    )
    torch.testing.assert_close(plain.step, imbalanced.step)
    torch.testing.assert_close(plain.value, imbalanced.value)


# --- U taken for negative ----------------------------------------------------------------------


@pytest.mark.parametrize("name, balance", [("bce", None), ("weighted_bce", "balanced")])
def test_cross_entropy_has_its_minimum_where_scikit_learn_s_logistic_regression_has(name, balance):
    draw = np.random.default_rng(0)
    flags = np.arange(80) < 15
    X, C = draw.normal(size=(80, 3)) + flags[:, None], 0.1
    model = LogisticRegression(C=C, class_weight=balance, tol=1e-10, max_iter=1000).fit(X, flags)
    margins, ones = torch.from_numpy(model.decision_function(X)), torch.ones(1, 80, dtype=torch.float64)
    result = PURisk(name).value_and_step(margins[None], ones, torch.from_numpy(flags).double(), PRIORS[:1])
    step = result.step[0].numpy()
    np.testing.assert_allclose(step @ X, -model.coef_[0] / (C * len(X)), atol=1e-7)
    assert step.sum() == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("name", ["bce", "weighted_bce"])
def test_the_supervised_ceiling_is_the_same_risk_with_the_true_classes(name):
    """R+ and R- are then the cross-entropy of the true positives and of the true negatives."""
    margins, weights, s = batch()
    y = s.clone()
    y[-3:] = 1
    got = PURisk(name).value_and_step(margins, weights, y, PRIORS)
    of_row = torch.nn.functional.binary_cross_entropy_with_logits(margins, y.expand_as(margins), reduction="none")
    if name == "bce":
        expected = (weights * of_row).sum(1) / weights.sum(1)
    else:
        expected = sum((weights * side * of_row).sum(1) / (weights * side).sum(1) for side in (y, 1 - y)) / 2
    torch.testing.assert_close(got.value, expected)
    assert not torch.allclose(got.value, PURisk(name).value_and_step(margins, weights, s, PRIORS).value)


# --- heads, weights, odd batches ---------------------------------------------------------------


@pytest.mark.parametrize("shift", [-3.0, 3.0])
@pytest.mark.parametrize("name, surrogate", EACH)
def test_many_heads_at_once_are_as_each_alone(name, surrogate, shift):
    risk, (margins, weights, is_positive) = PURisk(name, surrogate), batch(shift)
    together = risk.value_and_step(margins, weights, is_positive, PRIORS)
    for k in range(len(PRIORS)):
        one = slice(k, k + 1)
        alone = risk.value_and_step(margins[one], weights[one], is_positive, PRIORS[one])
        torch.testing.assert_close(together.value[one], alone.value)
        torch.testing.assert_close(together.step[one], alone.step)
        assert together.clamped[k] == alone.clamped[0]


@pytest.mark.parametrize("name", RISKS)
def test_rows_of_weight_zero_might_as_well_not_be_there(name):
    margins, weights, is_positive = batch(3.0)
    full = PURisk(name).value_and_step(margins, weights, is_positive, PRIORS)
    out = (weights == 0).all(0)
    assert 0 < out.sum() < len(out)
    assert (full.step[:, out] == 0).all()
    left = PURisk(name).value_and_step(margins[:, ~out], weights[:, ~out], is_positive[~out], PRIORS)
    torch.testing.assert_close(full.value, left.value)
    torch.testing.assert_close(full.step[:, ~out], left.step)


@pytest.mark.parametrize("name", RISKS)
def test_only_the_proportions_of_the_weights_count(name):
    margins, weights, is_positive = batch()
    other = torch.tensor(3.0) if name == "bce" else torch.where(is_positive == 1, 7.0, 0.2)
    first = PURisk(name).value_and_step(margins, weights, is_positive, PRIORS)
    second = PURisk(name).value_and_step(margins, weights * other, is_positive, PRIORS)
    torch.testing.assert_close(first.value, second.value)
    torch.testing.assert_close(first.step, second.step)


@pytest.mark.parametrize("name, surrogate", EACH)
def test_a_batch_of_one_kind_only_counts_the_other_as_zero(name, surrogate):
    risk, (margins, weights, is_positive) = PURisk(name, surrogate, 0.4), batch()
    zeros, ones = torch.zeros_like(is_positive), torch.ones_like(is_positive)
    factor = {"imb": 0.6 / (1 - PRIORS), "wei": 0.6}.get(name[:3], 1.0)
    of_unlabelled = (weights * rising(surrogate, margins)[0]).sum(1) / weights.sum(1)
    no_positives = risk.value_and_step(margins, weights, zeros, PRIORS)
    torch.testing.assert_close(no_positives.value, factor * of_unlabelled)
    no_unlabelled = risk.value_and_step(margins, weights, ones, PRIORS)
    assert no_unlabelled.clamped.all() == (name in CLAMPED)
    nothing = risk.value_and_step(margins, 0 * weights, is_positive, PRIORS)
    for result in (no_positives, no_unlabelled, nothing):
        assert result.value.isfinite().all() and result.step.isfinite().all()
    assert (nothing.step == 0).all() and (nothing.value == 0).all()


@pytest.mark.parametrize("side", [rising, falling])
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_huge_margins_stay_finite_in_float32(surrogate, side):
    for values in side(surrogate, torch.tensor([[1e30], [-1e30], [200.0], [-200.0]])):
        assert values.isfinite().all()


# --- parameters --------------------------------------------------------------------------------


def test_defaults():
    assert PURisk() == PURisk("imbupu", "sigmoid", 0.5, 0.0, 1.0)
    assert PURisk("bce").surrogate == PURisk("weighted_bce").surrogate == "logistic"


@pytest.mark.parametrize(
    "bad, words",
    [
        ({"name": "imbnnPU"}, "unknown loss 'imbnnPU'; use upu, nnpu"),
        ({"surrogate": "hinge"}, "unknown surrogate 'hinge'; use sigmoid"),
        *(({"name": name, "surrogate": "sigmoid"}, "its surrogate is logistic") for name in ("bce", "weighted_bce")),
        *(({"target_prior": value}, "target_prior must lie") for value in (0.0, 1.0, -0.1, math.nan)),
        *(({"beta": value}, "beta must be >= 0") for value in (-0.1, math.nan)),
        *(({"gamma": value}, r"gamma in \[0, 1\]") for value in (-0.1, 1.1, math.nan)),
    ],
    ids=str,
)
def test_bad_parameters_are_refused_by_name(bad, words):
    with pytest.raises(ValueError, match=words):
        PURisk(**bad)
