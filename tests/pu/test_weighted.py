import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pucache.pu import weighted
from pucache.pu.weighted import binned

MARGINS = arrays(np.float32, st.integers(1, 60), elements=st.floats(-1e6, 1e6, width=32))


@settings(deadline=None)
@given(margins=MARGINS, data=st.data())
def test_sums_are_preserved_order_and_limits_are_kept(margins, data):
    weights = data.draw(
        arrays(np.float64, len(margins), elements=st.floats(0, 100).filter(lambda w: w == 0 or w > 1e-3))
    )
    weights[data.draw(st.integers(0, len(margins) - 1))] = 1.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weighted, "_FINE", data.draw(st.integers(1, 30)))
        patch.setattr(weighted, "_BINS", data.draw(st.integers(1, 10)))
        m, w = binned(margins, weights)
        assert len(m) <= 2 * weighted._BINS
    margins = margins.astype(float)
    held = margins[weights > 0]
    assert len(m) == len(w) <= len(held) and (w > 0).all()
    assert w.sum() == pytest.approx(weights.sum())
    assert m @ w == pytest.approx(margins @ weights, rel=1e-9, abs=1e-9 * (np.abs(margins) @ weights))
    scale = 1e-12 * np.abs(margins).max()
    assert (np.diff(m) >= -scale).all() and m[0] >= held.min() - scale and m[-1] <= held.max() + scale


@given(margins=MARGINS)
def test_few_rows_are_kept_one_by_one(margins):
    m, w = binned(margins)
    assert m.tolist() == np.sort(margins).astype(float).tolist() and (w == 1).all() and m.dtype == w.dtype == np.float64


def test_many_rows_are_merged_and_the_top_the_least():
    draw = np.random.default_rng(0)
    margins = draw.normal(size=100_000).astype(np.float32)
    m, w = binned(margins)
    assert len(m) == 3000 and w.sum() == 100_000 and m @ w == pytest.approx(margins.astype(float).sum())
    assert w[:1500].mean() > 20 * w[1500:].mean() and w[1500:].max() <= 3
    assert np.average(np.tanh(m), weights=w) == pytest.approx(np.tanh(margins).mean(), abs=1e-5)


def test_rows_without_weight_are_left_out_before_any_merging():
    margins = np.arange(10.0)
    m, w = binned(margins, np.array([0, 2, 0, 0, 1, 0, 0, 0, 3, 0]))
    assert m.tolist() == [1, 4, 8] and w.tolist() == [2, 1, 3]
