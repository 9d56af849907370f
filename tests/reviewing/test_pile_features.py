"""Features of a pile: projected rows, and margins of heads that were trained on them."""

import numpy as np
import pytest

from pucache.neighbours.row_source import row_source
from pucache.reviewing import ranker
from pucache.reviewing.ranker import PileFeatures


@pytest.fixture(params=[True, False], ids=["kept", "from the cache"])
def features(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(ranker, "_KEPT_BYTES", 0)
    monkeypatch.setattr(ranker, "_BLOCK_ROWS", 33)
    X = (np.random.default_rng(0).normal(size=(500, 12)) * np.arange(1, 13) + 3).astype(np.float16)
    features = PileFeatures(row_source(X), np.random.default_rng(0))
    assert features.keeps_all == request.param
    return features, X


def test_margins_are_those_of_the_projected_rows(features):
    features, _ = features
    draw = np.random.default_rng(1)
    coef, intercept = draw.normal(size=(3, 12)).astype(np.float32), draw.normal(size=3).astype(np.float32)
    expected = features.take(np.arange(500)) @ coef.T + intercept
    np.testing.assert_allclose(features.margins(coef, intercept), expected, atol=1e-4)


def test_all_directions_keep_the_distances(features):
    """As many directions as dimensions: rows are turned, centred and scaled alike."""
    features, X = features
    Z, centred = features.take(np.arange(500)), X.astype(np.float64) - X.astype(np.float64).mean(0)
    gram = centred @ centred.T / np.square(centred).sum(1).mean()
    np.testing.assert_allclose(Z @ Z.T, gram, atol=1e-3)


def test_similarities_are_inner_products_of_centred_unit_rows(features):
    features, X = features
    query = np.random.default_rng(2).normal(size=12).astype(np.float32)
    expected = features.whitening.centred_units(X) @ query
    np.testing.assert_allclose(features.similarities(query), expected, atol=1e-4)


@pytest.mark.parametrize("sample", [500, 100])
def test_rows_that_are_not_finite_are_named(monkeypatch, sample):
    monkeypatch.setattr(ranker, "SAMPLE_ROWS", sample)
    X = np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)
    X[77, 2] = np.nan
    with pytest.raises(ValueError, match="row 77"):
        assert 77 in PileFeatures(row_source(X), np.random.default_rng(1)).all


@pytest.mark.parametrize("X", [np.ones((20, 3)), np.ones((1, 3)), np.eye(3), np.zeros((5, 1))])
def test_degenerate_rows(X):
    features = PileFeatures(row_source(X.astype(np.float32)), np.random.default_rng(0))
    assert np.isfinite(features.all).all() and np.isfinite(features.similarities(np.ones(X.shape[1], np.float32))).all()


def test_many_dimensions_give_the_same_directions(monkeypatch):
    X = (np.random.default_rng(0).normal(size=(300, 8)) * np.arange(8, 0, -1)).astype(np.float32)
    whole = PileFeatures(row_source(X), np.random.default_rng(0))
    monkeypatch.setattr(ranker, "_MOST_DIMENSIONS", 4)
    randomized = PileFeatures(row_source(X), np.random.default_rng(0))
    np.testing.assert_allclose(whole.whitening.variances, randomized.whitening.variances, rtol=1e-3)
    np.testing.assert_allclose(np.abs(whole.all), np.abs(randomized.all), atol=1e-2)
