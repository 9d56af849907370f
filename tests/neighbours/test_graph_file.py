import logging

import numpy as np
import pytest
from helpers.planted import planted, write_cache

from pucache import EmbeddingCache
from pucache.errors import CacheError
from pucache.neighbours import graph
from pucache.neighbours.graph import cached_graph, neighbour_graph
from pucache.neighbours.graph_file import graph_path, read_graph

pytestmark = pytest.mark.usefixtures("one_thread")
N = 60
X = planted(N, d=6)[0]


@pytest.fixture
def cache(tmp_path):
    return write_cache(tmp_path / "cache.h5", X)


@pytest.fixture
def made(monkeypatch):
    """Counts how often a graph is made."""
    genuine, count = graph.neighbour_graph, []
    monkeypatch.setattr(graph, "neighbour_graph", lambda *given, **named: count.append(1) or genuine(*given, **named))
    return count


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.DEBUG, "pucache")
    return lambda level: [record.getMessage() for record in caplog.records if record.levelno == level]


def same(first, second):
    return (first.rows == second.rows).all() and (first.cosines == second.cosines).all()


def test_a_graph_comes_back_from_its_file(cache, made):
    first, again = cached_graph(cache, device="cpu"), cached_graph(cache)
    assert len(made) == 1 and graph_path(cache).name == "cache.h5.neighbours"
    assert same(first, again) and again.search == "exact search"
    assert again.rows.dtype == np.int32 and again.cosines.dtype == np.float16
    values = np.arange(N, dtype=np.float32)
    assert (again.weighted_means(values) == first.weighted_means(values)).all()
    size = graph_path(cache).stat().st_size
    assert size < N * 30 * 6 + 10_000


def test_a_cache_that_was_written_anew_has_its_graph_made_anew(cache, tmp_path, made, said):
    cached_graph(cache, device="cpu")
    changed = write_cache(tmp_path / "cache.h5", X[::-1])
    got = cached_graph(changed, device="cpu")
    assert len(made) == 2 and same(got, neighbour_graph(X[::-1].copy(), device="cpu"))
    assert said(logging.DEBUG)[-1] == f"{graph_path(cache)} is of another state of the cache; making it anew"
    assert not said(logging.INFO) and not said(logging.WARNING)


DAMAGE = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "flipped": lambda data: data[:-99] + bytes([data[-99] ^ 4]) + data[-98:],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_graph_is_made_anew(cache, damage, made, said):
    right = cached_graph(cache, device="cpu")
    path = graph_path(cache)
    whole = path.read_bytes()
    path.write_bytes(DAMAGE[damage](whole))
    with pytest.raises(CacheError, match=r"made anew|keeps beside a cache"):
        read_graph(path)
    assert same(cached_graph(cache, device="cpu"), right) and len(made) == 2
    assert not said(logging.WARNING)
    assert path.read_bytes() == whole and same(cached_graph(cache), right) and len(made) == 2


def test_what_pucache_did_not_write_is_left_under_the_name_of_a_graph_and_named(cache, made, said):
    right = cached_graph(cache, device="cpu")
    path = graph_path(cache)
    path.write_bytes(b"precious notes\n" * 40)
    assert same(cached_graph(cache, device="cpu"), right) and len(made) == 2
    (warning,) = said(logging.WARNING)
    assert "is not kept" in warning and f"{path} is a text file" in warning and "--force" not in warning
    assert path.read_bytes() == b"precious notes\n" * 40


def test_the_graph_of_a_folder_of_shards_is_that_of_one_file(cache, tmp_path, made):
    folder = tmp_path / "shards"
    folder.mkdir()
    for number, rows in enumerate(np.array_split(np.arange(N), 3)):
        write_cache(folder / f"{number}.h5", X[rows], [f"{row:05}.png" for row in rows])
    first = cached_graph(cache, device="cpu")
    shards = EmbeddingCache(folder)
    got = cached_graph(shards, device="cpu")
    assert graph_path(shards) == folder / "0.h5.neighbours" and graph_path(shards).exists()
    np.testing.assert_allclose(got.cosines, first.cosines, atol=2e-3)
    assert np.mean(got.rows == first.rows) > 0.99
    assert same(cached_graph(EmbeddingCache(folder)), got) and len(made) == 2
    cached_graph(EmbeddingCache(folder / "0.h5"), device="cpu")
    assert len(made) == 3, "the first shard alone is another cache"
