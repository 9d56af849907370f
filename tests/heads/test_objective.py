import numpy as np
import pytest
import torch
from helpers.planted import planted
from scipy.special import expit

from pucache.heads import design_matrix
from pucache.heads.design_matrix import DesignMatrix
from pucache.heads.linear_heads import FittedHeads
from pucache.heads.moments import Moments
from pucache.heads.objective import WIDTH, HeadProblem, risk_objective, soft_target_objective
from pucache.heads.risks import RISKS, PURisk
from pucache.progress import Silent

pytestmark = pytest.mark.usefixtures("one_thread")
N, D = 400, 6
PRIORS, PENALTIES = [0.02, 0.3, 0.8], [0.0, 0.1, 2.0]
CPU = torch.device("cpu")
EVERY = torch.arange(3)


def run_all(tasks):
    return (task() for task in tasks)


@pytest.fixture(scope="module")
def data():
    X, s, _ = planted(N, D, prior=0.3)
    return X, s, np.random.default_rng(1).uniform(0.2, 2, (N, 3)).astype(np.float32)


@pytest.fixture
def design(data, monkeypatch):
    """Rows as they are, in several blocks."""
    monkeypatch.setitem(design_matrix._BLOCK_VALUES, "cpu", 256)
    return DesignMatrix(data[0], data[1], Moments(np.zeros(D, np.float32), 1.0), CPU)


def parameters():
    drawn = torch.randn(3, D + 1, generator=torch.Generator().manual_seed(0)) / 2
    drawn[2, :D] += 1  # towards the clamp
    return drawn


def risk_by_formula(data, risk, k, vector):
    """R+ and R- of head k in float64, and the sum of the magnitudes of their coefficients."""
    X, s, weights = data
    P, U = (weights[:, k].astype(np.float64) * side for side in (s == 1, s == 0))
    margins, t, prior = X.astype(np.float64) @ vector[:-1] + vector[-1], risk.target_prior, PRIORS[k]
    loss = (lambda m: np.logaddexp(0, m)) if risk.surrogate == "logistic" else expit
    of_P, not_P, not_U = ((w * loss(m)).sum() / w.sum() for w, m in ((P, -margins), (P, margins), (U, margins)))
    share = P.sum() / (P + U).sum()
    a, u, p = {
        "upu": (prior, 1, -prior),
        "imbupu": (t, (1 - t) / (1 - prior), -prior * (1 - t) / (1 - prior)),
        "weighted_bce": (t, 1 - t, 0),
        "bce": (share, 1 - share, 0),
    }[risk.name.replace("nnpu", "upu")]
    return a * of_P, u * not_U + p * not_P, a + u + abs(p)


def risk_value(data, risk, k, vector):
    """R+ + R- with its kink smoothed + penalty."""
    positive, negative, total = risk_by_formula(data, risk, k, vector)
    if risk.clamped:
        negative = WIDTH * np.logaddexp(0, (negative + risk.beta) / WIDTH) - risk.beta
    return positive + negative + 0.5 * PENALTIES[k] * total * np.square(vector[:-1]).sum()


def soft_value(data, targets, k, vector):
    margins = data[0].astype(np.float64) @ vector[:-1] + vector[-1]
    loss = np.average(np.logaddexp(0, margins) - targets[:, k] * margins, weights=data[2][:, k])
    return loss + 0.5 * PENALTIES[k] * np.square(vector[:-1]).sum()


def check_derivatives(objective, at, value_of):
    """Values by the formula and gradients by central differences of it."""
    values, gradients = objective(at, EVERY)
    for k in range(3):
        vector = at[k].double().numpy()
        assert values[k].item() == pytest.approx(value_of(k, vector), rel=1e-5, abs=1e-6)
        ends = [[value_of(k, vector + sign * 1e-6 * unit) for sign in (1, -1)] for unit in np.eye(D + 1)]
        np.testing.assert_allclose(gradients[k], np.diff(ends, axis=1)[:, 0] / -2e-6, rtol=1e-3, atol=2e-6)
    some = objective(at[1:], EVERY[1:])
    torch.testing.assert_close(some[0], values[1:])
    torch.testing.assert_close(some[1], gradients[1:])
    assert objective.passes == 2


@pytest.mark.parametrize("surrogate", ["sigmoid", "logistic"])
@pytest.mark.parametrize("name", RISKS)
def test_risks_are_those_of_the_formulas_and_their_gradients_finite_differences(data, design, name, surrogate):
    risk = PURisk(name, None if "bce" in name else surrogate, target_prior=0.4, beta=0.01)
    problem = HeadProblem.of(design, risk, weights=data[2], prior=PRIORS, penalty=PENALTIES)
    objective, scale = risk_objective(problem, Silent(), run_all)
    at = parameters()
    check_derivatives(objective, at, lambda k, vector: risk_value(data, risk, k, vector))
    parts = [risk_by_formula(data, risk, k, at[k].double().numpy()) for k in range(3)]
    np.testing.assert_allclose(scale, [total for _, _, total in parts], rtol=1e-5)
    if "bce" not in name:
        assert min(negative for _, negative, _ in parts) < -0.01 < max(negative for _, negative, _ in parts)
    reported, removed = objective.report(at, objective(at, EVERY)[0])
    for k, (positive, negative, _) in enumerate(parts):
        held = max(negative, -0.01) if risk.clamped else negative
        assert reported[k].item() == pytest.approx(positive + held, rel=1e-4, abs=1e-5)
        share = expit(-(negative + 0.01) / WIDTH) if risk.clamped else 0
        assert removed[k].item() == pytest.approx(share, abs=5e-3)


@pytest.mark.parametrize("shared", [False, True])
def test_soft_targets_have_the_cross_entropy_and_its_gradient(data, design, shared):
    targets = expit(np.random.default_rng(0).normal(size=(N, 3))).astype(np.float32)
    targets[data[1] == 1] = 1
    weights = data[2][:, :1] if shared else data[2]
    data = (*data[:2], np.tile(weights, 3) if shared else weights)
    scaled = weights / weights.sum(0, dtype=np.float64)
    objective = soft_target_objective(design, targets, scaled, np.array(PENALTIES), run_all)
    check_derivatives(objective, parameters(), lambda k, vector: soft_value(data, targets, k, vector))


# --- design matrix --------------------------------------------------------------------------------


def test_margins_are_those_of_the_heads_on_x(monkeypatch):
    monkeypatch.setitem(design_matrix._BLOCK_VALUES, "cpu", 256)  # several blocks of 256 rows
    draw = np.random.default_rng(0)
    X = (3 * draw.normal(size=5) + draw.normal(size=(700, 5)) * np.arange(1, 6)).astype(np.float32)
    draw = np.random.default_rng(0)
    coef, intercept, nothing = draw.normal(size=(4, 5)), draw.normal(size=4), np.zeros(4, np.float32)
    heads = FittedHeads(coef.astype(np.float32), intercept.astype(np.float32), nothing, nothing, nothing, 1)
    design = DesignMatrix(X, draw.integers(2, size=700), None, torch.device("cpu"))
    np.testing.assert_allclose(design.margins(heads), heads.margins(X), rtol=1e-4, atol=1e-4)
    chosen = draw.integers(4, size=(700, 2))
    expected = np.take_along_axis(design.margins(heads), chosen, axis=1)
    np.testing.assert_array_equal(design.margins(heads, chosen), expected)


# --- moments --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mean, dtype", [(0.0, np.float32), (1000.0, np.float32), (1e5, np.float32), (10.0, np.float16)]
)
def test_moments_are_those_of_float64_however_far_the_mean_is_from_zero(mean, dtype):
    draw = np.random.default_rng(0)
    rows = (mean * draw.normal(size=5) + draw.normal(size=(700, 5)) * np.arange(1, 6)).astype(dtype)
    exact, moments = rows.astype(np.float64), Moments.of(rows)
    assert moments.centre.dtype == np.float32
    np.testing.assert_allclose(moments.centre, exact.mean(0), rtol=1e-7, atol=1e-6)
    assert moments.spread == pytest.approx(np.sqrt(np.square(exact - exact.mean(0)).sum(1).mean()), rel=1e-5)
    assert moments.root_mean_square == pytest.approx(np.sqrt(np.square(exact).mean()), rel=1e-6)
