import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pucache.estimates.share_of_new_images import JointLikelihood, PileMargins, estimate_share, on_one_scale

PRIOR, APART = 0.05, 2.5


def mixture(rng, n, share):
    """Margins of positives N(2.5, 1) and negatives N(0, 1), whose log density ratio is linear."""
    return rng.normal(np.where(np.arange(n) < round(share * n), APART, 0.0), 1)


def pile(rng):
    margins = np.concatenate([mixture(rng, 200, 1), mixture(rng, 5000, PRIOR)])
    return PileMargins.of(margins, (np.arange(5200) < 200).astype(np.int8), None, None)


def by_heads(rng, margins):
    """By five heads, which differ a little, (n, 5)."""
    return margins[:, None] + rng.normal(0, 0.1, (len(margins), 5))


@pytest.mark.parametrize("share", [0.01, 0.05, 0.2, 0.4, 0.7, 0.99])
def test_the_share_of_a_mixture_is_found(share):
    rng = np.random.default_rng(0)
    found = estimate_share(pile(rng), PRIOR, by_heads(rng, mixture(rng, 5000, share)))
    assert found.prior == pytest.approx(share, abs=0.03) and found.low <= share <= found.high


def test_without_a_positive_the_share_is_at_most_an_end():
    rng = np.random.default_rng(2)
    found = estimate_share(pile(rng), PRIOR, by_heads(rng, mixture(rng, 1000, 0)))
    assert found.interval_text("{:.3f}".format).startswith("at most 0.0")


@given(st.integers(0, 2**32 - 1), st.sampled_from([None, 0.04]))
def test_the_gradient_of_the_joint_likelihood_is_that_of_differences(seed, prior):
    rng = np.random.default_rng(seed)
    known = pile(rng)
    likelihood = JointLikelihood(known.positive, known.unlabelled, known.unlabelled[::3], prior)
    at = rng.normal((-2, 0, -2, -2), 1.0)
    differences = [(likelihood(at + h)[0] - likelihood(at - h)[0]) / 2e-5 for h in 1e-5 * np.eye(4)]
    np.testing.assert_allclose(likelihood(at)[1], differences, rtol=1e-4, atol=1e-3)


@given(st.floats(0.001, 0.999), st.integers(0, 2**32 - 1))
def test_held_out_margins_take_the_quantiles_of_the_final_head(share, seed):
    rng = np.random.default_rng(seed)
    held_out = mixture(rng, 50, share).astype(np.float32)
    s = (np.arange(50) % 5 == 0).astype(np.int8)
    final = (2 * held_out + 1).astype(np.float32)
    scaled = on_one_scale(held_out, final, s)
    np.testing.assert_allclose(scaled[s == 0], final[s == 0], rtol=1e-4, atol=1e-4)
    assert (np.diff(scaled[np.argsort(held_out)]) >= 0).all()
