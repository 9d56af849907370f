"""Stacked rows against the array that holds the same rows."""

import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pucache.heads.moments import Moments
from pucache.storage import mapped_arrays
from pucache.storage.mapped_arrays import release_pages, row_slices, rows_not_finite, take_rows
from pucache.storage.stacked_rows import StackedRows
from tests.storage.test_mapped_arrays import mapped, read_all, resident_pages


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
def test_the_functions_of_maps_take_them(both, data, run_bytes):
    stack, X = both
    rows = np.array(sorted(data.draw(st.lists(st.integers(0, len(X) - 1)))) if len(X) else [], np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mapped_arrays, "_RUN_BYTES", run_bytes)
        patch.setattr(mapped_arrays, "LARGE_MAP_BYTES", data.draw(st.sampled_from([0, 1 << 29])))
        taken = take_rows(stack, rows)
        assert taken.dtype == X.dtype and taken.flags.c_contiguous
        np.testing.assert_array_equal(taken, X[rows])
        assert not len(rows_not_finite(stack))


def test_a_slice_of_one_part_is_a_view_and_one_across_parts_a_copy():
    first, second = np.ones((3, 2)), np.zeros((4, 2))
    stack = StackedRows([first, second])
    assert np.shares_memory(stack[:3], first) and np.shares_memory(stack[3:6], second)
    assert not np.shares_memory(stack[2:4], first) and not np.shares_memory(stack[2:4], second)


@pytest.mark.parametrize(
    "rows", [5, -6, [0, 5], [-6], (0, 1), np.zeros(2), np.zeros((1, 1), int), np.zeros(3, bool), None]
)
def test_rows_that_do_not_exist_are_an_index_error(rows):
    stack = StackedRows([np.ones((3, 2)), np.ones((2, 2))])
    with pytest.raises(IndexError, match="rows"):
        stack[rows]


@pytest.mark.parametrize("other", [np.ones((2, 3)), np.ones((2, 2), np.float32), np.ones(2)])
def test_parts_of_another_shape_or_type_are_refused(other):
    with pytest.raises(ValueError, match="2 columns of float64"):
        StackedRows([np.ones((3, 2)), other])


def test_no_view_is_promised_as_an_array():
    with pytest.raises(ValueError, match="only by a copy"):
        np.asarray(StackedRows([np.ones((3, 2))] * 2), copy=False)


def test_moments_are_those_of_the_array_to_the_last_bit(monkeypatch):
    X = np.random.default_rng(0).normal(3, 2, (3000, 7)).astype(np.float16)
    stack, whole = Moments.of(StackedRows(np.split(X, [5, 900, 901, 2999]))), Moments.of(X)
    assert np.array_equal(stack.centre, whole.centre) and stack.spread == whole.spread


# --- pages -------------------------------------------------------------------------------------

PAGES = 64


@pytest.fixture
def maps(tmp_path):
    """Four maps, each smaller than what counts as large."""
    return [mapped(tmp_path / str(number), np.ones((PAGES, mmap.PAGESIZE), np.uint8)) for number in range(4)]


def test_pages_of_all_parts_are_released_where_together_they_are_large(maps, monkeypatch):
    monkeypatch.setattr(mapped_arrays, "LARGE_MAP_BYTES", 3 * PAGES * mmap.PAGESIZE)
    stack = StackedRows(maps)
    for part in row_slices(PAGES * 4, 1):
        read_all(stack[part])
    release_pages(stack)
    assert sum(map(resident_pages, maps)) == 0
    take_rows(stack, np.arange(4 * PAGES))
    assert sum(map(resident_pages, maps)) == 0


def test_pages_of_small_stacks_stay(maps):
    stack = StackedRows(maps)
    read_all(stack[:])
    release_pages(stack)
    assert sum(map(resident_pages, maps)) == 4 * PAGES


def test_a_view_that_is_read_after_another_release_is_released_by_the_next(maps, monkeypatch):
    monkeypatch.setattr(mapped_arrays, "LARGE_MAP_BYTES", 0)
    stack = StackedRows(maps)
    view = stack[:PAGES]
    release_pages(stack)  # as by another thread
    assert read_all(view) == view.size and resident_pages(maps[0])
    stack[PAGES : PAGES + 1]
    release_pages(stack)
    assert sum(map(resident_pages, maps)) == 0
