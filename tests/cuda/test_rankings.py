"""Rankings, the graph of neighbours and scores with neighbours on CUDA are those of the CPU."""

import numpy as np
import pytest
import torch
from helpers.neighbours import with_neighbours
from helpers.planted import planted, write_cache

from pucache import train_pu
from pucache.labels.near_duplicates import groups
from pucache.neighbours import search
from pucache.neighbours.graph import neighbour_graph
from pucache.retrieval.retrieve import rank_unlabelled
from pucache.retrieval.scorers import SIMILARITIES, Similarity
from pucache.scoring.neighbour_scores import Pile

N, D = 600, 24
X, S, _ = planted(N, D, 60, 0.1, seed=0)
X = X.astype(np.float16)
GPU = "torch on the GPU"


@pytest.mark.parametrize("kind", SIMILARITIES)
def test_a_ranking_by_similarity_is_that_of_the_cpu(cuda, tmp_path, kind):
    cache = write_cache(tmp_path / "cache.h5", X)
    ranking, expected = (rank_unlabelled(cache, S, k=50, scorer=Similarity(kind, device)) for device in ("cuda", "cpu"))
    assert len(np.intersect1d(ranking.rows, expected.rows)) >= 49 and ranking.search_by == GPU
    np.testing.assert_allclose(ranking.scores, expected.scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("k", [1, 30, N])
def test_a_graph_is_that_of_the_cpu(cuda, monkeypatch, k):
    expected = neighbour_graph(X, k=k, device="cpu")
    monkeypatch.setattr(search, "_ROWS", 100)
    monkeypatch.setattr(search, "_GPU_PRODUCTS", 1 << 15)
    graph = neighbour_graph(X, k=k, device="cuda")
    np.testing.assert_allclose(graph.cosines, expected.cosines, atol=1e-3)
    assert np.mean(graph.rows == expected.rows) > 0.99  # cosines equal up to rounding may change order
    assert (graph.search_by, expected.search_by) == (GPU, "faiss on the CPU")


def test_scores_with_the_neighbours_of_a_pile_are_those_of_the_cpu(cuda, tmp_path, monkeypatch):
    cache, new = write_cache(tmp_path / "cache.h5", X), write_cache(tmp_path / "new.h5", X[:300] + np.float16(0.1))
    model = with_neighbours(train_pu(cache, S, method="linear", penalty=1e-2, device="cpu"), 2.0)

    def scores():
        return np.concatenate([block for _, block in Pile.of(model, cache).scores_of(new)])

    found = scores()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    np.testing.assert_allclose(found, scores(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_duplicates_are_those_of_the_cpu(cuda, dtype):
    rows = np.concatenate([X, X[:50] * np.float16(1.001), np.zeros((2, D))]).astype(dtype)
    expected = groups(rows)
    assert (groups(rows, device=cuda) == expected).all() and len(np.unique(expected)) == N + 1
