import numpy as np
import pytest
from helpers import plain
from helpers.files import damage
from helpers.neighbourhoods import dense_weights
from helpers.planted import planted, write_cache
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pucache import EmbeddingCache
from pucache.neighbours import graph, search
from pucache.neighbours.graph import NeighbourSearch, cached_graph, neighbour_graph
from pucache.neighbours.graph_file import graph_path
from pucache.neighbours.whitening import Whitening

pytestmark = pytest.mark.usefixtures("one_thread")
N = 300
X = planted(N, d=8)[0]


@pytest.fixture
def in_cells(monkeypatch):
    """Let every pile be too large to compare all rows."""
    monkeypatch.setattr(graph, "_EXACT_PAIRS", {"cpu": -1})


@pytest.fixture(params=["exact", "cells"])
def searched(request):
    if request.param == "cells":
        request.getfixturevalue("in_cells")


def whitened_cosines(X):
    """Every whitened cosine, float64 (n, n), -2 for a row with itself and for rows without direction."""
    W = np.nan_to_num(plain.whitened(X))  # rows that are all equal have no variance
    cosines = W @ W.T
    without = ~W.any(1)
    cosines[without] = cosines[:, without] = -2
    np.fill_diagonal(cosines, -2)
    return cosines


def check_exact(result, cosines, k, tolerance=2e-3):
    """Compare a graph with the k greatest cosines of each row."""
    n = len(cosines)
    assert result.rows.shape == result.cosines.shape == (n, k)
    assert result.rows.dtype == np.int32 and result.cosines.dtype == np.float16
    expected = -np.sort(-cosines, axis=1)[:, :k]
    expected = np.pad(expected, ((0, 0), (0, k - expected.shape[1])), constant_values=-2)
    absent = expected == -2
    assert (result.rows[absent] == -1).all() and (result.cosines[absent] == -np.inf).all()
    assert (result.rows[~absent] >= 0).all()
    np.testing.assert_allclose(result.cosines[~absent], expected[~absent], atol=tolerance)
    of_rows = np.take_along_axis(cosines, result.rows.clip(0).astype(np.int64), 1)
    np.testing.assert_allclose(of_rows[~absent], expected[~absent], atol=tolerance)
    assert (result.cosines[:, 1:] <= result.cosines[:, :-1]).all()
    for some in result.rows:
        assert len(set(some[some >= 0])) == np.count_nonzero(some >= 0)


# --- the neighbours ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("k", [1, 30, 299, 400])
def test_neighbours_are_the_rows_of_the_greatest_whitened_cosines(opened, k, dtype):
    rows = X.astype(dtype)
    result = neighbour_graph(opened(rows), k=k, device="cpu")
    check_exact(result, whitened_cosines(rows), k, 5e-3)
    assert result.search == "exact search" and result.rows.shape[1] == k and len(result) == N


@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_threads_finds_the_same_bits(monkeypatch, workers, searched):
    rows = planted(3000, d=24)[0]
    monkeypatch.setattr(search, "_QUERIES", 100)
    graphs = []
    for count in (1, workers):
        monkeypatch.setattr(search, "cores", lambda count=count: count)
        graphs.append(neighbour_graph(rows, device="cpu"))
    assert (graphs[0].rows == graphs[1].rows).all() and (graphs[0].cosines == graphs[1].cosines).all()
    assert graphs[0].search == graphs[1].search


SMALL = st.tuples(st.integers(1, 40), st.integers(1, 5))


def test_any_small_array(searched):
    @settings(max_examples=30)
    @given(arrays(np.float32, SMALL, elements=st.integers(-2, 2).map(float)), st.integers(1, 45))
    def check(values, k):
        check_exact(neighbour_graph(values, k=k, device="cpu"), whitened_cosines(values), k, 0.02)

    check()


def test_the_graph_of_some_rows_has_their_numbers_and_the_whitening_of_all(opened):
    some = np.flatnonzero(np.arange(N) % 7 < 2)
    result = neighbour_graph(opened(X), rows=some, k=10, device="cpu")
    check_exact(result, whitened_cosines(X)[np.ix_(some, some)], 10, 5e-3)


# --- unusual piles -----------------------------------------------------------------------------


def test_a_pile_of_twins_among_other_rows_ends(monkeypatch, in_cells):
    monkeypatch.setattr(graph, "_VISITS", 1 << 16)
    monkeypatch.setattr(graph, "_MIN_VISITS", 1 << 8)
    rows = planted(4000, d=8)[0]
    rows[::2] = rows[0]
    result = neighbour_graph(rows, device="cpu")
    assert (result.rows[::2] % 2 == 0).all() and (result.rows >= 0).all()
    assert not (result.rows == np.arange(4000)[:, None]).any()


# --- cells -------------------------------------------------------------------------------------


def test_cells_find_most_neighbours_and_say_how_many(monkeypatch):
    monkeypatch.setattr(graph, "_VISITS", 1 << 20)
    monkeypatch.setattr(graph, "_MIN_VISITS", 1 << 9)
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(40, 24))[draw.integers(0, 40, 4000)] + 0.7 * draw.normal(size=(4000, 24))
    exact = neighbour_graph(rows, k=10, device="cpu")
    monkeypatch.setattr(graph, "_EXACT_PAIRS", {"cpu": 4000**2 - 1})
    cells = neighbour_graph(rows, k=10, device="cpu")
    recall = np.mean([len(np.intersect1d(a, b)) / 10 for a, b in zip(exact.rows, cells.rows, strict=True)])
    assert exact.search == "exact search" and cells.search.startswith("search in 63 cells, recall 0.")
    assert cells.search.endswith(" on 256 rows") and 0.8 < recall < 1
    assert float(cells.search.split()[5]) == pytest.approx(recall, abs=0.05)
    W = plain.whitened(rows)
    expected = np.einsum("nd,nkd->nk", W, W[cells.rows])
    np.testing.assert_allclose(cells.cosines, expected, atol=5e-3)


# --- other rows --------------------------------------------------------------------------------


def test_neighbours_of_other_rows_are_rows_of_the_pile(opened, monkeypatch):
    monkeypatch.setattr(search, "_ROWS", 30)
    pile, queries = X[:200], X[200:]
    result = NeighbourSearch(opened(pile), device="cpu").nearest(queries, 12)
    whitening = Whitening.estimate(pile)
    W, Q = (whitening.whiten(whitening.centred_units(rows)).astype(float) for rows in (pile, queries))
    every = Q @ W.T
    expected = -np.sort(-every, axis=1)[:, :12]
    np.testing.assert_allclose(result.cosines, expected, atol=2e-3)
    np.testing.assert_allclose(np.take_along_axis(every, result.rows.astype(np.int64), 1), expected, atol=2e-3)
    assert result.weighted_means(np.ones(200, np.float32)) == pytest.approx(np.ones(100))


# --- weighted means ----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (1,), (8,)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_weighted_means_are_products_with_the_dense_matrix(shape, dtype):
    result = neighbour_graph(X[:40], k=50, device="cpu")
    values = np.random.default_rng(0).normal(size=(40, *shape)).astype(dtype)
    means = result.weighted_means(values)
    assert means.dtype == dtype and means.shape == values.shape
    np.testing.assert_allclose(means, dense_weights(result, 40) @ values, atol=1e-5)


# --- kept beside the cache ---------------------------------------------------------------------

FEW = X[:60]


@pytest.fixture
def made(monkeypatch):
    """Counts how often a graph is made."""
    genuine, count = graph.neighbour_graph, []
    monkeypatch.setattr(graph, "neighbour_graph", lambda *given, **named: count.append(1) or genuine(*given, **named))
    return count


def same(first, second):
    return (first.rows == second.rows).all() and (first.cosines == second.cosines).all()


CHANGES = {
    "nothing": lambda folder, data: None,
    "another cache": lambda folder, data: write_cache(folder / "cache.h5", FEW[::-1]),
    "empty": lambda folder, data: (folder / "cache.h5.neighbours").write_bytes(b""),
    "half": lambda folder, data: (folder / "cache.h5.neighbours").write_bytes(data[: len(data) // 2]),
    "damaged": lambda folder, data: damage(folder / "cache.h5.neighbours", -99),
    "another file": lambda folder, data: (folder / "cache.h5.neighbours").write_text("precious notes\n"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_graph_of_a_cache_is_kept_and_made_anew_where_what_is_kept_does_not_fit(tmp_path, made, caplog, change):
    cache = write_cache(tmp_path / "cache.h5", FEW)
    first, path = cached_graph(cache, device="cpu"), graph_path(cache)
    whole = path.read_bytes()
    assert path.name == "cache.h5.neighbours" and len(whole) < 60 * 30 * 6 + 10_000
    CHANGES[change](tmp_path, whole)
    cache, is_other = EmbeddingCache(tmp_path / "cache.h5"), change == "another file"
    again = cached_graph(cache, device="cpu")
    assert len(made) == 1 + (change != "nothing") and same(again, neighbour_graph(cache, device="cpu"))
    assert again.rows.dtype == np.int32 and again.cosines.dtype == np.float16 and again.search == "exact search"
    values = np.arange(60, dtype=np.float32)
    assert change == "another cache" or (again.weighted_means(values) == first.weighted_means(values)).all()
    assert (f"{path} is a text file" in caplog.text and "is not kept" in caplog.text) == bool(caplog.text) == is_other
    assert (path.read_bytes() == b"precious notes\n") == is_other and (path.read_bytes() == whole) == (
        change not in ("another file", "another cache")
    )


def test_the_graph_of_a_folder_of_shards_is_that_of_one_file(tmp_path, made):
    first, folder = cached_graph(write_cache(tmp_path / "cache.h5", FEW), device="cpu"), tmp_path / "shards"
    folder.mkdir()
    for number, rows in enumerate(np.array_split(np.arange(60), 3)):
        write_cache(folder / f"{number}.h5", FEW[rows], [f"{row:05}.png" for row in rows])
    got = cached_graph(EmbeddingCache(folder), device="cpu")
    assert graph_path(EmbeddingCache(folder)) == folder / "0.h5.neighbours"
    np.testing.assert_allclose(got.cosines, first.cosines, atol=2e-3)
    assert np.mean(got.rows == first.rows) > 0.99
    assert same(cached_graph(EmbeddingCache(folder)), got) and len(made) == 2
    cached_graph(EmbeddingCache(folder / "0.h5"), device="cpu")
    assert len(made) == 3, "the first shard alone is another cache"


def test_rows_that_are_not_finite_are_named(searched):
    bad = X.copy()
    bad[[250, 260], 3] = np.nan
    with pytest.raises(ValueError, match="first in row 250"):
        neighbour_graph(bad, device="cpu")
