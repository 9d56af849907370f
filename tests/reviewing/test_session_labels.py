import csv

import numpy as np
import pytest
from helpers.sessions import decide, labels_of, pile_of

from pucache import read_labels
from pucache.errors import OutputError
from pucache.labels.listing import short_digest
from pucache.reviewing.log import Choice
from pucache.reviewing.session import open_session
from pucache.reviewing.session_labels import write_reviewed

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
    s, reviewed = session.state.labels()
    assert labels.s.tolist() == s.tolist() and labels.reviewed.tolist() == reviewed.tolist()


# --- export ---------------------------------------------------------------------------------------


def test_what_is_exported_is_read_as_the_labels_of_the_session(session, tmp_path):
    for key in ODD:
        decide(session, row_of(session, key))
    decide(session, row_of(session, "011.png"), NEGATIVE), decide(session, row_of(session, "012.png"), SKIP)
    path = write_reviewed(session, tmp_path / "reviewed.csv")
    assert_same(read_labels(session.cache, path).only, session)
    header, *rows = table(path)
    assert header == ["key", "label", "reviewed", "digest"]
    before = session.cache.keys[np.flatnonzero(session.pile.before.s)]
    assert [row[:3] for row in rows[:3]] == [[key, "1", "0"] for key in before]
    assert sorted(row[0] for row in rows if row[1:3] == ["0", "1"]) == ["010.png", "011.png"], "twins are written too"
    assert all(row[3] == short_digest(session.cache.digests[row_of(session, row[0])]) for row in rows)


def test_a_path_that_will_not_do_is_refused(session, tmp_path):
    with pytest.raises(OutputError, match="is also an input"):
        write_reviewed(session, session.cache.files[0].path)
    with pytest.raises(OutputError):
        write_reviewed(session, tmp_path)
