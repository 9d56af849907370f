import numpy as np
import pytest
import torch

from pucache.heads import leading_directions as module
from pucache.heads.leading_directions import leading_directions, leading_directions_on_device, sample_rows
from pucache.heads.moments import Moments

SPECTRUM = np.array([5.0, 3.0, 1.5, 0.5, 0.2, 0.1, 0.05, 0.02])


def spectral(n=3000, turned=True):
    """Rows whose covariance is SPECTRUM squared, in turned axes."""
    draw = np.random.default_rng(0)
    axes = np.linalg.qr(draw.normal(size=(8, 8)))[0] if turned else np.eye(8)
    return ((draw.normal(size=(n, 8)) * SPECTRUM) @ axes + 20).astype(np.float32)


@pytest.mark.parametrize("turned", [False, True])
def test_leading_directions_are_the_eigenvectors_of_the_covariance(turned):
    X = spectral(turned=turned)
    moments = Moments.of(X)
    leading = leading_directions(X, moments, 3)
    directions, variances, rest = leading.directions, leading.variances, leading.rest
    values, vectors = np.linalg.eigh(np.cov(X.T.astype(np.float64), bias=True) / moments.spread**2)
    np.testing.assert_allclose(variances, values[:-4:-1], rtol=1e-3)
    np.testing.assert_allclose(np.abs((directions * vectors[:, :-4:-1]).sum(0)), 1, atol=1e-3)
    np.testing.assert_allclose(directions.T @ directions, np.eye(3), atol=1e-5)
    assert rest == pytest.approx(values[:-3].mean(), rel=0.02)


def test_directions_are_estimated_on_rows_from_everywhere(monkeypatch):
    """The rows are sorted by what they look like, as caches often are."""
    monkeypatch.setattr(module, "_SAMPLE", 500)
    X = spectral(turned=False)
    X = X[X[:, 0].argsort()]
    leading = leading_directions(X, Moments.of(X), 2)
    variances, rest = leading.variances, leading.rest
    whole = SPECTRUM**2 / np.square(SPECTRUM).sum()
    np.testing.assert_allclose(variances, whole[:2], rtol=0.15)
    assert rest == pytest.approx(whole[2:].mean(), rel=0.15)


@pytest.mark.parametrize("n, count", [(700, 64), (5, 64)])
def test_no_more_directions_than_dimensions_or_rows(n, count):
    X = np.random.default_rng(0).normal(size=(n, 8)).astype(np.float32)
    leading = leading_directions(X, Moments.of(X), count)
    directions, variances, rest = leading.directions, leading.variances, leading.rest
    assert directions.shape == (8, min(n, 8)) and variances.shape == (min(n, 8),)
    assert variances.sum() == pytest.approx(1, abs=1e-3)
    assert rest == pytest.approx(1 / 8 if n > 8 else 0, abs=1e-3)  # of all, where there are no others


@pytest.mark.parametrize("n, count", [(3000, 3), (3000, 8), (5, 64)])
def test_those_of_a_device_are_those_of_the_host(n, count):
    """The device computes in its own way; here it is the CPU."""
    X = spectral(n)
    moments = Moments.of(X)
    expected = leading_directions(X, moments, count)
    sample = torch.from_numpy((X[sample_rows(n)] - moments.centre) / np.float32(moments.spread))
    leading = leading_directions_on_device(sample, count)
    np.testing.assert_allclose(leading.variances, expected.variances, rtol=1e-4, atol=1e-6)
    assert leading.rest == pytest.approx(expected.rest, rel=1e-3, abs=1e-6)
    distinct = expected.variances > 1e-4
    along = (leading.directions * expected.directions).sum(0)
    np.testing.assert_allclose(np.abs(along[distinct]), 1, atol=1e-3)
    assert leading.directions.dtype == leading.variances.dtype == np.float32
