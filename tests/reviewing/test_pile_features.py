"""Features of a pile: projected rows, and margins of heads that were trained on them."""

import numpy as np
import pytest

from pucache.neighbours.row_source import row_source
from pucache.reviewing import pile_features
from pucache.reviewing.pile_features import PileFeatures


@pytest.fixture(params=[True, False], ids=["kept", "from the cache"])
def features(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(pile_features, "_KEPT_BYTES", 0)
    monkeypatch.setattr(pile_features, "_BLOCK_ROWS", 33)
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


def test_sample_is_of_the_rows(features):
    features, _ = features
    np.testing.assert_allclose(features.of_sample, features.take(features.sample), atol=1e-5)
