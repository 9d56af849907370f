import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pucache.scoring.score_tables import TYPES, read_scores, write_table


def test_a_spreadsheet_s_byte_order_mark_and_further_columns_do_no_harm(tmp_path):
    (tmp_path / "scores.csv").write_text("\ufeffkey,note,label,posterior,margin\r\na,x,1,0.5,2\r\n", "utf-8")
    table = {name: column.tolist() for name, column in read_scores(tmp_path / "scores.csv").items()}
    assert table == {"key": ["a"], "margin": [2], "posterior": [0.5], "label": [1]}


def columns(key, numbers):
    numbers = np.array(numbers, np.float64)
    labels = np.zeros(len(key), np.int8)
    return {"key": key, "margin": numbers.astype(np.float32), "posterior": numbers, "label": labels}


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@given(data=st.data(), step=st.integers(1, 5))
def test_any_key_survives_and_no_block_changes_a_byte(tmp_path_factory, suffix, data, step):
    text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
    keys = ["007", "NA", "null", "", " ", *data.draw(st.lists(text, max_size=9))]
    folder = tmp_path_factory.getbasetemp()
    write_table(folder / f"whole.{suffix}", TYPES, [columns(keys, range(len(keys)))])
    blocks = [columns(keys[i : i + step], range(len(keys))[i : i + step]) for i in range(0, len(keys), step)]
    write_table(folder / f"blocks.{suffix}", TYPES, blocks)
    assert (folder / f"blocks.{suffix}").read_bytes() == (folder / f"whole.{suffix}").read_bytes()
    table = read_scores(folder / f"whole.{suffix}")
    assert table["key"].tolist() == keys and table["margin"].tolist() == list(range(len(keys)))


def test_numbers_of_a_csv_have_six_significant_digits(tmp_path):
    written = write_table(tmp_path / "scores.csv", TYPES, [columns(["a", "b", "c"], [1e-7, 1 / 3, -1234567.0])])
    assert written == (3, {"label": 0})
    assert (tmp_path / "scores.csv").read_text() == (
        'key,margin,posterior,label\n"a",1e-7,1e-7,0\n"b",0.333333,0.333333,0\n"c",-1234570,-1234570,0\n'
    )
