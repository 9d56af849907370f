"""Rankings and neighbours on a real GPU: what the emulated one cannot show."""

import numpy as np
import pytest
import torch
from helpers.planted import planted, write_cache

from pucache.neighbours.graph import NeighbourSearch, neighbour_graph
from pucache.neighbours.search import TORCH_GPU
from pucache.retrieval.retrieve import rank_unlabelled
from pucache.retrieval.similarity import SIMILARITIES, Similarity

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
N, D = 5000, 96


@pytest.fixture(scope="module")
def rows():
    X, s, _ = planted(N, D, 200, 0.1, seed=0)
    return X.astype(np.float16), s


def shared(found, expected):
    """Mean share of neighbours that two graphs have in common."""
    return np.mean([len(np.intersect1d(a, b)) / len(b) for a, b in zip(found.rows, expected.rows, strict=True)])


def test_a_graph_is_that_of_the_cpu(rows):
    graph, expected = (neighbour_graph(rows[0], method="exact", device=device) for device in ("cuda", "cpu"))
    assert graph.search_by == TORCH_GPU and shared(graph, expected) > 0.99
    np.testing.assert_allclose(graph.cosines, expected.cosines, atol=2e-3)


def test_queries_have_the_neighbours_of_the_cpu(rows):
    queries = rows[0][:300] + np.float16(0.1)
    graph, expected = (NeighbourSearch(rows[0], device=device).nearest(queries) for device in ("cuda", "cpu"))
    assert shared(graph, expected) > 0.99


@pytest.mark.parametrize("kind", SIMILARITIES)
def test_scores_are_those_of_the_cpu(rows, tmp_path, kind):
    cache = write_cache(tmp_path / "cache.h5", rows[0])
    ranking, expected = (
        rank_unlabelled(cache, rows[1], k=None, scorer=Similarity(kind, device), twins=None)
        for device in ("cuda", "cpu")
    )
    scores, others = np.empty(N), np.empty(N)
    scores[ranking.rows], others[expected.rows] = ranking.scores, expected.scores
    np.testing.assert_allclose(scores[ranking.rows], others[ranking.rows], atol=1e-4 * np.abs(expected.scores).max())
    assert ranking.search_by.endswith("on the GPU")
