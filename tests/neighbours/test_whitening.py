import numpy as np
import pytest
from helpers import plain
from helpers.planted import planted, write_cache

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.errors import CacheError
from pucache.neighbours.whitening import Whitening

X = planted(300, d=12, seed=1)[0] @ np.diag(np.geomspace(4, 0.2, 12)).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_rows_are_centred_and_at_length_one_however_the_cache_is_read(opened, dtype):
    rows = X.astype(dtype)
    whitening = Whitening.estimate(opened(rows))
    np.testing.assert_allclose(whitening.mean, rows.astype(float).mean(0), atol=1e-6)
    Z = whitening.centred_units(rows)
    assert Z.dtype == np.float32
    np.testing.assert_allclose(Z, plain.unit(rows), atol=1e-5)
    assert whitening.total_variance == pytest.approx(1, abs=1e-5)


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


def test_whitened_rows_have_the_inner_products_of_the_definition(opened):
    whitening, W = Whitening.estimate(opened(X)), plain.whitened(X)
    got = whitening.whiten(whitening.centred_units(X))
    np.testing.assert_allclose(got @ got.T, W @ W.T, atol=2e-3)
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-5)


def test_directions_come_from_evenly_spaced_rows_wherever_blocks_end(opened, monkeypatch, tmp_path):
    monkeypatch.setattr("pucache.neighbours.whitening.SAMPLE", 50)
    rows = X.copy()
    rows[np.arange(300) % 6 != 0, 0] *= 100  # not in the sample
    whitening = Whitening.estimate(opened(rows))
    Z = plain.unit(rows)[::6]
    assert whitening.variances[0] == pytest.approx(np.linalg.eigvalsh(Z.T @ Z / 50)[-1], rel=1e-4)


def test_a_space_comes_back_from_its_text(tmp_path):
    whitening = Whitening.estimate(write_cache(tmp_path / "cache.h5", X))
    again = Whitening.from_text(whitening.to_text(), 12)
    for name in ("mean", "directions", "variances"):
        assert (getattr(again, name) == getattr(whitening, name)).all()
    assert again.residual_variance == pytest.approx(whitening.residual_variance, rel=1e-6)
    assert again.to_text() == whitening.to_text()


@pytest.mark.parametrize("text, d", [("", 12), ("AAAA", 12), ("?", 12), ("whole", 11), ("whole", 13), ("cut", 12)])
def test_a_text_that_is_no_space_is_refused(tmp_path, text, d):
    whole = Whitening.estimate(write_cache(tmp_path / "cache.h5", X)).to_text()
    with pytest.raises(ValueError):
        Whitening.from_text({"whole": whole, "cut": whole[:-8]}.get(text, text), d)


@pytest.mark.parametrize("n", [1, 2, 40])
def test_rows_that_are_all_alike_have_no_direction(tmp_path, n):
    cache = write_cache(tmp_path / "cache.h5", np.full((n, 5), 0.5, np.float32))
    whitening = Whitening.estimate(cache)
    Z = whitening.centred_units(cache.X)
    assert whitening.total_variance == 0 and (Z == 0).all() and (whitening.whiten(Z) == 0).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_rows_that_are_not_finite_are_named(opened, value):
    bad = X.copy()
    bad[[250, 260], 3] = value
    with pytest.raises(CacheError, match=r"holds NaN or infinite embeddings \('0250.png'"):
        Whitening.estimate(opened(bad))


def test_a_damaged_cache_is_named(tmp_path):
    path = tmp_path / "cache.h5"
    data = bytearray(write_cache(path, X).files[0].path.read_bytes())
    data[data.index(X[7].tobytes())] ^= 1
    path.write_bytes(data)
    with pytest.raises(CacheError, match="is damaged: embeddings are not as they were written"):
        Whitening.estimate(EmbeddingCache(path))
