import gzip
import re

import pytest
from helpers.refusals import one_line
from hypothesis import given
from hypothesis import strategies as st

from pucache.errors import LabelError
from pucache.storage.table_writer import write_rows
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
        ("keys.csv", "key,label\na.png,1\n,\n,\n", ["a.png"]),
        ("keys.txt", "", []),
        ("keys.txt.gz", "b.png\na,1.png\n", ["b.png", "a,1.png"]),
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
        ("keys.csv", "note,key\na\n", "has a row without a key"),
        ("keys.csv", "key,label\na,1\nb,1.png,0\n", r"line 3: 3 cells for 2 columns \(key, label\); .* ',' in quotes"),
        ("keys.csv", "key\ta;b\na.png\t1\t2\n", "line 2: 3 cells for 2 columns"),
        ("keys.json", '{"columns": ["key", "label"], "data": [["a.png", 1, 0]]}', "is not JSON of a table"),
        ("keys.csv.gz", gzip.compress(b"key\na\n")[:-9], "keys.csv.gz is a gzip archive that cannot be read"),
        ("keys.csv.gz", b"\x1f\x8b", "keys.csv.gz is a gzip archive that cannot be read"),
        ("keys.csv.zip", b"PK\3\4key", "is a spreadsheet .* or a ZIP archive that cannot be read: .*unpack it"),
        ("keys.pkl", b"\x80\x04\x95" + bytes(8) + b"\xe9", "keys.pkl is a pickle; expected keys, one a line"),
        ("keys.npy", b"\x93NUMPY\1\0v\0" + bytes(40), "keys.npy is a NumPy array; expected keys, one a line"),
        ("keys.txt", b"a.png\n\x81.png\n", r"not UTF-8 text \(byte 6\), nor cp1252; name its encoding: --encoding"),
    ],
)
def test_what_is_no_table_is_refused_and_the_place_named(write, name, content, message):
    assert re.search(message, one_line(LabelError, read_table, write(name, content)))
