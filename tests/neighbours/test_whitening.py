import numpy as np
import pytest
from helpers import plain
from helpers.planted import planted, write_cache

from pucache import EmbeddingCache
from pucache.errors import CacheError
from pucache.neighbours.whitening import Whitening
from pucache.retrieval.retrieve import rank_unlabelled
from pucache.retrieval.scorers import SIMILARITIES, Similarity

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


# --- kept beside the cache -------------------------------------------------------------------------

N = 80
ROWS, S, _ = planted(N, 6, 8, 0.1, seed=0)


def ranked(cache, kind="whitened"):
    return rank_unlabelled(EmbeddingCache(cache), S, k=20, scorer=Similarity(kind, "cpu"))


@pytest.fixture
def estimated(monkeypatch):
    """Counts how often a whitening is estimated."""
    genuine, count = Whitening.estimate, []
    monkeypatch.setattr(Whitening, "estimate", lambda X: count.append(1) or genuine(X))
    return count


def test_a_cache_that_was_damaged_since_is_named_by_the_second_ranking(tmp_path):
    cache = write_cache(tmp_path / "cache.h5", ROWS).files[0].path
    ranked(cache)
    data = bytearray(cache.read_bytes())
    data[data.index(ROWS[5].tobytes()) + 1] ^= 8
    cache.write_bytes(data)
    with pytest.raises(CacheError, match="damaged"):
        ranked(cache)


CHANGES = {
    "nothing": lambda cache, kept: None,
    "another cache": lambda cache, kept: write_cache(cache, ROWS[::-1]),
    "damaged": lambda cache, kept: kept.write_bytes(kept.read_bytes()[:-9]),
    "another file": lambda cache, kept: kept.write_text("precious notes"),
}


@pytest.mark.parametrize(("kind", "d"), [*((kind, 200) for kind in SIMILARITIES), ("whitened", 6)])
@pytest.mark.parametrize("change", CHANGES)
def test_it_is_kept_beside_the_cache_and_estimated_anew_where_that_does_not_fit(tmp_path, estimated, kind, d, change):
    rows = planted(N, d, 8, 0.1, seed=0)[0]  # fewer and more dimensions than rows
    cache, kept = write_cache(tmp_path / "cache.h5", rows).files[0].path, tmp_path / "cache.h5.whitening"
    first = ranked(cache, kind)
    CHANGES[change](cache, kept)
    second = ranked(cache, kind)
    assert len(estimated) == 1 + (change != "nothing")
    assert (kept.read_bytes() == b"precious notes") == (change == "another file")
    if change != "another cache":
        np.testing.assert_array_equal(second.rows, first.rows)
        np.testing.assert_array_equal(second.scores, first.scores)
