import pytest

from pucache.errors import LabelError
from pucache.scoring.score_tables import read_scores


@pytest.mark.parametrize(
    "name, content",
    [
        ("scores.csv", b""),
        ("scores.csv", b"key,margin,label\na,1,1\n"),
        ("scores.csv", b"key,margin,posterior,label\na,high,0.5,1\n"),
        ("scores.csv", b"key,margin,posterior,label\na,1,0.5\n"),
        ("scores.csv", b"key,margin,posterior,label\na,nan,0.5,1\n"),
        ("scores.csv", b"label,margin,posterior,key\n1,1,0.5\n"),
        ("scores.csv", b"key,margin,posterior,label\na,1,0.5,2\n"),
        ("scores.csv", b"rank,key,score\n"),
        ("scores.csv", b'key,margin,posterior,label\n"a,1,0.5,1\n'),
        ("scores.csv", b"\xff\xfe\x00"),
        ("scores.parquet", b"key,margin,posterior,label\na,1,0.5,1\n"),
        ("scores.parquet", b""),
    ],
)
def test_what_is_no_table_of_scores_is_refused(tmp_path, name, content):
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(LabelError, match=r"is not a table of scores .*expected columns key, margin, posterior, label"):
        read_scores(tmp_path / name)


@pytest.mark.parametrize("name", ["missing.csv", "."])
def test_scores_that_are_not_there_are_named(tmp_path, name):
    with pytest.raises(LabelError, match=f"no such scores: {tmp_path}"):
        read_scores(tmp_path / name)


def test_a_spreadsheet_s_byte_order_mark_and_further_columns_do_no_harm(tmp_path):
    (tmp_path / "scores.csv").write_text("\ufeffkey,note,label,posterior,margin\r\na,x,1,0.5,2\r\n", "utf-8")
    table = read_scores(tmp_path / "scores.csv")
    assert {name: column.tolist() for name, column in table.items()} == {
        "key": ["a"],
        "margin": [2],
        "posterior": [0.5],
        "label": [1],
    }
