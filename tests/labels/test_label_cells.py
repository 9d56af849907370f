"""What cells of labels mean, wherever labels are read."""

import re

import pytest
from helpers.cache_files import write
from helpers.refusals import one_line

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.errors import LabelError
from pucache.labels.concepts import open_concepts
from pucache.labels.label_files import read_truth
from pucache.labels.labels import Labels
from pucache.storage.tables import LabelTable

KEYS = [f"{number}.png" for number in range(9)]
CELLS = ["Ja", "JA", "ja ", "Nein", "", "NaN", "None", "nein", None]
EXPECTED = [1, 1, 1, -1, 0, 0, 0, -1, 0]


@pytest.fixture
def cache(tmp_path):
    return EmbeddingCache(write(tmp_path / "c.h5", KEYS))


def table(path, cells, header="key,label"):
    rows = [f"{key},{cell}" if cell is not None else key for key, cell in zip(KEYS, cells, strict=False)]
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_a_value_is_found_in_any_case_and_the_cells_that_were_met_are_said(cache, tmp_path, caplog):
    named = LabelTable(str(table(tmp_path / "t.csv", CELLS)), value="jA")
    labels = Labels.read(cache, named, named)
    assert (labels.s + labels.reviewed).tolist() == EXPECTED
    said = "'Ja' 1 (positive), 'JA' 1 (positive), 'ja ' 1 (positive), 'Nein' 1 (negative), '' 1 (undecided), "
    assert caplog.text.count(f"t.csv: {said}'NaN' 1 (undecided)") == 1, "once, though the file is read twice"
    assert "and 1 other kinds" in caplog.text


def test_truth_and_concepts_take_the_same_care(cache, tmp_path):
    named = LabelTable(str(table(tmp_path / "t.csv", CELLS[:-1])), value="ja")
    assert read_truth(named, KEYS).tolist() == [1, 1, 1, 0, -1, -1, -1, 0, -1]
    header = "key,concept,label\n" + "".join(f"{key},car,{cell}\n" for key, cell in zip(KEYS, CELLS[:-1], strict=False))
    (tmp_path / "c.csv").write_text(header)
    labels = open_concepts(cache, LabelTable(str(tmp_path / "c.csv"), value="ja")).labels["car"]
    assert (labels.s + labels.reviewed).tolist() == EXPECTED


def test_exactly_as_written_where_it_is_asked_for(cache, tmp_path):
    path = str(table(tmp_path / "t.csv", ["a", "A", "a ", "b"]))
    named = LabelTable(path, value="a", exact=True)
    assert (Labels.read(cache, named, named).reviewed + Labels.read(cache, named).s).tolist()[:4] == [1, -1, -1, -1]
    reason = r"has no 'AA' in the column 'label'; it has 'A', 'a', 'a ', 'b', compared exactly"
    assert re.search(reason, one_line(LabelError, Labels.read, cache, LabelTable(path, value="AA", exact=True)))


@pytest.mark.parametrize(
    ("cells", "label", "truth"),
    [
        (["1", "1.0", " TRUE", "Yes", "positive", "1.00"], 1, 1),
        (["0", "0.0", "-1", "-1.0", "False ", "NO", "negative"], -1, 0),
        (["", " ", "nan", "None", "NULL", "n/a", "<NA>"], 0, -1),
    ],
)
def test_the_usual_words_and_numbers(cache, tmp_path, cells, label, truth):
    for cell in cells:
        path = table(tmp_path / "t.csv", ["1", cell, "0"])
        labels = Labels.read(cache, path, path)
        assert (labels.s + labels.reviewed).tolist()[:3] == [1, label, -1], cell
        assert read_truth(path, KEYS[:3]).tolist() == [1, truth, 0]


@pytest.mark.parametrize("first", ["1", "0"])
def test_truth_with_both_labels_of_a_key_is_refused_and_twice_the_same_is_not(tmp_path, first):
    (tmp_path / "t.csv").write_text(f"key,label\np,{first}\np,{1 - int(first)}\nq,1\nq,1\n")
    reason = one_line(LabelError, read_truth, tmp_path / "t.csv", ["p", "q"])
    assert "1 keys in" in reason and "have both labels, 1 and 0 ('p'); decide which" in reason
    (tmp_path / "t.csv").write_text("key,label\nq,1\nq,1\n")
    assert read_truth(tmp_path / "t.csv", ["p", "q"]).tolist() == [-1, 1]


@pytest.mark.parametrize(
    ("header", "meaning"),
    [("Key", "key"), ("Image Path", "key"), ("file-name", "key"), ("FILENAME", "key"), ("url", "key"), ("ID", "key")],
)
def test_usual_names_of_the_column_of_keys(cache, tmp_path, header, meaning):
    path = table(tmp_path / "t.csv", ["1", "0"], f"{header},Class")
    assert Labels.read(cache, path, path).s.tolist() == [1, *[0] * 8]


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ("key,Key", "has two columns 'key'; rename one, or name another: --key-column"),
        (
            "image path,image-path",
            "has columns 'image path' and 'image-path', and either may be the key; rename",
        ),
        (
            "name,label",
            "has columns name, label; expected one called 'key', image_path, .*: name the one .* --key-column",
        ),
    ],
)
def test_columns_that_may_not_be_told_apart_are_refused(cache, tmp_path, header, reason):
    assert re.search(reason, one_line(LabelError, Labels.read, cache, table(tmp_path / "t.csv", ["1", "0"], header)))
