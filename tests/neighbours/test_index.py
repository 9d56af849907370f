import logging

import faiss
import numpy as np
import pytest
from helpers import plain
from helpers.planted import write_cache

from pucache.errors import CacheError, OutputError
from pucache.neighbours import index as index_module
from pucache.neighbours.graph_file import checksums_of
from pucache.neighbours.index import CANDIDATES, RECALL_AT, index_path, open_or_build, read_index

pytestmark = pytest.mark.usefixtures("one_thread")
N = 3000
OF = np.random.default_rng(0).integers(0, 30, N)
X = np.random.default_rng(1).normal(size=(30, 16))[OF] + 0.4 * np.random.default_rng(2).normal(size=(N, 16))
X = X.astype(np.float32)
FACTORIES = ("Flat", "IVF32,Flat", "IVF32,SQ8", "IVF32,PQ8x4", "HNSW16", "PCA8,IVF16,SQfp16")


@pytest.fixture
def cache(tmp_path):
    return write_cache(tmp_path / "cache.h5", X)


@pytest.fixture
def small(tmp_path):
    """A cache so small that its index can be damaged in every byte."""
    return write_cache(tmp_path / "small.h5", X[:40, :4])


@pytest.fixture
def built(monkeypatch):
    """Factory strings of the indices that are built."""
    genuine, factories = index_module._filled, []
    monkeypatch.setattr(index_module, "_filled", lambda *given: factories.append(given[1]) or genuine(*given))
    return factories


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.INFO, "pucache")
    return lambda: [record.getMessage() for record in caplog.records]


# --- what it finds -----------------------------------------------------------------------------


@pytest.mark.parametrize("factory", FACTORIES)
def test_an_index_finds_the_neighbours_that_brute_force_finds_as_often_as_it_says(cache, factory):
    index = open_or_build(cache, factory)
    Z = plain.unit(X)
    queries = np.arange(0, N, 60)
    true = np.argsort(-Z[queries] @ Z.T, axis=1)[:, :RECALL_AT]
    found = index.candidates(Z[queries].astype(np.float32), RECALL_AT)
    assert found.shape == (50, CANDIDATES * RECALL_AT)
    recall = np.mean([len(np.intersect1d(a, b)) / RECALL_AT for a, b in zip(found, true, strict=True)])
    assert recall > 0.95 and recall == pytest.approx(index.recall, abs=0.03)
    assert index.recall == 1 or factory != "Flat"


@pytest.mark.parametrize("factory", ["Flat", "IVF1,SQ8", "HNSW16"])
def test_one_row_and_rows_that_are_all_equal_can_be_indexed(tmp_path, factory):
    for name, rows in {"one": X[:1], "equal": np.ones((200, 4), np.float32)}.items():
        index = open_or_build(write_cache(tmp_path / f"{name}.h5", rows), factory)
        width = min(len(rows), CANDIDATES)
        assert index.candidates(np.zeros((1, rows.shape[1]), np.float32), 1).shape == (1, width)


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "factory, message",
    [
        ("ivf", r"faiss makes no index 'ivf' of 4 dimensions \(could not parse index string ivf\); use exact, or"),
        ("", "faiss makes no index '' of 4 dimensions"),
        ("IVF4,PQ3", "faiss makes no index 'IVF4,PQ3' of 4 dimensions|cannot be made of the 40 rows"),
        ("IVF64,Flat", r"an index IVF64,Flat cannot be made of the 40 rows of .*small.h5 \(Number of training points"),
        ("IVF4,PQ2", r"an index IVF4,PQ2 cannot be made of the 40 rows of .*small.h5 \(Number of training points"),
    ],
)
def test_a_factory_string_that_cannot_be_made_is_refused_in_one_line(small, factory, message):
    with pytest.raises(ValueError, match=message) as caught:
        open_or_build(small, factory)
    assert "\n" not in str(caught.value) and not index_path(small, factory).exists()


# --- the file ----------------------------------------------------------------------------------


@pytest.mark.parametrize("factory", FACTORIES)
def test_an_index_is_built_once_and_read_from_then_on(cache, factory, built, said):
    first, again = open_or_build(cache, factory), open_or_build(cache, factory)
    assert built == [factory] and said() == []
    assert (again.recall, again.sample, again.checksums) == (first.recall, first.sample, checksums_of(cache))
    Z = plain.unit(X)[:9].astype(np.float32)
    assert (first.candidates(Z, 30) == again.candidates(Z, 30)).all()
    assert (again.whitening.mean == first.whitening.mean).all()


def test_a_cache_that_was_written_anew_has_its_index_built_anew_and_a_line_says_so(cache, tmp_path, built, said):
    open_or_build(cache, "IVF8,SQ8")
    changed = write_cache(tmp_path / "cache.h5", X[::-1])
    index = open_or_build(changed, "IVF8,SQ8")
    path = index_path(changed, "IVF8,SQ8")
    assert path.name == "cache.h5.IVF8-SQ8.index"
    assert said() == [f"{path} is of another state of the cache; building it anew"] and len(built) == 2
    assert N - 1 in index.candidates(plain.unit(X)[:1].astype(np.float32), 1)
    open_or_build(changed, "IVF8,SQ8")
    assert len(built) == 2


def test_no_damaged_index_reaches_faiss(small, monkeypatch):
    open_or_build(small, "IVF4,SQ8")
    monkeypatch.setattr(faiss, "read_index", lambda *given: pytest.fail("faiss saw damaged bytes"))
    path = index_path(small, "IVF4,SQ8")
    whole, draw = path.read_bytes(), np.random.default_rng(0)
    cut = [whole[:length] for length in [*range(0, len(whole), 37), len(whole) - 1]]
    flipped = []
    for position in draw.integers(0, len(whole), 300):
        flipped.append(bytearray(whole))
        flipped[-1][position] ^= 1 << draw.integers(8)
    for data in [*cut, *flipped, whole + b"x", b"precious notes\n" * 40]:
        path.write_bytes(data)
        with pytest.raises(CacheError, match="is damaged, or no index of this version of pucache"):
            read_index(path)


@pytest.mark.parametrize("change", [{"format": "pucache-index-9"}, {"whitening": "AAAA"}, {"more": 1}])
def test_an_index_of_another_version_is_built_anew(small, built, monkeypatch, change):
    genuine = index_module.json.dumps
    monkeypatch.setattr(index_module.json, "dumps", lambda description: genuine(description | change))
    open_or_build(small, "Flat")
    monkeypatch.undo()
    with pytest.raises(CacheError, match=r"of another version of pucache|cannot read"):
        read_index(index_path(small, "Flat"))
    assert open_or_build(small, "Flat").index.ntotal == 40


# --- where it cannot be written ----------------------------------------------------------------


def test_a_full_disk_is_an_output_error_and_leaves_the_index_that_was_there(cache, small_disk):
    open_or_build(cache, "Flat")
    path = index_path(cache, "Flat")
    path.write_bytes(before := path.read_bytes()[:-1])
    with small_disk(20_000), pytest.raises(OutputError, match=r"cannot write .*Flat.*what was there .*untouched"):
        open_or_build(cache, "Flat")
    assert path.read_bytes() == before and sorted(path.parent.iterdir()) == sorted([path, cache.files[0].path])
