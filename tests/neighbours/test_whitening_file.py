import numpy as np
import pytest
from helpers.planted import planted, write_cache

from pucache import EmbeddingCache
from pucache.errors import CacheError
from pucache.neighbours.whitening import Whitening
from pucache.retrieval.retrieve import rank_unlabelled
from pucache.retrieval.similarity import SIMILARITIES, Similarity

N = 80
X, S, _ = planted(N, 6, 8, 0.1, seed=0)


def ranked(cache, kind="whitened"):
    return rank_unlabelled(EmbeddingCache(cache), S, k=20, scorer=Similarity(kind, "cpu"))


@pytest.fixture
def estimated(monkeypatch):
    """Counts how often a whitening is estimated."""
    genuine, count = Whitening.estimate, []
    monkeypatch.setattr(Whitening, "estimate", lambda X: count.append(1) or genuine(X))
    return count


@pytest.mark.parametrize("kind", SIMILARITIES)
@pytest.mark.parametrize("d", [6, 200])  # fewer and more dimensions than rows
def test_a_second_ranking_has_the_same_bits_and_estimates_nothing(tmp_path, estimated, kind, d):
    cache = write_cache(tmp_path / "cache.h5", planted(N, d, 8, 0.1, seed=0)[0]).files[0].path
    first, second = ranked(cache, kind), ranked(cache, kind)
    assert len(estimated) == 1 and (tmp_path / "cache.h5.whitening").exists()
    np.testing.assert_array_equal(second.rows, first.rows)
    np.testing.assert_array_equal(second.scores, first.scores)


def test_a_cache_that_was_damaged_since_is_named_by_the_second_ranking(tmp_path):
    cache = write_cache(tmp_path / "cache.h5", X).files[0].path
    ranked(cache)
    data = bytearray(cache.read_bytes())
    data[data.index(X[5].tobytes()) + 1] ^= 8
    cache.write_bytes(data)
    with pytest.raises(CacheError, match="damaged"):
        ranked(cache)


CHANGES = {
    "another cache": lambda folder, data: write_cache(folder / "cache.h5", X[::-1]),
    "damaged": lambda folder, data: (folder / "cache.h5.whitening").write_bytes(data[:-9]),
    "another file": lambda folder, data: (folder / "cache.h5.whitening").write_text("precious notes"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_it_is_estimated_anew_where_what_is_kept_does_not_fit(tmp_path, estimated, change):
    cache, kept = write_cache(tmp_path / "cache.h5", X).files[0].path, tmp_path / "cache.h5.whitening"
    ranked(cache)
    CHANGES[change](tmp_path, kept.read_bytes())
    ranked(cache)
    assert len(estimated) == 2
    assert (kept.read_bytes() == b"precious notes") == (change == "another file")
