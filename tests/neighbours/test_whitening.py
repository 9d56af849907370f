import numpy as np
import pytest
from helpers import plain
from helpers.planted import planted

from pucache.neighbours.whitening import Whitening

X = planted(300, d=12, seed=1)[0] @ np.diag(np.geomspace(4, 0.2, 12)).astype(np.float32)


@pytest.mark.parametrize("ridge", [1.0, 0.1, 1e-3])
def test_whitening_inverts_the_whole_covariance_where_dimensions_are_few(opened, ridge):
    Z = plain.unit(X)
    vector = Z[:7].mean(0)
    expected = np.linalg.solve(Z.T @ Z / len(Z) + ridge * np.eye(12), vector)
    got = Whitening.estimate(opened(X)).solve(vector.astype(np.float32), ridge)
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


def test_directions_beyond_those_known_share_their_mean_variance(opened, monkeypatch):
    monkeypatch.setattr("pucache.neighbours.whitening.DIRECTIONS", 3)
    Z = plain.unit(X)
    variances, axes = np.linalg.eigh(Z.T @ Z / len(Z))
    variances[:-3] = variances[:-3].mean()
    covariance = (axes * variances) @ axes.T
    vector = Z[:7].mean(0)
    whitening = Whitening.estimate(opened(X))
    assert whitening.directions.shape == (3, 12) and whitening.total_variance == pytest.approx(1, abs=1e-5)
    assert whitening.residual_variance == pytest.approx(variances[0], rel=1e-2)
    expected = np.linalg.solve(covariance + 0.1 * np.eye(12), vector)
    np.testing.assert_allclose(whitening.solve(vector.astype(np.float32), 0.1), expected, atol=0.02)
    full = np.linalg.solve(Z.T @ Z / len(Z) + 0.1 * np.eye(12), vector)
    assert np.abs(full - expected).max() > 0.05, "or this test would not see the difference"
