import csv

import numpy as np
import pytest
from helpers.sessions import decide, labels_of, pile_of

from pucache.errors import LabelError, OutputError
from pucache.labels.label_files import short_digest
from pucache.labels.labels import Labels
from pucache.reviewing.log import Choice, Stream
from pucache.reviewing.session import open_session
from pucache.reviewing.session_labels import import_reviewed, write_reviewed

POSITIVE, NEGATIVE, SKIP, UNDONE = Choice
ODD = ['say "cheese", please.png', "line\nbreak\r\nand\ttab.png", " blanks around ", "emoji 🦜.png", "return\ronly.png"]


@pytest.fixture
def session(tmp_path):
    cache = pile_of(tmp_path, [*(f"{row:03}.png" for row in range(30)), *ODD], twins=[(10, 11), (1, 3)])
    with open_session(cache, labels_of(35)) as session:
        yield session


def row_of(session, key):
    return int(session.cache.keys.rows([key])[0])


def table(path):
    with open(path, encoding="utf-8", newline="") as stream:
        return list(csv.reader(stream, strict=True))


def assert_same(labels, session):
    s, reviewed = session.labels()
    assert labels.s.tolist() == s.tolist() and labels.reviewed.tolist() == reviewed.tolist()


# --- export ---------------------------------------------------------------------------------------


def test_what_is_exported_is_read_as_the_labels_of_the_session(session, tmp_path):
    for key in ODD:
        decide(session, row_of(session, key))
    decide(session, row_of(session, "011.png"), NEGATIVE), decide(session, row_of(session, "012.png"), SKIP)
    path = write_reviewed(session, tmp_path / "reviewed.csv")
    assert_same(Labels.read(session.cache, path, path), session)
    header, *rows = table(path)
    assert header == ["key", "label", "reviewed", "digest"]
    before = session.cache.keys[np.flatnonzero(session.file_labels.s)]
    assert [row[:3] for row in rows[:3]] == [[key, "1", "0"] for key in before]
    assert sorted(row[0] for row in rows if row[1:3] == ["0", "1"]) == ["010.png", "011.png"], "twins are written too"
    assert all(row[3] == short_digest(session.cache.digests[row_of(session, row[0])]) for row in rows)


def test_a_path_that_will_not_do_is_refused(session, tmp_path):
    with pytest.raises(OutputError, match="is also an input"):
        write_reviewed(session, session.cache.files[0].path)
    with pytest.raises(OutputError):
        write_reviewed(session, tmp_path)


# --- import ---------------------------------------------------------------------------------------


def written(tmp_path, text, name="reviewed.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_table_is_taken_in_as_decisions_of_an_importer(session, tmp_path):
    rows = [row_of(session, f"{number:03}.png") for number in (0, 10, 11, 12, 13, 14, 15)]
    decide(session, rows[4]), decide(session, rows[5], NEGATIVE), decide(session, rows[6], SKIP)
    path = written(
        tmp_path,
        "key,label,reviewed,digest\n000.png,1,0,\n010.png,1,1,\n011.png,1,1,\n012.png,0,1,\n"
        "013.png,1,1,\n014.png,1,1,\n015.png,0,1,\n",
    )
    contradicting = {"contradicting": 1, "contradicting_keys": ["014.png"]}
    assert import_reviewed(session, path, "import") == {"taken": 3, "agreeing": 3, **contradicting}
    taken = session.entries()[3:]
    assert [(entry.reviewer, entry.stream) for entry in taken] == [("import", Stream.RANKED)] * 3
    assert session.labels()[1][rows[1:]].tolist() == [1, 1, -1, 1, -1, -1]
    again = import_reviewed(session, path, "ann")
    assert again == {"taken": 0, "agreeing": 6, **contradicting}, "nothing is new"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("key\n012.png\n", "has no decisions"),
        ("key,label\nnowhere.png,1\n", "1 of 1 keys in .* are not in the cache"),
        ("key,label\n012.png,1\n012.png,0\n", "have both labels"),
        ("key,label,digest\n013.png,1,\n012.png,0,sha256:0123456789abcdef\n", "are other images in"),
        ("key,label,digest\n013.png,1,sha256:0123456789abcdef\n012.png,0,\n", "are other images in"),
    ],
)
def test_other_tables_and_other_images_are_refused_and_nothing_is_taken(session, tmp_path, text, message):
    with pytest.raises(LabelError, match=message) as caught:
        import_reviewed(session, written(tmp_path, text), "import")
    assert "\n" not in str(caught.value) and not session.entries()
