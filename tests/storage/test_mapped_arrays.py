import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pucache.storage import mapped_arrays
from pucache.storage.mapped_arrays import release_pages, row_slices, rows_not_finite, take_rows


def mapped(path, X, mode="r"):
    X.tofile(path)
    return np.memmap(path, X.dtype, mode, shape=X.shape)


def resident_pages(X):
    """Pages of a map that count as this process's resident memory."""
    address = X.__array_interface__["data"][0]
    with open("/proc/self/smaps") as stream:
        lines = iter(stream)
        for line in lines:
            if "-" in line.split()[0] and int(line.split("-")[0], 16) == address:
                rss = next(part for part in lines if part.startswith("Rss:"))
                return int(rss.split()[1]) * 1024 // mmap.PAGESIZE
    raise AssertionError("the map is not listed")


# --- row_slices --------------------------------------------------------------------------------


@given(n=st.integers(0, 100_000), d=st.integers(1, 20_000))
def test_slices_cover_every_row_once_and_are_bounded(n, d):
    slices = list(row_slices(n, d))
    assert [row for part in slices for row in (part.start, part.stop)] == sorted(
        [0, n] * bool(n) + [part.start for part in slices[1:]] * 2
    )
    for part in slices:
        rows = part.stop - part.start
        assert rows > 0 and (rows <= 256 or rows * d <= 1 << 22)


# --- rows_not_finite ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rows_with_nan_or_infinity_are_found_in_every_block(tmp_path, monkeypatch, dtype):
    monkeypatch.setattr(mapped_arrays, "_BLOCK_VALUES", 0)  # blocks of 256 rows
    monkeypatch.setattr(mapped_arrays, "LARGE_MAP_BYTES", 0)
    X = np.ones((1000, 3), dtype)
    X[0, 2], X[255, 0], X[256, 1], X[999, 0], X[7] = np.nan, np.inf, -np.inf, np.nan, np.finfo(dtype).max
    rows = rows_not_finite(mapped(tmp_path / "X", X))
    assert rows.dtype == np.int64
    np.testing.assert_array_equal(rows, [0, 255, 256, 999])
    np.testing.assert_array_equal(rows_not_finite(X), rows)


@pytest.mark.parametrize("shape", [(0, 4), (5, 4)])
def test_where_all_is_finite_there_are_no_rows(shape):
    rows = rows_not_finite(np.zeros(shape, np.float32))
    assert rows.dtype == np.int64 and rows.shape == (0,)


# --- take_rows ---------------------------------------------------------------------------------


@given(data=st.data(), n=st.integers(1, 60), d=st.integers(1, 5), run_bytes=st.integers(1, 300))
def test_taken_rows_are_those_that_indexing_gives(data, n, d, run_bytes):
    X = np.arange(n * d, dtype=np.float32).reshape(n, d)
    rows = np.array(sorted(data.draw(st.lists(st.integers(0, n - 1)))), np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mapped_arrays, "_RUN_BYTES", run_bytes)
        taken = take_rows(X, rows)
    assert taken.dtype == X.dtype and taken.shape == (len(rows), d) and not np.shares_memory(taken, X)
    np.testing.assert_array_equal(taken, X[rows])


def test_rows_taken_from_a_map_are_a_copy_that_outlives_it(tmp_path):
    X = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float16)
    taken = take_rows(mapped(tmp_path / "X", X), np.array([0, 3, 3, 49]))
    assert type(taken) is np.ndarray and taken.base is None
    np.testing.assert_array_equal(taken, X[[0, 3, 3, 49]])


# --- release_pages -----------------------------------------------------------------------------


def read_all(X):
    return np.asarray(X[:]).sum()


def test_pages_of_a_large_map_are_released_and_can_be_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(mapped_arrays, "LARGE_MAP_BYTES", 0)
    X = mapped(tmp_path / "X", np.ones((256, mmap.PAGESIZE), np.uint8))
    assert read_all(X) == X.size and resident_pages(X) == 256
    release_pages(X[:3].view())  # any view of the map
    assert resident_pages(X) == 0
    assert read_all(X) == X.size


def test_pages_of_a_small_map_stay(tmp_path):
    X = mapped(tmp_path / "X", np.ones((256, mmap.PAGESIZE), np.uint8))
    read_all(X)
    release_pages(X)
    assert resident_pages(X) == 256


def test_values_that_exist_in_memory_alone_are_never_released(tmp_path, monkeypatch):
    monkeypatch.setattr(mapped_arrays, "LARGE_MAP_BYTES", 0)
    changed = mapped(tmp_path / "X", np.zeros((4, mmap.PAGESIZE), np.uint8), "c")
    changed[:] = 7
    plain = np.full((4, 4), 7)
    for X in (changed, changed[1:], plain):
        release_pages(X)
        assert (X == 7).all()
