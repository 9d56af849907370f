"""Rankings and neighbours on a real GPU: what the emulated one cannot run, such as products of halves, and faiss."""

import numpy as np
import pytest
import torch
from helpers.planted import planted, write_cache

from pucache.heads.device_rows import upload
from pucache.neighbours.backends import TORCH_GPU
from pucache.neighbours.device_search import DeviceSearch, host_lists
from pucache.neighbours.graph import neighbour_graph
from pucache.neighbours.pile_search import query_neighbours
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


def test_cells_find_neighbours_as_often_as_on_the_cpu(rows):
    recalls = []
    for device in ("cuda", "cpu"):
        graph = neighbour_graph(rows[0], method="ivf", device=device)
        recalls.append(float(graph.search.split("recall ")[1].split(" ")[0]))
    assert recalls[0] > recalls[1] - 0.02


def test_queries_have_the_neighbours_of_the_cpu(rows):
    queries = rows[0][:300] + np.float16(0.1)
    graph, expected = (query_neighbours(rows[0], queries, device=device) for device in ("cuda", "cpu"))
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


@pytest.mark.parametrize("half", [False, True])
def test_equal_products_are_in_the_order_of_their_rows(half):
    draw = np.random.default_rng(0)
    rows, queries = (draw.integers(-3, 4, (n, 8)).astype(np.float32) for n in (3000, 70))
    products = queries @ rows.T
    order = np.argsort(-products, axis=1, kind="stable")[:, :40]
    gpu = torch.device("cuda")
    search = DeviceSearch(upload(rows, gpu), half=half)
    values, found = host_lists(search.greatest(upload(queries, gpu), 40).cpu(), 40)
    assert (found == order).all() and (values == np.take_along_axis(products, order, 1)).all()
