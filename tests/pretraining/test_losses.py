import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pucache.pretraining.losses import alignment, contrastive_loss, uniformity

pytestmark = pytest.mark.usefixtures("one_thread")
TEMPERATURES = st.floats(0.05, 5)
# the share of neg that tau_plus * pos must stay away from: there the bound is taken a little early
EDGE = 1e-5


def by_the_formulas(z, temperature, tau_plus):
    """The loss as METHOD.md has it, anchor by anchor; also whether the bound holds for each, and how near it is."""
    B, M, _ = z.shape
    z = z / np.sqrt((z**2).sum(2, keepdims=True))
    N = M * (B - 1)
    losses, bound, edge = [], [], []
    for i in range(B):
        for a in range(M):
            pos = np.mean([math.exp(z[i, a] @ z[i, k] / temperature) for k in range(M) if k != a])
            neg = np.mean([math.exp(z[i, a] @ z[j, k] / temperature) for j in range(B) if j != i for k in range(M)])
            unbiased, least = (neg - tau_plus * pos) / (1 - tau_plus), math.exp(-1 / temperature)
            losses.append(-math.log(pos / (pos + N * max(unbiased, least))))
            bound.append(unbiased < least)
            edge.append(abs(neg - tau_plus * pos) / neg < EDGE)
    return np.mean(losses), np.array(bound), any(edge)


def projections(B, M, d, seed, spread=None):
    """Random ones; with a `spread`, views of an image that differ by so much."""
    generator = np.random.default_rng(seed)
    if spread is None:
        return generator.standard_normal((B, M, d))
    return generator.standard_normal((B, 1, d)) + spread * generator.standard_normal((B, M, d))


# --- the formulas ------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    B=st.integers(2, 6),
    M=st.integers(2, 4),
    d=st.integers(1, 9),
    seed=st.integers(0, 2**31),
    spread=st.none() | st.floats(0.01, 3),
    temperature=TEMPERATURES,
    tau_plus=st.just(0.0) | st.floats(0, 0.9),
)
def test_the_loss_is_that_of_the_formulas(B, M, d, seed, spread, temperature, tau_plus):
    z = projections(B, M, d, seed, spread)
    expected, _, edge = by_the_formulas(z, temperature, tau_plus)
    got = contrastive_loss(torch.from_numpy(z), temperature=temperature, tau_plus=tau_plus)
    assert got.dtype == torch.float64 and got.shape == ()
    assert float(got) == pytest.approx(expected, rel=1e-9, abs=1e-3 if edge else 1e-12)


# --- gradients ---------------------------------------------------------------------------------


@pytest.mark.parametrize("tau_plus", [0.0, 0.1])
@pytest.mark.parametrize("temperature", [0.1, 0.5, 3.0])
@pytest.mark.parametrize("M", [2, 3])
def test_the_gradient_is_that_of_finite_differences(M, temperature, tau_plus):
    z = projections(4, M, 5, 3)
    _, bounds, edge = by_the_formulas(z, temperature, tau_plus)
    assert not edge and not bounds.all()
    z = torch.from_numpy(z).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: contrastive_loss(z, temperature=temperature, tau_plus=tau_plus), z)


@pytest.mark.parametrize("temperature", [0.2, 0.3])
def test_the_gradient_is_that_of_finite_differences_where_the_bound_holds_for_some_or_all(temperature):
    for spread, some in [(0.3, True), (0.01, False)]:
        z = projections(6, 2, 3, 0, spread)
        _, bounds, edge = by_the_formulas(z, temperature, 0.3)
        assert not edge and bounds.any() and bounds.all() != some
        z = torch.from_numpy(z).requires_grad_()
        assert torch.autograd.gradcheck(lambda z: contrastive_loss(z, temperature=temperature, tau_plus=0.3), z)


# --- alignment and uniformity ----------------------------------------------------------------------


@pytest.mark.parametrize("M", [2, 3, 4])
def test_alignment_is_the_mean_squared_distance_of_views_of_one_image(M):
    z = projections(6, M, 5, M)
    unit = z / np.sqrt((z**2).sum(2, keepdims=True))
    pairs = [((one[a] - one[b]) ** 2).sum() for one in unit for a in range(M) for b in range(M) if a != b]
    assert float(alignment(torch.from_numpy(z))) == pytest.approx(np.mean(pairs), rel=1e-5)


def test_uniformity_is_the_logarithm_of_the_mean_kernel_of_first_views():
    z = projections(7, 2, 5, 0)
    first = z[:, 0] / np.sqrt((z[:, 0] ** 2).sum(1, keepdims=True))
    kernel = [math.exp(-2 * ((a - b) ** 2).sum()) for i, a in enumerate(first) for j, b in enumerate(first) if i != j]
    assert float(uniformity(torch.from_numpy(z))) == pytest.approx(math.log(np.mean(kernel)), rel=1e-5)


HARD = {
    "random": torch.from_numpy(projections(4, 2, 8, 0)).float(),
    "identical views": torch.from_numpy(projections(4, 1, 8, 0)).float().expand(4, 3, 8),
    "nearly identical views": torch.from_numpy(projections(4, 2, 8, 0, 1e-6)).float(),
    "opposite views": torch.from_numpy(projections(4, 1, 8, 0)).float() * torch.tensor([1.0, -1])[:, None],
    "identical images": torch.from_numpy(projections(1, 2, 8, 0)).float().expand(4, 2, 8),
    "one point": torch.ones(4, 2, 8),
    "two opposite points": torch.ones(4, 2, 8) * torch.tensor([1.0, -1, 1, -1])[:, None, None],
    "an image at zero": torch.from_numpy(projections(4, 2, 8, 0)).float() * torch.tensor([0.0, 1, 1, 1])[:, None, None],
    "zero": torch.zeros(4, 2, 8),
}


@pytest.mark.parametrize("name", HARD)
def test_loss_and_gradient_are_finite(name):
    for temperature, tau_plus in itertools.product([1e-20, 0.005, 0.5, 1e30], [0, 0.1, 0.9, 1 - 1e-9]):
        z = HARD[name].clone().requires_grad_()
        loss = contrastive_loss(z, temperature=temperature, tau_plus=tau_plus)
        loss.backward()
        assert loss.isfinite() and loss >= 0 and z.grad.isfinite().all(), (temperature, tau_plus)
