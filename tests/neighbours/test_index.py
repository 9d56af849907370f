import logging

import faiss
import numpy as np
import pytest
from helpers import plain
from helpers.planted import write_cache
from helpers.slow import slow

from pucache.errors import CacheError
from pucache.neighbours import index as index_module
from pucache.neighbours.index import CANDIDATES, RECALL_AT, index_path, open_or_build, read_index

pytestmark = pytest.mark.usefixtures("one_thread")
N = 3000
OF = np.random.default_rng(0).integers(0, 30, N)
X = np.random.default_rng(1).normal(size=(30, 16))[OF] + 0.4 * np.random.default_rng(2).normal(size=(N, 16))
X = X.astype(np.float32)
FACTORIES = ("Flat", "IVF32,Flat", "IVF32,SQ8", slow("IVF32,PQ8x4"), "HNSW16", "PCA8,IVF16,SQfp16")


@pytest.fixture
def cache(tmp_path):
    return write_cache(tmp_path / "cache.h5", X)


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
def test_an_index_finds_the_neighbours_of_brute_force_as_often_as_it_says_and_is_built_once(
    cache, factory, built, said
):
    index, again = open_or_build(cache, factory), open_or_build(cache, factory)
    assert built == [factory] and said() == []
    assert (again.recall, again.sample, again.checksums) == (index.recall, index.sample, cache.checksums)
    assert (again.whitening.mean == index.whitening.mean).all()
    Z = plain.unit(X)
    queries = np.arange(0, N, 60)
    true = np.argsort(-Z[queries] @ Z.T, axis=1)[:, :RECALL_AT]
    found, read = (one.candidates(Z[queries].astype(np.float32), RECALL_AT) for one in (index, again))
    assert found.shape == (50, CANDIDATES * RECALL_AT) and (found == read).all()
    recall = np.mean([len(np.intersect1d(a, b)) / RECALL_AT for a, b in zip(found, true, strict=True)])
    assert recall > 0.95 and recall == pytest.approx(index.recall, abs=0.03)
    assert index.recall == 1 or factory != "Flat"


# --- the file ----------------------------------------------------------------------------------


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


def test_no_damaged_index_reaches_faiss(tmp_path, monkeypatch):
    small = write_cache(tmp_path / "small.h5", X[:40, :4])
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


def test_what_pucache_did_not_write_is_left_under_the_name_of_an_index_and_named(cache, said):
    path = index_path(cache, "Flat")
    path.write_bytes(b"precious notes\n")
    assert open_or_build(cache, "Flat").recall == 1
    assert path.read_bytes() == b"precious notes\n"
    assert any(line.startswith(f"the index is not kept, and made anew each time: {path} is a text") for line in said())
