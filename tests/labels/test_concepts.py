import numpy as np
import pyarrow as arrow
import pytest
from helpers.planted import write_cache
from helpers.refusals import one_line
from pyarrow import parquet

from pucache.errors import LabelError
from pucache.labels.concepts import open_concepts
from pucache.labels.labels import Labels

KEYS = [f"{row}.png" for row in range(6)]
ROWS = [("0.png", "cat", 1), ("1.png", "cat", 0), ("0.png", "dog", 1), ("2.png", "dog", 1)]
EXPECTED = {"cat": [1, -1, 0, 0, 0, 0], "dog": [1, 0, 1, 0, 0, 0]}


@pytest.fixture
def cache(tmp_path):
    return write_cache(tmp_path / "cache.h5", np.eye(6, dtype=np.float32), KEYS)


def known(concepts):
    return {name: (labels.s + labels.reviewed).tolist() for name, labels in concepts.labels.items()}


def sources(folder):
    text = "key,concept,label\n" + "".join(f"{key},{name},{label}\n" for key, name, label in ROWS)
    (folder / "table.csv").write_text(text)
    columns = dict(zip(("key", "concept", "label"), zip(*ROWS, strict=True), strict=True))
    parquet.write_table(arrow.table({name: list(values) for name, values in columns.items()}), folder / "t.parquet")
    (folder / "lists").mkdir()
    (folder / "lists/cat.csv").write_text("key,label\n0.png,1\n1.png,0\n")
    (folder / "lists/dog.txt").write_text("0.png\n2.png\n")
    (folder / "lists/notes.md").write_text("no list")
    s = np.array([1, 0, 1, 0, 0, 0])
    mapping = {
        "dog": ["0.png", "2.png"],
        "cat": Labels(*(np.array(v, np.int8) for v in ([1, 0, 0, 0, 0, 0], [0, -1, 0, 0, 0, 0]))),
    }
    return [folder / "table.csv", folder / "t.parquet", folder / "lists", mapping, mapping | {"dog": s}]


def test_a_table_a_folder_and_a_mapping_say_the_same(cache, tmp_path):
    for source in sources(tmp_path):
        concepts = open_concepts(cache, source)
        assert known(concepts) == EXPECTED and list(concepts.labels) == ["cat", "dog"] and not concepts.failures


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ("0.png,bad,0", "no keys with the label 1"),
        ("0.png,bad,", "no keys with the label 1"),
        ("0.png,bad,1\n0.png,bad,0", "have both labels, 1 and 0"),
        ("gone.png,bad,1", "1 of 1 keys in .* are not in the cache"),
        ("0.png,bad,maybe", "has the label 'maybe'"),
        ("\n".join(f"{key},bad,1" for key in KEYS), "some must be unlabelled"),
    ],
)
def test_a_concept_that_fails_stops_no_other(cache, tmp_path, rows, reason):
    (tmp_path / "table.csv").write_text(f"key,concept,label\n{rows}\n5.png,good,1\n")
    concepts = open_concepts(cache, tmp_path / "table.csv")
    assert list(concepts.labels) == ["good"] and list(concepts.failures) == ["bad"]
    with pytest.raises(LabelError, match=reason):
        raise LabelError(concepts.failures["bad"])


BAD = ["", "..", "../up", "a\\b", "a:b", ".hidden", "end.", " x", "a\nb", "nul", "CON", "Con.x", "\udcff"]
BAD += ["a,b", "x" * 101]


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_plain_file_name_is_refused_in_one_line(cache, name):
    assert "plain file name" in one_line(LabelError, open_concepts, cache, {name: ["0.png"], "good": ["1.png"]})


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["Cat", "cat"], "one file name on some machines"),
        (["é", "e\u0301"], "one file name on some machines"),
        ([], "names no concepts"),
    ],
)
def test_names_of_one_file_and_none_are_refused(cache, names, text):
    with pytest.raises(LabelError, match=text):
        open_concepts(cache, {name: ["0.png"] for name in names})


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("gone.csv", None, "no such file"),
        ("t.csv", "key,label\n0.png,1\n", "expected key,concept"),
        ("t.parquet", "PAR1 text", "as Parquet"),
        ("t.csv", "key,concept\ngone.png,cat\n", "none of the 1 concepts"),
    ],
)
def test_sources_that_hold_no_concepts(cache, tmp_path, name, content, text):
    if content:
        (tmp_path / name).write_text(content)
    with pytest.raises(LabelError, match=text):
        open_concepts(cache, tmp_path / name)
    (tmp_path / "empty").mkdir()
    with pytest.raises(LabelError, match="holds no lists"):
        open_concepts(cache, tmp_path / "empty")
