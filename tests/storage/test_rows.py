"""Rows of arrays, maps and several files, against the array that holds the same rows."""

import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pucache.storage import rows as storage_rows
from pucache.storage.rows import StackedRows, finite_rows, release_pages, rows_not_finite, take_rows


def mapped(path, X, mode="r"):
    X.tofile(path)
    return np.memmap(path, X.dtype, mode, shape=X.shape)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f2"])
def test_every_bit_pattern_is_judged_as_numpy_judges_it(monkeypatch, dtype):
    monkeypatch.setattr(storage_rows, "_CHECKED_VALUES", 1000)
    X = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(-1, 1)[:, [0, 0]].astype(dtype)
    X[:, 1] = 1
    np.testing.assert_array_equal(finite_rows(X), np.isfinite(X).all(1))
    np.testing.assert_array_equal(finite_rows(X[:, :0]), np.ones(len(X), bool))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rows_with_nan_or_infinity_are_found_in_every_block(tmp_path, monkeypatch, dtype):
    monkeypatch.setattr(storage_rows, "_BLOCK_VALUES", 0)  # blocks of 256 rows
    monkeypatch.setattr(storage_rows, "LARGE_MAP_BYTES", 0)
    X = np.ones((1000, 3), dtype)
    X[0, 2], X[255, 0], X[256, 1], X[999, 0], X[7] = np.nan, np.inf, -np.inf, np.nan, np.finfo(dtype).max
    rows = rows_not_finite(mapped(tmp_path / "X", X))
    assert rows.dtype == np.int64
    np.testing.assert_array_equal(rows, [0, 255, 256, 999])
    np.testing.assert_array_equal(rows_not_finite(X), rows)


# --- release_pages -----------------------------------------------------------------------------


def test_values_that_exist_in_memory_alone_are_never_released(tmp_path, monkeypatch):
    monkeypatch.setattr(storage_rows, "LARGE_MAP_BYTES", 0)
    changed = mapped(tmp_path / "X", np.zeros((4, mmap.PAGESIZE), np.uint8), "c")
    changed[:] = 7
    plain = np.full((4, 4), 7)
    for X in (changed, changed[1:], plain):
        release_pages(X)
        assert (X == 7).all()


# --- several parts -----------------------------------------------------------------------------


@st.composite
def stacked(draw):
    """Stacked rows and the array that they make."""
    sizes, d = draw(st.lists(st.integers(0, 12), min_size=1, max_size=6)), draw(st.integers(1, 4))
    X = np.arange(sum(sizes) * d, dtype=draw(st.sampled_from([np.float16, np.float32, np.uint8]))).reshape(-1, d)
    return StackedRows(np.split(X, np.cumsum(sizes)[:-1])), X


@given(stacked(), st.data())
def test_they_are_indexed_as_an_array_is(both, data):
    stack, X = both
    n = len(X)
    assert (stack.shape, stack.dtype, stack.ndim, len(stack)) == (X.shape, X.dtype, X.ndim, n)
    assert (stack.nbytes, stack.size, stack.itemsize) == (X.nbytes, X.size, X.itemsize)
    part = data.draw(st.slices(n) | st.builds(slice, st.integers(-20, 60), st.integers(-20, 60)))
    np.testing.assert_array_equal(stack[part], X[part])
    assert stack[part].shape == X[part].shape and stack[part].dtype == X.dtype
    rows = np.array(data.draw(st.lists(st.integers(-n, n - 1))) if n else [], np.int64)
    np.testing.assert_array_equal(stack[rows], X[rows])
    np.testing.assert_array_equal(stack[rows.tolist()], X[rows])
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)), bool)
    np.testing.assert_array_equal(stack[mask], X[mask])
    if len(rows):
        np.testing.assert_array_equal(stack[int(rows[0])], X[rows[0]])
    np.testing.assert_array_equal(np.asarray(stack), X)


@given(stacked(), st.data(), st.integers(1, 40))
def test_taken_rows_are_those_that_indexing_gives(both, data, run_bytes):
    stack, X = both
    rows = np.array(sorted(data.draw(st.lists(st.integers(0, len(X) - 1)))) if len(X) else [], np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage_rows, "_RUN_BYTES", run_bytes)
        patch.setattr(storage_rows, "LARGE_MAP_BYTES", data.draw(st.sampled_from([0, 1 << 29])))
        for matrix in (X, stack):
            taken = take_rows(matrix, rows)
            assert taken.dtype == X.dtype and taken.flags.c_contiguous and not np.shares_memory(taken, X)
            np.testing.assert_array_equal(taken, X[rows])
        assert not len(rows_not_finite(stack))
