"""A second reader: his own log in the folder of a session, conflicts, and the labels of both."""

import json
from contextlib import closing

import numpy as np
import pytest
from helpers import command_line
from helpers.reviews import ReviewProcess, pictured_pile
from helpers.sessions import decide, labels_of, pile_of, proposal

import pucache
from pucache.cache.embedding_cache import EmbeddingCache
from pucache.errors import SessionError, SessionLockedError
from pucache.reviewing.audit import audit
from pucache.reviewing.log import Choice, Stream
from pucache.reviewing.second_reader import beside_other, open_second_reader
from pucache.reviewing.serve import review
from pucache.reviewing.session import open_session, read_session
from pucache.reviewing.session_labels import read_labels

POSITIVE, NEGATIVE, SKIP, UNDONE = Choice


@pytest.fixture
def cache(tmp_path):
    return pile_of(tmp_path, 60, twins=[(10, 11), (1, 3)])


@pytest.fixture
def folder(cache):
    """Session of a first reader, anna, who has decided rows 10 to 14 and five random images."""
    with open_session(cache, labels_of(60)) as session:
        for row in range(10, 15):
            session.decide([proposal(row, POSITIVE if row < 13 else NEGATIVE, reviewer="anna")] * (row != 11))
        for draw in session.draw(np.random.default_rng(0), Stream.AUDIT, 5):
            session.decide([proposal(draw.row, NEGATIVE, reviewer="anna")])
        return session.folder


def item(row, choice):
    """A decision as a page sends it."""
    return {"request": f"r{row}", "row": row, "choice": choice, "replaces": 0}


def second(cache, folder, name="ben"):
    return open_second_reader(EmbeddingCache(cache.files[0].path), folder, name, 0.999)


# --- his log ---------------------------------------------------------------------------------------


def test_he_begins_with_the_labels_and_the_pile_of_the_first_and_sees_no_answer(cache, folder):
    with second(cache, folder) as session:
        assert session.folder == folder / "readers/ben" and session.urns == (56,) and session.unknown.sum() == 56
        assert np.flatnonzero(session.labels()[0]).tolist() == [0, 1, 2] and not session.entries()
        decide(session, 20)
    with second(cache, folder, "BEN") as session, read_session(cache, folder) as first:
        assert session.counts().decided == 1 and first.counts().decided == 9
        assert first.second_reader == ("ben", session.folder)
        assert (folder / "readers/ben/pile.h5.review").exists() is False


def test_he_gets_the_same_random_images(cache, folder):
    with read_session(cache, folder) as first:
        drawn = [entry.row for entry in first.entries() if entry.is_draw]
    with second(cache, folder) as session:
        own = [draw.row for draw in session.draw(np.random.default_rng(7), Stream.AUDIT, 20)]
    assert [row for row in own if row in drawn] == drawn, "in their order"
    assert len(set(own)) == 20


def test_both_may_work_at_once_each_in_one_process(cache, folder):
    with open_session(cache, folder=folder) as first, second(cache, folder) as session:
        for row in np.flatnonzero(first.unknown)[:2].tolist():
            decide(session, row), decide(first, row, NEGATIVE)
        assert (first.counts().decided, session.counts().decided) == (11, 2)
        with pytest.raises(SessionLockedError, match=r"readers/ben is in use by another pucache review"):
            second(cache, folder)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("anna", "anna is the first reader"),
        (" Anna ", "is the first reader"),
        ("cleo", "has a second reader, ben; a session has two at most"),
        ("../..", "makes no file name"),
        ("x" * 101, "makes no file name"),
        ("", "makes no file name"),
    ],
)
def test_names_that_are_refused(cache, folder, name, problem):
    second(cache, folder).close()
    with pytest.raises((SessionError, ValueError), match=problem):
        second(cache, folder, name)


def test_what_no_second_reader_can_begin_with_is_refused(cache, folder, tmp_path):
    with pytest.raises(SessionError, match="no first reader has begun at"):
        second(cache, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    open_session(cache, folder=tmp_path / "empty").close()
    with pytest.raises(SessionError, match="has decided nothing yet"):
        second(cache, tmp_path / "empty")
    with pytest.raises(ValueError, match=r"leave out --positives, --reviewer"):
        review(cache, labels_of(60), second_reader="ben", reviewer="cleo", session=folder)
    with second(cache, folder) as session:
        decide(session, 20)
    with read_session(cache, folder) as first, pytest.raises(SessionError, match="open that log with --second-reader"):
        beside_other(first, "Ben")
    (folder / "readers").rename(folder / "moved")
    for work in (second, lambda *_: read_labels(cache, folder), lambda *_: pucache.audit(folder)):
        with pytest.raises(SessionError, match=r"(are lost|no review session)"):
            work(cache, folder)


# --- conflicts -------------------------------------------------------------------------------------


def test_a_conflict_is_shown_again_to_both_once_as_if_it_were_new(cache, folder):
    with second(cache, folder) as session:
        decide(session, 11, NEGATIVE), decide(session, 12), decide(session, 20)
    for opened, name in ((open_session(cache, folder=folder), "anna"), (second(cache, folder), "ben")):
        with opened as session:
            others = "ben" if name == "anna" else "anna"
            assert beside_other(session, name) == (
                f"The limit and the random images are those of {name}'s own log. The answers of {others} are not shown."
            )
            assert [draw.group for draw in session.pending_draws()] == [10]
            row = session.pending_draws()[0].row
            assert session.decision_to_show(row) is None, "the page does not say how it was decided"
            assert row not in [row for _, row, _ in session.past(0, 100)]
            session.decide([proposal(row, POSITIVE, reviewer=name)])  # as of a new image: it replaces nothing
            beside_other(session, name)
            assert not session.pending_draws()
    with read_session(cache, folder) as first:
        assert first.counts().positives == 2
    agreement = pucache.audit(folder).agreement
    assert agreement.conflicts == () and tuple(agreement.decided) == (1, 1, 0, 0), "kappa is of the answers before"


def test_an_answer_to_a_conflict_can_be_taken_back(cache, folder):
    with second(cache, folder) as session:
        decide(session, 10, NEGATIVE)
        beside_other(session, "ben")
        answer = decide(session, 10, POSITIVE)
        assert answer.stream is Stream.CONFLICT and session.labels()[1][11] == 1
        decide(session, 10, UNDONE)
        assert session.labels()[1][11] == -1 and len(session.pending_draws()) == 1


# --- labels of both --------------------------------------------------------------------------------


def test_labels_are_what_both_say_or_those_of_the_first(cache, folder):
    with second(cache, folder) as session:
        decide(session, 11, NEGATIVE), decide(session, 12), decide(session, 13, SKIP), decide(session, 20)
    both, first = read_labels(cache, folder), read_labels(cache, folder, readers="first")
    assert both.reviewed[[10, 11, 12, 13, 20]].tolist() == [0, 0, 1, -1, 1], (
        "none, both, the first, and the second alone"
    )
    assert first.reviewed[[10, 11, 12, 13, 20]].tolist() == [1, 1, 1, -1, 0]
    assert "They differ on 1 now, which have no label: '010.png'" in both.hidden.statements
    assert "They differ on 1 now, which are labelled as anna says: '010.png'" in first.hidden.statements
    with pytest.raises(ValueError, match="readers must be both or first, got 'second'"):
        read_labels(cache, folder, readers="second")


@pytest.mark.parametrize("seed", range(6))
def test_the_audit_of_a_folder_is_that_of_the_labels_whatever_both_did(tmp_path, seed):
    rng, keys = np.random.default_rng(seed), [f"{row:03}.png" for row in range(60)]
    cache = pile_of(tmp_path, keys, twins=[(10, 11), (20, 25)])
    folder = tmp_path / "s"
    for grown in (False, True):
        for name in ("anna", "ben"):
            opened = open_session(cache, folder=folder) if name == "anna" else second(cache, folder)
            with opened as session:
                for _ in range(12):
                    if rng.random() < 0.3:
                        session.draw(rng, Stream.AUDIT, 2)
                    if not session.zone.any() and rng.random() < 0.2:
                        session.fix_zone(rng.choice(60, 20, replace=False))
                    row = int(rng.integers(len(session.cache)))
                    decide(session, row, list(Choice)[rng.integers(3)])
                if rng.random() < 0.5 and (session.second_reader or session.first_reader):
                    beside_other(session, name)
        for readers in ("both", "first"):
            audited = pucache.audit(folder, readers=readers)
            labels = read_labels(EmbeddingCache(cache.files[0].path), folder, readers=readers)
            if labels.hidden is not None:
                assert list(labels.hidden.statements) == audited.statements()
        if not grown:
            cache = pile_of(tmp_path, [*keys, "new.png", "newer.png"], twins=[(10, 11), (20, 25)])


def test_logs_of_different_states_of_the_cache_are_no_audit_of_both(cache, folder, tmp_path):
    second(cache, folder).close()
    grown = pile_of(tmp_path, [*cache.keys, "new.png"], twins=[(10, 11), (1, 3)])
    open_session(grown, folder=folder).close()
    with pytest.raises(SessionError, match=r"different states of the cache: go on with each once .*--readers first"):
        audit(folder)
    assert audit(folder, readers="first").agreement is None
    assert read_labels(grown, folder).hidden is not None, "labels are matched by key"


def test_two_readers_leave_at_most_half_of_the_errors_of_one(tmp_path):
    n, rate, rng = 400, 0.05, np.random.default_rng(1)
    cache, truth = pile_of(tmp_path, n), rng.random(n) < 0.3
    wrong_alone, left = 0, {"both": 0, "first": 0}
    for number in range(3):
        folder = tmp_path / f"session-{number}"

        def answer(session, rows, name):
            wrong = rng.random(len(rows)) < rate
            chosen = [POSITIVE if truth[row] != err else NEGATIVE for row, err in zip(rows, wrong, strict=True)]
            session.decide([proposal(row, one, reviewer=name) for row, one in zip(rows, chosen, strict=True)])
            return int(wrong.sum())

        with open_session(cache, folder=folder) as session:
            wrong_alone += answer(session, range(n - 9), "anna")
        with second(cache, folder) as session:
            answer(session, range(n - 9), "ben")
        for opened, name in ((open_session(cache, folder=folder), "anna"), (second(cache, folder), "ben")):
            with opened as session:
                beside_other(session, name)
                answer(session, [draw.row for draw in session.pending_draws()], name)
        for readers in left:
            labels = read_labels(cache, folder, readers=readers)
            left[readers] += int((labels.positive & ~truth).sum() + (labels.negative & truth).sum())
    assert 2 * max(left.values()) <= wrong_alone


# --- commands --------------------------------------------------------------------------------------


def test_commands_take_both_readers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pictured_pile(tmp_path)
    with ReviewProcess(tmp_path, "--positives", "found.txt", "--port", 0, "--reviewer", "anna") as first:
        assert "own log" not in first.printed
        with closing(first.client()) as client:
            client.post("/api/decide", decisions=[item(10, "positive")])
        with ReviewProcess(tmp_path, "--second-reader", "Dr. Ben", "--port", 0) as other:
            with closing(other.client()) as client:
                page = client.ask("GET", "/")[2].decode()
                client.post("/api/decide", decisions=[item(10, "negative"), item(11, "positive")])
            assert "<h1>Review of pile.h5: Dr. Ben</h1>" in page and "those of Dr. Ben&#39;s own log." in page
            assert (
                other.end() == 130
                and "train on it: pucache train-pu pile.h5 --session pile.h5.review\n" in other.printed
            )
        assert first.end() == 130
    result = json.loads(command_line.run("audit pile.h5.review --json", 0).stdout)
    assert result["agreement"]["conflicts"] == [{"key": "010.png", "first": "positive", "second": "negative"}]
    assert result["found"] == 1 and "anna and Dr. Ben agreed on 0 of 1" in result["statements"][-2]
    own = "pile.h5.review/readers/dr-ben"
    assert json.loads(command_line.run(f"review pile.h5 --export --json --session {own}", 0).stdout)["negative"] == 1
    assert (
        "--readers is for the session"
        in command_line.run("train-pu pile.h5 --positives found.txt --readers first", 2).output
    )
    trained = command_line.run("train-pu pile.h5 --session pile.h5.review --readers first --method linear", 0).stdout
    assert "1 positive, 0 negative" in trained
