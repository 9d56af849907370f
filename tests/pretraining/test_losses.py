import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy, normalize

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


def loss_and_gradient(z, **parameters):
    z = z.detach().clone().requires_grad_()
    loss = contrastive_loss(z, **parameters)
    loss.backward()
    return loss.detach(), z.grad


# --- the formulas ------------------------------------------------------------------------------


@settings(deadline=None, max_examples=150)
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


@pytest.mark.parametrize(("temperature", "tau_plus", "bound"), [(0.2, 0.1, 3), (0.5, 0.3, 6), (5, 0.6, 10)])
def test_the_loss_is_that_of_the_formulas_where_the_bound_holds_for_some_anchors_alone(temperature, tau_plus, bound):
    z = projections(6, 2, 3, 0, 0.3)
    expected, bounds, _ = by_the_formulas(z, temperature, tau_plus)
    assert bounds.sum() == bound
    got = contrastive_loss(torch.from_numpy(z), temperature=temperature, tau_plus=tau_plus)
    assert float(got) == pytest.approx(expected, rel=1e-12)


@settings(deadline=None, max_examples=50)
@given(B=st.integers(2, 9), seed=st.integers(0, 2**31), temperature=TEMPERATURES)
def test_two_views_and_no_debiasing_are_nt_xent(B, seed, temperature):
    """As cross entropy over the other 2B - 1 views, which must pick out the one of the same image."""
    z = torch.from_numpy(projections(B, 2, 5, seed))
    views = normalize(z.transpose(0, 1).reshape(2 * B, 5), dim=1)  # first views, then second ones
    logits = (views @ views.T / temperature).fill_diagonal_(-math.inf)
    expected = cross_entropy(logits, (torch.arange(2 * B) + B) % (2 * B))
    torch.testing.assert_close(contrastive_loss(z, temperature=temperature, tau_plus=0), expected)


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


def at_the_bound():
    """Projections in the plane for which (neg - 0.5 pos) is 0, a little less and a little more, at temperature 1."""
    for nudge in (0, -1e-9, 1e-9, -1e-7, 1e-7, -1e-4, 1e-4):
        angle = math.acos(1 - math.log(2) + nudge)  # neg = exp(cos) = exp(1) / 2
        yield torch.tensor([[[1.0, 0]] * 2, [[math.cos(angle), math.sin(angle)]] * 2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_finite_where_nothing_is_left_of_the_negatives(dtype):
    for z in at_the_bound():
        loss, gradient = loss_and_gradient(z.to(dtype), temperature=1.0, tau_plus=0.5)
        assert float(loss) == pytest.approx(math.log(1 + 2 * math.exp(-2)), rel=1e-3)
        assert gradient.isfinite().all()


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


@pytest.mark.parametrize("tau_plus", [0, 0.1, 0.9, 1 - 1e-9])
@pytest.mark.parametrize("temperature", [1e-20, 0.005, 0.5, 1e30])
@pytest.mark.parametrize("name", HARD)
def test_loss_and_gradient_are_finite(name, temperature, tau_plus):
    loss, gradient = loss_and_gradient(HARD[name], temperature=temperature, tau_plus=tau_plus)
    assert loss.isfinite() and loss >= 0 and gradient.isfinite().all()


# --- what changes nothing ------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**31), M=st.integers(2, 4), scale=st.floats(1e-6, 1e6), tau_plus=st.sampled_from([0, 0.2]))
def test_the_order_of_images_and_views_and_the_lengths_change_nothing(seed, M, scale, tau_plus):
    generator = np.random.default_rng(seed)
    z = projections(5, M, 6, seed)
    expected = float(contrastive_loss(torch.from_numpy(z), tau_plus=tau_plus))
    shuffled = np.stack([views[generator.permutation(M)] for views in z[generator.permutation(5)]])
    longer = shuffled * scale * generator.uniform(0.5, 2, (5, M, 1))
    got = contrastive_loss(torch.from_numpy(np.ascontiguousarray(longer)), tau_plus=tau_plus)
    assert float(got) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_loss_of_half_precision_is_computed_in_float32(dtype):
    z = torch.from_numpy(projections(8, 2, 16, 0)).to(dtype)
    loss, gradient = loss_and_gradient(z, temperature=0.1)
    assert loss.dtype == torch.float32 and gradient.dtype == dtype
    exact = contrastive_loss(z.double(), temperature=0.1)
    assert float(loss) == pytest.approx(float(exact), rel=1e-6)


# --- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0, -1, math.inf, -math.inf, math.nan])
def test_a_temperature_outside_its_domain_is_a_value_error(temperature):
    with pytest.raises(ValueError, match=r"^the temperature must be above 0, got [^\n]*$"):
        contrastive_loss(torch.ones(2, 2, 2), temperature=temperature)


@pytest.mark.parametrize("tau_plus", [-0.1, 1, 1.5, math.inf, math.nan])
def test_a_tau_plus_outside_its_domain_is_a_value_error(tau_plus):
    with pytest.raises(ValueError, match=r"^tau-plus is a probability from 0 to below 1, got [^\n]*$"):
        contrastive_loss(torch.ones(2, 2, 2), tau_plus=tau_plus)


@pytest.mark.parametrize(("B", "M"), [(1, 2), (2, 1), (0, 2), (1, 1)])
def test_too_few_images_or_views_are_a_value_error(B, M):
    with pytest.raises(ValueError, match=rf"^a contrastive loss needs at least 2 images .* got {B} and {M}$"):
        contrastive_loss(torch.ones(B, M, 4))


@pytest.mark.parametrize("shape", [(4,), (4, 8), (4, 2, 8, 1)])
def test_projections_of_another_shape_are_a_value_error(shape):
    with pytest.raises(ValueError, match=r"takes projections \(images, views, dimensions\), got \(4,"):
        contrastive_loss(torch.ones(shape))


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
