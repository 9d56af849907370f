"""Rankings on a device that is emulated: results are the CPU's, uploads and waits stay within their budgets."""

import faiss
import numpy as np
import pytest
import torch
from helpers.emulated_cuda import emulated_cuda
from helpers.neighbours import with_neighbours
from helpers.planted import planted, write_cache
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.heads.device_rows import upload
from pucache.labels.labels import Labels
from pucache.neighbours import cell_search, device_pile
from pucache.neighbours.ann_index import open_or_build
from pucache.neighbours.device_search import DeviceSearch, host_lists, ordered_keys, rows_of, values_of
from pucache.neighbours.device_source import DeviceSource
from pucache.neighbours.device_whitening import estimate
from pucache.neighbours.graph import neighbour_graph
from pucache.neighbours.knn import RowSearch
from pucache.neighbours.pile_search import NeighbourSearch, query_neighbours
from pucache.neighbours.row_source import row_source
from pucache.neighbours.whitening import Whitening
from pucache.retrieval.indexed_similarity import IndexedSimilarity
from pucache.retrieval.model_scorers import Fused
from pucache.retrieval.retrieve import rank_unlabelled
from pucache.retrieval.similarity import SIMILARITIES, Similarity
from pucache.scoring.pile_scores import Pile
from pucache.training.train_on_cache import train_pu

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, on which test_gpu.py runs"),
    pytest.mark.usefixtures("one_thread"),
]
N, D = 600, 24
GPU = "torch on the GPU"
ESTIMATE_WAITS = 2  # whether rows are finite, and the whitening
BLOCK = 100  # rows that are read at once


@pytest.fixture(scope="module")
def rows():
    X, s, _ = planted(N, D, 60, 0.1, seed=0)
    return X.astype(np.float16), s


@pytest.fixture
def cache(rows, tmp_path):
    write_cache(tmp_path / "cache.h5", rows[0])
    return EmbeddingCache(tmp_path / "cache.h5")


@pytest.fixture
def small_blocks(monkeypatch):
    """Caches are read in blocks of `BLOCK` rows."""
    monkeypatch.setattr("pucache.cache.reader.BLOCK_BYTES", BLOCK * 2 * D)


def uploads(counts):
    """Copies to the device, by waiting or not."""
    counters = (counts.waits, counts.copies)
    return sum(times for counter in counters for (what, _), times in counter.items() if "to the device" in what)


def forget_graph(cache):
    """Remove the graph of neighbours that training kept beside a cache."""
    for kept in cache.files[0].path.parent.glob("*.neighbours"):
        kept.unlink()


def check_equal(graph, expected):
    """Compare graphs; cosines equal up to rounding may change places."""
    np.testing.assert_allclose(graph.cosines, expected.cosines, atol=1e-3)
    assert np.mean(graph.rows == expected.rows) > 0.99


# --- rankings ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SIMILARITIES)
def test_a_ranking_by_similarity_is_that_of_the_cpu(rows, cache, kind):
    expected = rank_unlabelled(cache, rows[1], k=50, scorer=Similarity(kind, device="cpu"))
    with emulated_cuda() as device:
        ranking = rank_unlabelled(cache, rows[1], k=50, scorer=Similarity(kind, device="cuda"))
    assert ranking.keys == expected.keys and ranking.search_by == GPU
    np.testing.assert_allclose(ranking.scores, expected.scores, rtol=2e-5, atol=1e-6)
    assert device.counts.waited <= ESTIMATE_WAITS + 1, str(device.counts)


def test_a_fused_ranking_is_that_of_the_cpu(rows, cache):
    model = train_pu(cache, rows[1], device="cpu")
    scorers = [Fused(model, device=device) for device in ("cpu", "cuda")]
    forget_graph(cache)
    expected = rank_unlabelled(cache, rows[1], k=50, scorer=scorers[0])
    forget_graph(cache)
    with emulated_cuda():
        ranking = rank_unlabelled(cache, rows[1], k=50, scorer=scorers[1])
        again = rank_unlabelled(cache, rows[1], k=50, scorer=scorers[1])
    assert ranking.keys == expected.keys == again.keys
    assert (expected.search_by, ranking.search_by, again.search_by) == ("torch on the CPU", GPU, "")  # kept at last
    np.testing.assert_allclose(ranking.scores, expected.scores, rtol=1e-3)


def test_the_rows_of_the_highest_margins_are_searched_as_on_the_cpu(rows, cache, monkeypatch):
    monkeypatch.setattr("pucache.retrieval.model_scorers._MAX_PAIRS", 100 * N)
    monkeypatch.setattr("pucache.retrieval.model_scorers._MIN_CANDIDATES", 100)
    model = train_pu(cache, rows[1], device="cpu")
    forget_graph(cache)
    expected = rank_unlabelled(cache, rows[1], k=20, scorer=Fused(model, device="cpu"))
    with emulated_cuda():
        ranking = rank_unlabelled(cache, rows[1], k=20, scorer=Fused(model, device="cuda"))
    assert ranking.keys == expected.keys and ranking.search_by == GPU and "highest margins" in ranking.search


def test_equal_rows_score_equally_wherever_they_stand(rows, tmp_path, small_blocks):
    of = np.random.default_rng(0).integers(0, 40, N)
    cache = write_cache(tmp_path / "twins.h5", rows[0][of])
    with emulated_cuda():
        ranking = rank_unlabelled(cache, rows[1], k=None, scorer=Similarity("whitened", device="cuda"), twins=None)
    for row in range(40):
        same = of[ranking.rows] == row
        assert len(set(ranking.scores[same])) <= 1 and (np.diff(ranking.rows[same]) > 0).all()


@pytest.mark.parametrize("block", [50, 64, N])
def test_a_whitening_is_that_of_the_cpu(rows, monkeypatch, block):
    monkeypatch.setattr("pucache.storage.rows.row_step", lambda d: block)
    expected = Whitening.estimate(rows[0])
    with emulated_cuda() as device:
        whitening = estimate(DeviceSource(row_source(rows[0]), torch.device("cuda")))
    np.testing.assert_allclose(whitening.mean, expected.mean, atol=1e-6)
    np.testing.assert_allclose(whitening.variances, expected.variances, rtol=1e-4)
    cosines = [at.whiten(at.centred_units(rows[0][:50])) for at in (whitening, expected)]
    np.testing.assert_allclose(*(Z @ Z.T for Z in cosines), atol=1e-4)
    assert device.counts.waited <= ESTIMATE_WAITS, str(device.counts)


# --- graphs and queries ------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 30, N])
def test_a_graph_is_that_of_the_cpu(rows, k):
    expected = neighbour_graph(rows[0], k=k, device="cpu")
    with emulated_cuda() as device:
        graph = neighbour_graph(rows[0], k=k, device="cuda")
    check_equal(graph, expected)
    assert (graph.search, graph.exact, graph.search_by) == ("exact search", True, GPU)
    assert expected.search_by == "torch on the CPU"
    assert device.counts.waited <= ESTIMATE_WAITS + 2, str(device.counts)  # which rows have a direction, and the lists


def test_the_graph_of_some_rows_is_that_of_the_cpu(rows):
    some = np.arange(0, N, 3)
    with emulated_cuda():
        graph = neighbour_graph(rows[0], k=9, rows=some, device="cuda")
    check_equal(graph, neighbour_graph(rows[0], k=9, rows=some, device="cpu"))


def test_rows_that_equal_the_mean_have_no_neighbours_and_are_nobodys():
    X = np.array([[1, 2, 3], [3, 2, 1], [2, 2, 2], [1, 3, 2], [3, 1, 2]], np.float16)
    with emulated_cuda():
        graph = neighbour_graph(X, k=4, device="cuda")
        queried = query_neighbours(X, X, 4, device="cuda")
    assert (graph.rows[2] == -1).all() and 2 not in graph.rows
    assert (queried.rows[2] == -1).all() and 2 not in queried.rows and (queried.rows[[0, 1, 3, 4], 3] >= 0).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_rows_that_are_all_equal_have_no_neighbours(dtype):
    with emulated_cuda():
        for method in ("exact", "ivf"):
            assert (neighbour_graph(np.ones((40, 5), dtype), method=method, device="cuda").rows == -1).all()
        assert (query_neighbours(np.ones((40, 5), dtype), np.ones((3, 5), dtype), device="cuda").rows == -1).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_rows_that_are_not_finite_are_named(rows, value):
    X = rows[0].copy()
    X[17, 3] = value
    whitening = Whitening.estimate(rows[0])
    with emulated_cuda():
        for call in (
            lambda: neighbour_graph(X, device="cuda"),
            lambda: neighbour_graph(X, whitening=whitening, device="cuda"),
            lambda: neighbour_graph(X, whitening=whitening, method="ivf", device="cuda"),
            lambda: query_neighbours(rows[0], X, device="cuda"),
        ):
            with pytest.raises(ValueError, match="NaN or infinite values, first in row 17"):
                call()


@pytest.fixture
def few_visits(monkeypatch):
    monkeypatch.setattr(cell_search, "_VISITS", 1 << 17)
    monkeypatch.setattr(cell_search, "_MIN_VISITS", 1 << 8)
    monkeypatch.setattr(cell_search, "product_type", lambda device: torch.float32)


def test_a_graph_by_cells_is_that_of_the_cpu(rows, few_visits):
    expected = neighbour_graph(rows[0], method="ivf", device="cpu")
    with emulated_cuda() as device:
        graph = neighbour_graph(rows[0], method="ivf", device="cuda")
    check_equal(graph, expected)
    assert graph.search.split(",")[0] == expected.search.split(",")[0] and not graph.exact and graph.search_by == GPU
    by_line = {line: times for (_, line), times in device.counts.waits.items() if "device_cells" in line}
    assert sum(by_line.values()) == 2, str(device.counts)  # a block of rows into cells, and a block of lists


@settings(max_examples=15, deadline=None)
@given(
    arrays(np.float32, st.tuples(st.integers(1, 40), st.integers(1, 5)), elements=st.integers(-2, 2).map(float)),
    st.integers(1, 45),
    st.sampled_from(["exact", "ivf"]),
)
def test_graphs_of_any_small_array_have_the_cosines_of_the_cpus(X, k, method):
    expected = neighbour_graph(X, k=k, method=method, device="cpu")
    with emulated_cuda():
        graph = neighbour_graph(X, k=k, method=method, device="cuda")
    assert ((graph.rows >= 0) == (expected.rows >= 0)).all()
    np.testing.assert_allclose(graph.cosines, expected.cosines, atol=0.02)


def test_queries_have_the_neighbours_of_the_cpu(rows):
    queries = rows[0][:90] + np.float16(0.1)
    expected = query_neighbours(rows[0], queries, device="cpu")
    with emulated_cuda():
        graph = query_neighbours(rows[0], queries, device="cuda")
    check_equal(graph, expected)
    assert graph.search_by == GPU


def test_a_pile_is_uploaded_once_for_all_queries_and_a_block_of_these_waits_once(rows):
    with emulated_cuda() as device:
        search = NeighbourSearch(rows[0], device="cuda")
        search.nearest(rows[0][:50])
        device.counts.clear()
        for _ in range(3):
            search.nearest(rows[0][:50])
    assert device.counts.waited == 3, str(device.counts)
    assert uploads(device.counts) == 3, str(device.counts)  # the queries


def test_scores_with_the_neighbours_of_a_pile_are_those_of_the_cpu(rows, cache, tmp_path, monkeypatch):
    monkeypatch.setattr("pucache.scoring.pile_scores._VALUES_AT_ONCE", 100 * D)
    model = with_neighbours(train_pu(cache, rows[1], device="cpu"), 2.0)
    new = write_cache(tmp_path / "new.h5", rows[0][:300] + np.float16(0.1))
    pile = Pile.of(model, cache)
    expected = [scores for _, scores in pile.scores_of(new)]
    with emulated_cuda() as device:
        scores = [scores for _, scores in pile.scores_of(new)]
    assert len(scores) == 3
    np.testing.assert_allclose(np.concatenate(scores), np.concatenate(expected), rtol=1e-3, atol=1e-3)
    assert device.counts.waited <= ESTIMATE_WAITS + 1 + len(scores), str(device.counts)


# --- a search itself ---------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(
    arrays(np.float32, st.tuples(st.integers(1, 400), st.just(3)), elements=st.integers(-3, 3).map(float)),
    arrays(np.float32, st.tuples(st.integers(1, 9), st.just(3)), elements=st.integers(-3, 3).map(float)),
    st.integers(1, 30),
    st.booleans(),
)
def test_equal_products_are_in_the_order_of_their_rows(rows, queries, k, half):
    """Products of small integers are exact, so brute force with a stable sort gives the same lists."""
    itself = np.arange(len(queries)) % (len(rows) + 1)
    products = np.pad(queries @ rows.T, ((0, 0), (0, 1)))
    products[:, -1] = products[np.arange(len(queries)), itself] = -np.inf
    order = np.argsort(-products[:, : len(rows)], axis=1, kind="stable")[:, :k]
    cosines = np.take_along_axis(products, order, 1)
    with emulated_cuda():
        gpu = torch.device("cuda")
        search = DeviceSearch(upload(rows, gpu), half=half)
        keys = search.greatest(upload(queries, gpu), k, upload(itself, gpu)).cpu()
    values, found = host_lists(keys, k)
    assert (values[:, : order.shape[1]] == cosines).all()
    assert (found[:, : order.shape[1]] == np.where(cosines > -np.inf, order, -1)).all()
    assert (found[:, order.shape[1] :] == -1).all() and found.shape == (len(queries), k)


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1), st.integers(0, (1 << 32) - 1))
def test_keys_are_ordered_as_values_and_then_by_row(values, row):
    tensor = torch.tensor(values, dtype=torch.float32)[None]
    keys = ordered_keys(tensor, torch.full((1, len(values)), row))
    assert (values_of(keys) == tensor).all() and (rows_of(keys) == row).all()
    assert (np.sort(keys.numpy()) == ordered_keys(tensor.sort().values, torch.tensor([row])).numpy()).all()
    if row:
        assert (ordered_keys(tensor, torch.tensor([row - 1])) > keys).all()


def test_rows_to_find_the_nearest_of_are_uploaded_once(rows):
    units = rows[0].astype(np.float32)
    with emulated_cuda() as device:
        search = RowSearch(units, 5, device="cuda")
        device.counts.clear()
        for _ in range(3):
            search.nearest(units[:40])
    assert search.search_by == GPU
    assert device.counts.waited == uploads(device.counts) == 3, str(device.counts)  # queries go up, lists come down


def test_an_index_of_cells_is_searched_by_faiss_on_the_cpu_where_it_sees_no_gpu(rows, cache):
    with emulated_cuda():
        scorer = IndexedSimilarity(Similarity("topk", device="cuda"), "ivf")
        ranking = rank_unlabelled(cache, rows[1], k=30, scorer=scorer)
    expected = rank_unlabelled(cache, rows[1], k=30, scorer=IndexedSimilarity(Similarity("topk", device="cpu"), "ivf"))
    assert ranking.search_by == expected.search_by == "faiss on the CPU" and ranking.keys == expected.keys


class FaissOnGPU:
    """Stands for faiss's build for GPUs: counts uploads, and searches on the CPU."""

    def __init__(self, monkeypatch):
        self.uploads = 0
        monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
        monkeypatch.setattr(faiss, "index_cpu_to_gpu", self._upload, raising=False)
        monkeypatch.setattr("pucache.neighbours.knn.faiss_resources", lambda: None)

    def _upload(self, resources, device, index):
        self.uploads += 1
        return faiss.clone_index(index)


@pytest.mark.parametrize("kind", ["topk", "max"])
def test_where_faiss_sees_the_gpu_it_searches_and_the_positives_go_up_once(
    rows, cache, small_blocks, monkeypatch, kind
):
    expected = rank_unlabelled(cache, rows[1], k=50, scorer=Similarity(kind, device="cpu"))
    gpu = FaissOnGPU(monkeypatch)
    with emulated_cuda():
        ranking = rank_unlabelled(cache, rows[1], k=50, scorer=Similarity(kind, device="cuda"))
    assert ranking.keys == expected.keys and ranking.search_by == "faiss on the GPU" and gpu.uploads == 1


def test_an_index_is_uploaded_to_faiss_once(rows, cache, monkeypatch):
    index = open_or_build(cache, "ivf")
    units = index.whitening.centred_units(rows[0][:20])
    gpu = FaissOnGPU(monkeypatch)
    with emulated_cuda():
        for _ in range(3):
            index.search(units, 10, device="cuda")
        assert index.search_by(10, device="cuda") == "faiss on the GPU"
    assert gpu.uploads == 1 and index.search_by(10, device="cpu") == "faiss on the CPU"


# --- memory ------------------------------------------------------------------------------------


def test_rows_are_uploaded_once_for_all_passes(rows, cache, small_blocks):
    with emulated_cuda() as device:
        Similarity("centroid", device="cuda")(cache, Labels.of(rows[1]))
    by_line = {line: times for (what, line), times in device.counts.copies.items() if "to the device" in what}
    assert sum(by_line.values()) == N // BLOCK + 1 + 3 + 1, str(device.counts)  # rows, draws, whitening, direction


def test_rows_that_do_not_fit_are_streamed_and_a_line_says_so(rows, cache, small_blocks, caplog):
    caplog.set_level("INFO")
    expected = Similarity("whitened", device="cpu")(cache, Labels.of(rows[1]))
    with emulated_cuda(free=N * D) as device:
        scores = Similarity("whitened", device="cuda")(cache, Labels.of(rows[1]))
    np.testing.assert_allclose(scores.values, expected.values, rtol=2e-5, atol=2e-5)
    assert uploads(device.counts) == 3 * N // BLOCK + 1 + 3 + 1, str(device.counts)
    said = [record.message for record in caplog.records if "streamed" in record.message]
    assert len(said) == 1 and said[0].startswith("600 rows (0.0 GB) do not fit into half of the free memory")


@pytest.mark.parametrize("part", [100, 250])
def test_graphs_and_queries_in_parts_are_those_of_the_whole(rows, monkeypatch, caplog, part):
    monkeypatch.setattr(device_pile, "free_memory", lambda device: part * D * 16 * 2)
    caplog.set_level("INFO")
    queries = rows[0][:90] + np.float16(0.1)
    expected = neighbour_graph(rows[0], device="cpu"), query_neighbours(rows[0], queries, device="cpu")
    with emulated_cuda():
        graph, queried = neighbour_graph(rows[0], device="cuda"), query_neighbours(rows[0], queries, device="cuda")
    check_equal(graph, expected[0])
    check_equal(queried, expected[1])
    assert sum("they are streamed" in record.message for record in caplog.records) == 2


def test_twins_in_several_parts_are_in_the_order_of_their_rows(monkeypatch):
    monkeypatch.setattr(device_pile, "free_memory", lambda device: 64 * 4 * 16 * 2)
    X = np.tile(planted(30, 4, 10)[0].astype(np.float16), (10, 1))
    with emulated_cuda():
        graph = query_neighbours(X, X[:30], 8, device="cuda")
    assert (graph.rows == np.arange(30)[:, None] + 30 * np.arange(8)).all()


def test_cells_that_do_not_fit_are_searched_on_the_cpu_and_a_line_says_so(rows, few_visits, caplog):
    with emulated_cuda(free=4 * N * D):
        graph = neighbour_graph(rows[0], method="ivf", device="cuda")
    check_equal(graph, neighbour_graph(rows[0], method="ivf", device="cpu"))
    assert graph.search_by == "torch on the CPU"
    assert [record.message for record in caplog.records if "the CPU searches" in record.message]


def test_blocks_of_queries_follow_the_memory_that_is_free(rows, monkeypatch):
    expected = neighbour_graph(rows[0], k=5, device="cpu")
    with emulated_cuda(free=1 << 20) as device:
        graph = neighbour_graph(rows[0], k=5, device="cuda")
    check_equal(graph, expected)
    lists = sum(times for (_, line), times in device.counts.waits.items() if "device_pile" in line)
    assert 10 < lists < N, str(device.counts)
