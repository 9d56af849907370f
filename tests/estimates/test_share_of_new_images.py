import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pucache.estimates.label_requirements import LabelCount
from pucache.estimates.share_of_new_images import PileMargins, estimate_share, on_one_scale

PRIOR, APART = 0.05, 2.5
MANY = LabelCount(100)


def mixture(rng, n, share):
    """Margins of positives N(2.5, 1) and negatives N(0, 1), whose log density ratio is linear."""
    return rng.normal(np.where(np.arange(n) < round(share * n), APART, 0.0), 1)


def pile(rng):
    margins = np.concatenate([mixture(rng, 200, 1), mixture(rng, 5000, PRIOR)])
    return PileMargins.of(margins, (np.arange(5200) < 200).astype(np.int8), None, None)


@pytest.mark.parametrize("share", [0.01, 0.05, 0.2, 0.4, 0.7, 0.99])
def test_the_share_of_a_mixture_is_found(share):
    rng = np.random.default_rng(0)
    found = estimate_share(pile(rng), PRIOR, mixture(rng, 5000, share), labels=MANY)
    assert found.prior == pytest.approx(share, abs=0.03) and found.low <= share <= found.high


def test_the_estimate_is_the_maximum_of_the_likelihood_of_saerens():
    rng = np.random.default_rng(1)
    known, margins = pile(rng), mixture(rng, 400, 0.3)
    r, shares = known.tilt(PRIOR).log_ratio(margins), np.linspace(0.001, 0.999, 999)
    best = shares[np.argmax([np.log(share * np.exp(r) + 1 - share).sum() for share in shares])]
    assert estimate_share(known, PRIOR, margins, labels=MANY).prior == pytest.approx(best, abs=0.002)


def test_what_is_stated_follows_the_labels_and_the_images():
    rng = np.random.default_rng(3)
    known, margins = pile(rng), mixture(rng, 200, 0.4)
    assert estimate_share(known, PRIOR, margins[:29], labels=MANY) is None
    assert estimate_share(known, PRIOR, margins, labels=LabelCount(9)) is None
    interval = estimate_share(known, PRIOR, margins, labels=LabelCount(29))
    assert interval.prior is None and interval.has_interval


@given(st.floats(0.001, 0.999), st.integers(0, 2**32 - 1))
def test_held_out_margins_take_the_quantiles_of_the_final_head(share, seed):
    rng = np.random.default_rng(seed)
    held_out = mixture(rng, 50, share).astype(np.float32)
    s = (np.arange(50) % 5 == 0).astype(np.int8)
    final = (2 * held_out + 1).astype(np.float32)
    scaled = on_one_scale(held_out, final, s)
    np.testing.assert_allclose(scaled[s == 0], final[s == 0], rtol=1e-4, atol=1e-4)
    assert (np.diff(scaled[np.argsort(held_out)]) >= 0).all()
