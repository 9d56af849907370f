import numpy as np
import pytest

from pucache.heads.linear_heads import FittedHeads
from pucache.heads.moments import Moments

N, D = 300, 6
X = np.random.default_rng(2).normal(size=(N, D)).astype(np.float32)


@pytest.fixture
def heads(monkeypatch):
    monkeypatch.setattr("pucache.heads.linear_heads._ROWS", 128)
    draw = np.random.default_rng(0)
    vectors = draw.normal(size=(4, 3)).astype(np.float32)
    return FittedHeads(draw.normal(size=(3, D)).astype(np.float32), vectors[0], *vectors[1:], 7)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_margins_are_products_plus_intercepts(heads, dtype):
    rows = X.astype(dtype)
    margins = heads.margins(rows)
    assert margins.dtype == np.float32 and margins.shape == (N, 3)
    np.testing.assert_allclose(margins, rows.astype(np.float64) @ heads.coef.T + heads.intercept, atol=1e-5)


def test_margins_of_chosen_heads(heads):
    chosen = np.random.default_rng(1).integers(0, 3, (N, 2))
    expected = np.take_along_axis(heads.margins(X), chosen, axis=1)
    np.testing.assert_array_equal(heads.margins_by(X, chosen), expected)


def test_some_of_the_heads_can_be_taken_joined_and_averaged(heads):
    taken = heads.take([2, 0])
    both = taken.joined(heads.take([1]))
    for name in ("coef", "intercept", "risk", "clamped", "residual"):
        np.testing.assert_array_equal(getattr(taken, name), getattr(heads, name)[[2, 0]])
        np.testing.assert_array_equal(getattr(both, name), getattr(heads, name)[[2, 0, 1]])
    assert taken.passes == both.passes == 7
    np.testing.assert_allclose(heads.mean().margins(X)[:, 0], heads.margins(X).mean(1), atol=1e-5)


def test_parameters_of_standardised_rows_and_back(heads):
    moments = Moments.of(X)
    parameters = heads.standardised(moments)
    margins = (X - moments.centre) / moments.spread @ parameters[:, :-1].T + parameters[:, -1]
    np.testing.assert_allclose(margins, heads.margins(X), atol=1e-4)
    fields = {"risk": heads.risk, "clamped": heads.clamped, "residual": heads.residual, "passes": 7}
    again = FittedHeads.of_standardised(parameters, moments, **fields)
    np.testing.assert_allclose(again.coef, heads.coef, rtol=1e-4)
    np.testing.assert_allclose(again.intercept, heads.intercept, atol=1e-4)
