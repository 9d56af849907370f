import gzip
import mmap
import re

import numpy as np
import pytest
from helpers.refusals import one_line
from helpers.spreadsheets import edit, write_xlsx
from hypothesis import example, given
from hypothesis import strategies as st

from pucache.errors import LabelError
from pucache.storage import rows as storage_rows
from pucache.storage.rows import StackedRows, finite_rows, release_pages, rows_not_finite, take_rows
from pucache.storage.table_writer import six_digits, write_rows
from pucache.storage.tables import read_table


@pytest.mark.parametrize("bom", ["", "\ufeff"], ids=["plain", "BOM"])
@pytest.mark.parametrize(
    "name, content, expected",
    [
        ("keys.txt", "b.png\n\n a b.png\n   \nc,d.png", ["b.png", " a b.png", "c,d.png"]),
        ("keys.txt", "a\u2028b.png\nc\x85\x0cd.png\n", ["a\u2028b.png", "c\x85\x0cd.png"]),
        ("keys.CSV", "rank,key,score\r\n1,b.png,3\r\n\r\n2,a.png,1\r\n", ["b.png", "a.png"]),
        ("keys.csv", 'key\n"a\nb.png"\n"c\r\nd.png"\n"e""f,g"\n', ["a\nb.png", "c\r\nd.png", 'e"f,g']),
        ("keys.csv", "key\na\u2028b.png\nc\x85\x0cd.png\n", ["a\u2028b.png", "c\x85\x0cd.png"]),
        ("keys.txt", "", []),
    ],
)
def test_a_table_gives_the_keys_as_they_are(write, name, content, expected, bom):
    assert [row["key"] for row in read_table(write(name, bom + content))] == expected


@given(keys=st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)))
def test_any_key_survives_being_written_and_read(tmp_path_factory, keys):
    path = tmp_path_factory.getbasetemp() / "any.csv"
    write_rows(path, [["rank", "key"], *enumerate(keys)])
    assert read_table(path) == [{"rank": str(rank), "key": key} for rank, key in enumerate(keys)]


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("keys.csv", 'key\na\n"b\n', "keys.csv line 3: unexpected end of data"),
        ("keys.csv", 'key\n"a"b\n', "keys.csv line 2: "),
        ("keys.csv", "key,label\na,1\nb,1.png,0\n", r"line 3: 3 cells for 2 columns \(key, label\); .* ',' in quotes"),
        ("keys.csv", "key\ta;b\na.png\t1\t2\n", "line 2: 3 cells for 2 columns"),
        ("keys.json", '{"columns": ["key", "label"], "data": [["a.png", 1, 0]]}', "is not JSON of a table"),
        ("keys.json", '{"info": {}, "classifications": []}', "is not JSON of a table"),
        ("keys.csv.gz", gzip.compress(b"key\na\n", mtime=0)[:-9], "keys.csv.gz is a gzip archive that cannot be read"),
        ("keys.csv.zip", b"PK\3\4key", "is a spreadsheet .* or a ZIP archive that cannot be read: .*unpack it"),
        ("keys.pkl", b"\x80\x04\x95" + bytes(8) + b"\xe9", "keys.pkl is a pickle; expected keys, one a line"),
        ("keys.npy", b"\x93NUMPY\1\0v\0" + bytes(40), "keys.npy is a NumPy array; expected keys, one a line"),
        ("keys.txt", b"a.png\n\x81.png\n", r"not UTF-8 text \(byte 6\), nor cp1252; save it as UTF-8, or"),
    ],
)
def test_what_is_no_table_is_refused_and_the_place_named(write, name, content, message):
    assert re.search(message, one_line(LabelError, read_table, write(name, content)))


# --- table writer ---------------------------------------------------------------------------------


@given(values=st.lists(st.one_of(st.floats(), st.floats(-20, 20), st.integers(-(10**8), 10**8)), max_size=20))
@example([0.5, 1.0000005, 100000.5, 99999.95, 0.1234565, -0.0, 1e-17, 5e-324, 1e300, 9.999995e-5])
def test_numbers_are_rounded_as_text_of_six_digits_is(values):
    values = np.array(values, np.float64)
    np.testing.assert_array_equal(six_digits(values), [float(f"{value:.6g}") for value in values])


# --- Rows of arrays, maps and several files, against the array that holds the same rows -----------


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


@pytest.mark.parametrize(
    ("cell", "count"),
    [
        (b'<c t="e"><v>#DIV/0!</v></c>', 1),
        (b'<c r="B3" s="1" t="e"><f>1/0</f><v>#DIV/0!</v></c>', 1),
        (b"<c><f>1+1</f></c>", 1),
        (b"<c><f>1+1</f><v></v></c>", 1),
        (b"<c><f>1+0</f><v>1</v></c>", 0),
    ],
)
def test_cells_of_a_workbook_that_have_no_value_are_counted(tmp_path, caplog, cell, count):
    path = write_xlsx(tmp_path / "t.xlsx", {"a": [["key", "label"], ["a", 1], ["b", 7], ["c", 0]]})
    edit(path, lambda content: content.replace(b"<c><v>7</v></c>", cell))
    assert [row["label"] for row in read_table(path)] == ["1", "" if count else "1", "0"]
    assert ("1 cells have an error, or a formula" in caplog.text) == bool(count)
