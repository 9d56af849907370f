"""Rankings and neighbours on a device that is emulated: results are the CPU's."""

import numpy as np
import pytest
import torch
from helpers.emulated_cuda import emulated_cuda
from helpers.neighbours import with_neighbours
from helpers.planted import planted, write_cache

from pucache.labels.labels import Labels
from pucache.neighbours import search
from pucache.neighbours.graph import NeighbourSearch, neighbour_graph
from pucache.retrieval.retrieve import rank_unlabelled
from pucache.retrieval.similarity import SIMILARITIES, Similarity
from pucache.scoring.pile_scores import Pile
from pucache.training.train_on_cache import train_pu

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, on which test_gpu.py runs"),
    pytest.mark.usefixtures("one_thread"),
]
N, D = 600, 24
X, S, _ = planted(N, D, 60, 0.1, seed=0)
X = X.astype(np.float16)
GPU = "torch on the GPU"


def check_equal(graph, expected):
    """Compare graphs; cosines equal up to rounding may change order."""
    np.testing.assert_allclose(graph.cosines, expected.cosines, atol=1e-3)
    assert np.mean(graph.rows == expected.rows) > 0.99 and graph.search_by == GPU


@pytest.mark.parametrize("kind", SIMILARITIES)
def test_a_ranking_by_similarity_is_that_of_the_cpu(tmp_path, kind):
    cache = write_cache(tmp_path / "cache.h5", X)
    expected = rank_unlabelled(cache, S, k=50, scorer=Similarity(kind, device="cpu"))
    with emulated_cuda():
        ranking = rank_unlabelled(cache, S, k=50, scorer=Similarity(kind, device="cuda"))
    assert ranking.keys == expected.keys and ranking.search_by == GPU
    np.testing.assert_allclose(ranking.scores, expected.scores, rtol=2e-5, atol=1e-6)


def test_rows_are_scored_where_they_are_and_stay_finite(tmp_path):
    cache = write_cache(tmp_path / "cache.h5", np.ones((40, 4), np.float16))
    with emulated_cuda():
        assert (Similarity("whitened", device="cuda")(cache, Labels.of(np.eye(40, dtype=np.int8)[0])).values == 0).all()


@pytest.mark.parametrize("block_rows", [100, 1 << 16])
@pytest.mark.parametrize("k", [1, 30, N])
def test_a_graph_is_that_of_the_cpu(monkeypatch, block_rows, k):
    expected = neighbour_graph(X, k=k, device="cpu")
    monkeypatch.setattr(search, "_ROWS", block_rows)
    monkeypatch.setattr(search, "_GPU_PRODUCTS", 1 << 15)
    with emulated_cuda():
        graph = neighbour_graph(X, k=k, device="cuda")
    check_equal(graph, expected)
    assert (graph.search, graph.exact, expected.search_by) == ("exact search", True, "faiss on the CPU")


def test_queries_have_the_neighbours_of_the_cpu():
    queries = X[:90] + np.float16(0.1)
    with emulated_cuda():
        graph = NeighbourSearch(X, device="cuda").nearest(queries)
    check_equal(graph, NeighbourSearch(X, device="cpu").nearest(queries))


@pytest.mark.parametrize("rows", [np.ones((40, 5), np.float16), np.ones((40, 5), np.float32)])
def test_rows_without_a_direction_have_no_neighbours(rows):
    with emulated_cuda():
        assert (neighbour_graph(rows, device="cuda").rows == -1).all()
        assert (NeighbourSearch(rows, device="cuda").nearest(rows[:3]).rows == -1).all()


def test_rows_that_are_not_finite_are_named():
    bad = X.copy()
    bad[17, 3] = np.inf
    with emulated_cuda():
        for call in (lambda: neighbour_graph(bad, device="cuda"), lambda: NeighbourSearch(X).nearest(bad)):
            with pytest.raises(ValueError, match="NaN or infinite values, first in row 17"):
                call()


def test_scores_with_the_neighbours_of_a_pile_are_those_of_the_cpu(tmp_path):
    cache = write_cache(tmp_path / "cache.h5", X)
    model = with_neighbours(train_pu(cache, S, device="cpu"), 2.0)
    new = write_cache(tmp_path / "new.h5", X[:300] + np.float16(0.1))
    pile = Pile.of(model, cache)
    expected = np.concatenate([scores for _, scores in pile.scores_of(new)])
    with emulated_cuda():
        scores = np.concatenate([scores for _, scores in pile.scores_of(new)])
    np.testing.assert_allclose(scores, expected, rtol=1e-3, atol=1e-3)
