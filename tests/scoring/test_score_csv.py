import csv
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pucache.cache.keys import Keys, encode_keys
from pucache.errors import CacheError
from pucache.scoring import score_csv
from pucache.scoring.score_csv import csv_rows
from pucache.storage.tables import table_writer

KEYS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)
AWKWARD = st.text(st.sampled_from(',"\r\n a\u2028é🦊'), min_size=1, max_size=6)
SCORES = st.tuples(st.floats(width=32, allow_nan=False), st.floats(0, 1), st.integers(0, 1))


def columns(scores):
    margin, posterior, label = zip(*scores, strict=True) if scores else ((), (), ())
    return {
        "margin": np.array(margin, np.float32),
        "posterior": np.array(posterior, np.float64),
        "label": np.array(label, np.int8),
    }


def by_csv_module(keys, scores):
    """The definition: cell by cell."""
    stream = io.StringIO(newline="")
    write = table_writer(stream)
    for key, (margin, posterior, label) in zip(keys, scores, strict=True):
        write([key, f"{margin:.6g}", f"{posterior:.6g}", label])
    return stream.getvalue()


@given(st.lists(st.tuples(KEYS | AWKWARD, SCORES), max_size=30), st.sampled_from([1, 200, 1 << 20]))
def test_rows_are_those_of_the_csv_module_and_read_back(rows, at_once):
    keys, scores = [key for key, _ in rows], [score for _, score in rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(score_csv, "_BYTES_AT_ONCE", at_once)
        text = b"".join(csv_rows(encode_keys(keys), **columns(scores))).decode()
    assert text == by_csv_module(keys, scores)
    table = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    assert [key for key, *_ in table] == keys
    np.testing.assert_allclose([[float(cell) for cell in cells] for _, *cells in table], scores or [], rtol=5e-6)


@pytest.mark.parametrize("odd", ["a,b", 'a"b', '"', "a\nb", "a\rb", "é🦊", "x" * 4096, '","' * 1000])
def test_one_odd_key_among_many_changes_no_other_row(odd):
    keys = [f"{row:05}" for row in range(20_000)]
    keys[7_777] = odd
    scores = [(row / 7, row / 20_000, row % 2) for row in range(20_000)]
    scores = [(float(np.float32(margin)), posterior, label) for margin, posterior, label in scores]
    pieces = list(csv_rows(encode_keys(keys), **columns(scores)))
    assert b"".join(pieces).decode() == by_csv_module(keys, scores)
    assert len(pieces) > 1 and max(map(len, pieces)) <= 2 * score_csv._BYTES_AT_ONCE


def test_a_key_with_nul_stays_whole():
    key = np.array([b"a\0b", b"c"])
    assert b"".join(csv_rows(key, **columns([(1, 0.5, 1), (2, 0.25, 0)]))) == b"a\0b,1,0.5,1\nc,2,0.25,0\n"


@pytest.mark.parametrize("keys", [[b"a\xff"], [b"a\xc3", b"\xa9b"], [b"a\xff", b"\r"]], ids=str)
def test_keys_that_are_not_utf_8_are_damage(keys):
    with pytest.raises(CacheError, match="is not UTF-8"):
        list(csv_rows(np.array(keys), **columns([(1, 0.5, 1)] * len(keys))))


@given(st.lists(st.lists(KEYS, max_size=5), max_size=4), st.integers(0, 20), st.integers(0, 20))
def test_encoded_keys_of_any_rows_of_several_files(parts, start, stop):
    keys = Keys([encode_keys(part) for part in parts])
    encoded = keys.encoded(slice(start, stop))
    assert encoded.dtype.kind == "S"
    assert [key.decode() for key in encoded.tolist()] == list(keys)[start:stop]
