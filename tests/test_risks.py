import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pucache.risks import LOSSES, RISKS, PURisk

CLAMPED = ["nnpu", "imbnnpu"]
UNCLAMPED = {"nnpu": "upu", "imbnnpu": "imbupu"}
PRIORS = torch.tensor([0.02, 0.3, 0.5, 0.9], dtype=torch.float64)


def column(values):
    return torch.tensor(values, dtype=torch.float64)[:, None]


def batch(shift=0.0, rows=12, positives=5, seed=0, heads=4):
    """Margins, weights (some zero) and flags; a high `shift` of the positives makes the negative part fall."""
    draw = torch.Generator().manual_seed(seed)
    is_positive = (torch.arange(rows) < positives).double()[:, None]
    margins = 2 * torch.randn(rows, heads, dtype=torch.float64, generator=draw) + shift * (2 * is_positive - 1)
    weights = torch.rand(rows, heads, dtype=torch.float64, generator=draw)
    weights[::4] = 0
    return margins, weights, is_positive


def numeric_gradient(value, margins, step=1e-6):
    """Central differences; head k's value depends on its own column alone, so a row is moved in all heads at once."""
    gradient = torch.zeros_like(margins)
    for row in range(len(margins)):
        moved = torch.zeros_like(margins)
        moved[row] = step
        gradient[row] = (value(margins + moved) - value(margins - moved)) / (2 * step)
    return gradient


# --- METHOD.md once more, for one head and in plain Python -------------------------------------


def loss_and_slope(name, margin):
    if name == "sigmoid":
        return 1 / (1 + math.exp(margin)), -math.exp(margin) / (1 + math.exp(margin)) ** 2
    return math.log(1 + math.exp(-margin)), -1 / (1 + math.exp(margin))


def mean(values, weights):
    return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights) if sum(weights) else 0.0


def by_hand(risk, margins, weights, flags, prior):
    """Reported value, stepped gradient, and how far the negative part is above the clamp."""
    pi, target = prior, risk.target_prior if risk.name.startswith("imb") else prior
    factor = (1 - target) / (1 - pi) if risk.name.startswith("imb") else 1.0
    under_positive = [loss_and_slope(risk.loss, m) for m in margins]
    under_negative = [(value, -slope) for value, slope in (loss_and_slope(risk.loss, -m) for m in margins)]
    P = [w * f for w, f in zip(weights, flags, strict=True)]
    U = [w * (1 - f) for w, f in zip(weights, flags, strict=True)]
    positive = target * mean([value for value, _ in under_positive], P)
    losses = [value for value, _ in under_negative]
    negative = factor * (mean(losses, U) - pi * mean(losses, P))
    share_P, share_U = ([w / sum(side) if sum(side) else 0.0 for w in side] for side in (P, U))
    d_positive = [target * p * slope for p, (_, slope) in zip(share_P, under_positive, strict=True)]
    d_negative = [
        factor * (u - pi * p) * slope for u, p, (_, slope) in zip(share_U, share_P, under_negative, strict=True)
    ]
    if "nn" in risk.name and negative < -risk.beta:
        return positive - risk.beta, [-risk.gamma * d for d in d_negative], negative + risk.beta
    return positive + negative, [a + b for a, b in zip(d_positive, d_negative, strict=True)], negative + risk.beta


@st.composite
def cases(draw):
    rows = draw(st.integers(1, 8))
    few = {"min_size": rows, "max_size": rows}
    fraction = st.floats(0.01, 0.99)
    risk = PURisk(
        draw(st.sampled_from(RISKS)),
        draw(st.sampled_from(list(LOSSES))),
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
    got = risk.value_and_step(
        column(margins), column(weights), column(flags), torch.tensor([prior], dtype=torch.float64)
    )
    assert got.value.item() == pytest.approx(value, rel=1e-9, abs=1e-12)
    assert got.step[:, 0].tolist() == pytest.approx(step, rel=1e-9, abs=1e-12)
    assert got.clamped.item() == ("nn" in risk.name and above < 0)


# --- derivatives -------------------------------------------------------------------------------


@pytest.mark.parametrize("target_prior", [0.2, 0.5])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", RISKS)
def test_without_a_clamp_the_step_is_the_gradient_of_the_value(name, loss, target_prior):
    risk = PURisk(name, loss, target_prior)
    margins, weights, is_positive = batch(shift=-3.0)
    result = risk.value_and_step(margins, weights, is_positive, PRIORS)
    free = ~result.clamped
    assert free.sum() >= 3
    numeric = numeric_gradient(lambda m: risk.value_and_step(m, weights, is_positive, PRIORS).value, margins)
    torch.testing.assert_close(result.step[:, free], numeric[:, free], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("beta, gamma", [(0.0, 1.0), (0.02, 0.3), (0.0, 0.0)])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", CLAMPED)
def test_clamped_the_step_goes_against_the_negative_part_and_the_value_reports_the_positive_one(
    name, loss, beta, gamma
):
    risk, free = PURisk(name, loss, 0.3, beta, gamma), PURisk(UNCLAMPED[name], loss, 0.3)
    margins, weights, is_positive = batch(shift=3.0)
    result = risk.value_and_step(margins, weights, is_positive, PRIORS)
    clamped = result.clamped
    assert clamped.sum() >= 2

    losses = weights * is_positive * LOSSES[loss](margins)[0]
    positive_part = (PRIORS if name == "nnpu" else 0.3) * losses.sum(0) / (weights * is_positive).sum(0)
    torch.testing.assert_close(result.value[clamped], (positive_part - beta)[clamped])

    def negative_part(m):
        of_positives = (weights * is_positive * LOSSES[loss](m)[0]).sum(0) / (weights * is_positive).sum(0)
        total = free.value_and_step(m, weights, is_positive, PRIORS).value
        return total - (PRIORS if name == "nnpu" else 0.3) * of_positives

    expected = -gamma * numeric_gradient(negative_part, margins)
    torch.testing.assert_close(result.step[:, clamped], expected[:, clamped], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", CLAMPED)
def test_slack_beta_moves_the_clamp(name):
    arguments = (*batch(shift=3.0), PRIORS)
    assert PURisk(name, "logistic").value_and_step(*arguments).clamped.any()
    slack = PURisk(name, "logistic", beta=1e3).value_and_step(*arguments)
    free = PURisk(UNCLAMPED[name], "logistic").value_and_step(*arguments)
    assert not slack.clamped.any()
    torch.testing.assert_close(slack.step, free.step)


# --- what the prior does -----------------------------------------------------------------------


def scaled_steps(loss, target_prior, name="imbupu"):
    """The steps of heads that differ in the prior alone, each times (1 - prior)."""
    margins, weights, is_positive = batch(heads=1)
    same = margins.expand(-1, len(PRIORS)), weights.expand(-1, len(PRIORS))
    return PURisk(name, loss, target_prior).value_and_step(*same, is_positive, PRIORS).step * (1 - PRIORS)


def test_at_target_one_half_the_prior_only_scales_the_sigmoid_gradient():
    steps = scaled_steps("sigmoid", 0.5)
    torch.testing.assert_close(steps, steps[:, :1].expand_as(steps))
    margins, weights, is_positive = batch(heads=1)  # w_P = w_U = 1/2 / (1 - prior), as METHOD.md works out
    slope = -torch.sigmoid(margins) * (1 - torch.sigmoid(margins)) / 2
    signed = [side * weights / (side * weights).sum() for side in (is_positive, 1 - is_positive)]
    torch.testing.assert_close(steps[:, :1], slope * (signed[0] - signed[1]))


@pytest.mark.parametrize(
    "loss, target_prior, name", [("logistic", 0.5, "imbupu"), ("sigmoid", 0.3, "imbupu"), ("sigmoid", 0.5, "upu")]
)
def test_elsewhere_the_prior_turns_the_gradient(loss, target_prior, name):
    steps = torch.nn.functional.normalize(scaled_steps(loss, target_prior, name), dim=0)
    assert (steps.T @ steps).min() < 0.999


def test_at_target_equal_to_the_prior_the_imbalanced_risk_is_the_plain_one():
    margins, weights, is_positive = batch(heads=1)
    prior = torch.tensor([0.3], dtype=torch.float64)
    plain, imbalanced = (
        PURisk(name, target_prior=0.3).value_and_step(margins, weights, is_positive, prior)
        for name in ("upu", "imbupu")
    )
    torch.testing.assert_close(plain.step, imbalanced.step)
    torch.testing.assert_close(plain.value, imbalanced.value)


# --- heads, weights, odd batches ---------------------------------------------------------------


@pytest.mark.parametrize("shift", [-3.0, 3.0])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", RISKS)
def test_many_heads_at_once_are_as_each_alone(name, loss, shift):
    margins, weights, is_positive = batch(shift)
    together = PURisk(name, loss).value_and_step(margins, weights, is_positive, PRIORS)
    for k in range(len(PRIORS)):
        one = slice(k, k + 1)
        alone = PURisk(name, loss).value_and_step(margins[:, one], weights[:, one], is_positive, PRIORS[one])
        torch.testing.assert_close(together.value[one], alone.value)
        torch.testing.assert_close(together.step[:, one], alone.step)
        assert together.clamped[k] == alone.clamped[0]


@pytest.mark.parametrize("name", RISKS)
def test_rows_of_weight_zero_might_as_well_not_be_there(name):
    margins, weights, is_positive = batch(3.0)
    full = PURisk(name).value_and_step(margins, weights, is_positive, PRIORS)
    out = (weights == 0).all(1)
    assert 0 < out.sum() < len(out)
    assert (full.step[out] == 0).all()
    left = PURisk(name).value_and_step(margins[~out], weights[~out], is_positive[~out], PRIORS)
    torch.testing.assert_close(full.value, left.value)
    torch.testing.assert_close(full.step[~out], left.step)


@pytest.mark.parametrize("name", RISKS)
def test_only_the_proportions_of_the_weights_count(name):
    margins, weights, is_positive = batch()
    by_side = torch.where(is_positive == 1, 7.0, 0.2)
    first = PURisk(name).value_and_step(margins, weights, is_positive, PRIORS)
    second = PURisk(name).value_and_step(margins, weights * by_side, is_positive, PRIORS)
    torch.testing.assert_close(first.value, second.value)
    torch.testing.assert_close(first.step, second.step)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", RISKS)
def test_a_batch_of_one_kind_only_counts_the_other_as_zero(name, loss):
    risk, margins, weights = PURisk(name, loss, 0.4), *batch()[:2]
    factor = 0.6 / (1 - PRIORS) if name.startswith("imb") else torch.ones_like(PRIORS)
    of_unlabelled = (weights * LOSSES[loss](margins)[2]).sum(0) / weights.sum(0)
    no_positives = risk.value_and_step(margins, weights, torch.zeros(12, 1).double(), PRIORS)
    torch.testing.assert_close(no_positives.value, factor * of_unlabelled)
    no_unlabelled = risk.value_and_step(margins, weights, torch.ones(12, 1).double(), PRIORS)
    assert no_unlabelled.clamped.all() == (name in CLAMPED)
    for result in (no_positives, no_unlabelled, risk.value_and_step(margins, 0 * weights, batch()[2], PRIORS)):
        assert result.value.isfinite().all() and result.step.isfinite().all()
    assert (result.step == 0).all() and (result.value == 0).all()


@pytest.mark.parametrize("loss", LOSSES)
def test_huge_margins_stay_finite_in_float32(loss):
    margins = torch.tensor([[1e30], [-1e30], [200.0], [-200.0]])
    for values in LOSSES[loss](margins):
        assert values.isfinite().all()


@pytest.mark.parametrize(
    "bad",
    [
        {"name": "imbnnPU"},
        {"loss": "hinge"},
        *({"target_prior": value} for value in (0.0, 1.0, -0.1, math.nan)),
        *({"beta": value} for value in (-0.1, math.nan)),
        *({"gamma": value} for value in (-0.1, 1.1, math.nan)),
    ],
    ids=str,
)
def test_bad_parameters_are_refused_by_name(bad):
    with pytest.raises(ValueError, match=r"beta must .* and gamma|unknown risk|unknown loss|target_prior"):
        PURisk(**bad)
