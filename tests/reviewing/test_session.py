import os
import random
import signal
import sqlite3
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from helpers.planted import ODD_KEYS
from helpers.refusals import one_line
from helpers.sessions import decide, labels_of, pile_of, proposal, session_of
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pucache import EmbeddingCache, audit, read_labels
from pucache.errors import SessionError, SessionLockedError
from pucache.estimates.limit_sentences import sentences
from pucache.reviewing.log import DRAWN, Choice, Stream
from pucache.reviewing.pile import mixed, random_numbers
from pucache.reviewing.session import StaleDecisionError, open_session, read_session
from pucache.reviewing.session_labels import decided_keys, write_reviewed

POSITIVE, NEGATIVE, SKIP, UNDONE = Choice


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def cache(tmp_path):
    """60 rows; 10 and 11, and 3 and 1, which is labelled by the fixture `session`, show the same picture."""
    return pile_of(tmp_path, 60, twins=[(10, 11), (1, 3)])


@pytest.fixture
def session(cache):
    with open_session(cache, labels_of(60)) as session:
        yield session


# --- labels ---------------------------------------------------------------------------------------


def test_an_undo_brings_back_what_had_been_replaced_and_then_nothing(session):
    decide(session, 10), decide(session, 10, NEGATIVE)
    assert decide(session, 10, UNDONE).choice is POSITIVE and session.state.labels()[1][10] == 1
    last = decide(session, 10, UNDONE)
    assert last.choice is UNDONE and session.state.labels()[1][10] == 0 and session.state.in_force(10) is None
    assert [one.row for one in session.state.waiting()] == [10], "it waits for a decision"
    with pytest.raises(StaleDecisionError):
        session.decide(proposal(10, UNDONE, last.serial))
    decide(session, 10, SKIP, last.serial)
    assert session.state.skipped[[10, 11]].all() and session.state.progress().skipped == 1
    decide(session, 10, UNDONE)
    assert not session.state.skipped.any() and session.state.progress().skipped == 0


# --- who may write what ---------------------------------------------------------------------------


def test_a_request_is_written_once(session):
    sent = proposal(10)
    assert session.decide(sent) == session.decide(sent)
    assert len(session.entries()) == 1
    with pytest.raises(ValueError, match="was for another image"):
        session.decide(proposal(30, request=sent.request))


def test_threads_that_decide_at_once_lose_nothing(session):
    start = threading.Barrier(4)

    def accepted(number):
        start.wait()
        count = 0
        for row in range(4, 60):
            try:
                session.decide(proposal(row, (POSITIVE, NEGATIVE)[number % 2], request=f"{number}-{row}"))
                count += 1
            except StaleDecisionError as error:
                assert error.in_force is not None
        return count

    with ThreadPoolExecutor(4) as threads:
        total = sum(threads.map(accepted, range(4)))
    entries = session.entries()
    assert total == len(entries) == 55, "56 rows of the pile, two of them twins"
    assert [entry.serial for entry in entries] == list(range(1, 56)) and not session.state.untaken.any()
    assert session.limits().unknown == 0


# --- draws ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [lambda numbers: numbers, mixed])
def test_every_row_is_drawn_as_often_as_any_other(tmp_path, number):
    """The first of each eight rows with keys that count up."""
    cache = pile_of(tmp_path, [f"img_{row:06}.png" for row in range(16_000)], contents={})
    numbers = number(random_numbers(cache, np.zeros(16_000)))
    drawn = np.bincount(numbers.reshape(-1, 8).argmin(axis=1), minlength=8)
    assert np.square(drawn - 250).sum() / 250 < 24.3, "chi square of 7 degrees of freedom, 0.001"


def test_random_images_are_the_same_in_every_review_of_a_pile_and_those_that_came_catch_up(tmp_path, rng):
    cache = pile_of(tmp_path, 60)
    orders = []
    for name, looked_at in (("one", range(0)), ("two", range(10, 20))):
        with open_session(cache, folder=tmp_path / name) as session:
            for row in looked_at:
                decide(session, row, NEGATIVE)
            orders.append([session.cache.keys[draw.row] for draw in session.draw(rng, Stream.AUDIT, 30)])
            for draw in session.state.waiting():
                decide(session, draw.row, NEGATIVE)
    looked_at = {f"{row:03}.png" for row in range(10, 20)}
    assert [key for key in orders[0] if key not in looked_at] == orders[1][: 30 - len(looked_at & set(orders[0]))]
    grown = pile_of(tmp_path, 120)
    with open_session(grown, folder=tmp_path / "one") as session:
        first = session.draw(rng, Stream.AUDIT, 25)
        assert np.mean([draw.urn for draw in first]) > 0.8, "about thirty of the new ones have smaller numbers"


@pytest.mark.parametrize("stream", DRAWN)
@pytest.mark.parametrize("is_new", [True, False], ids=["with what another one found", "on a cache that has changed"])
def test_a_pile_that_a_review_left_has_other_random_images(tmp_path, rng, stream, is_new):
    """Those of the review that have no label now are what its answers left, and no sample of the pile."""
    with open_session(pile_of(tmp_path, 200), labels_of(200), folder=tmp_path / "one") as session:
        session.fix_zone(np.arange(200))
        drawn = [session.cache.keys[draw.row] for draw in session.draw(rng, stream, 60)]
        for number, draw in enumerate(session.state.waiting()):
            decide(session, draw.row, POSITIVE if number < 10 else Choice.SKIP)
        found = session.state.labels()[1] == 1
    cache = pile_of(tmp_path, 200 if is_new else 199)
    labels = np.where(found, 1, labels_of(200)) if is_new else None
    with open_session(cache, labels, folder=tmp_path / ("two" if is_new else "one")) as session:
        session.fix_zone(np.arange(len(cache)))
        again = {session.cache.keys[draw.row] for draw in session.draw(rng, stream, 30)} & {*drawn}
        assert len(again) < 20, "about 8 of 30 by chance"


def test_a_recheck_looks_like_a_new_image(session, rng):
    decide(session, 20)
    drawn = session.draw(rng, Stream.RECHECK, 9, exclude=[0, 1])
    assert sorted(draw.group for draw in drawn) == [2, 20], "1 and its twin 3 are excluded"
    assert session.state.in_force(20) is not None and session.state.to_show(20) is None
    blind = session.decide(proposal(20, NEGATIVE, 0))
    assert (blind.stream, blind.replaces) == (Stream.RECHECK, 1) and session.state.labels()[1][20] == 1
    assert session.state.progress().rechecked == 1 and session.state.to_show(20) == blind
    assert [(serial, label.choice) for serial, label in session.state.past(0, 1)] == [(blind.serial, POSITIVE)]
    assert session.state.progress().positives == 1 and not session.state.progress().negatives, (
        "the reviewer is measured"
    )
    again = decide(session, 20, UNDONE)
    assert (again.choice, again.stream) == (POSITIVE, Stream.RANKED) and session.state.labels()[1][20] == 1
    assert session.state.progress().rechecked == 0 and 20 in [one.row for one in session.state.waiting()]
    session.decide(proposal(2, NEGATIVE, 0))
    assert session.state.labels()[0][2] == 1, "a label from before the session stays"
    outcome = session.limits()
    assert (outcome.rechecks, outcome.missed) == (1, 1)
    checked = session.decide(proposal(20, NEGATIVE, 0))
    assert session.state.labels()[1][20] == 1
    corrected = session.decide(proposal(20, NEGATIVE, checked.serial, correction=True))
    assert corrected.stream is Stream.RANKED and session.state.labels()[1][20] == -1


# --- a model of it all ----------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("decide"), st.integers(0, 11), st.sampled_from([POSITIVE, NEGATIVE, SKIP])),
        st.tuples(st.just("undo"), st.integers(0, 11)),
        st.tuples(st.just("draw"), st.sampled_from([Stream.AUDIT, Stream.RECHECK]), st.integers(1, 3)),
        st.tuples(st.just("reopen")),
    ),
    max_size=25,
)


def stands(session):
    """All that a session stands at, as text."""
    state, waiting = session.state, [one.row for one in session.state.waiting()]
    s, reviewed = state.labels()
    return repr((state.progress(), session.entries(), waiting, s.tolist(), reviewed.tolist()))


def never_shown(session):
    """Rows of the random draws after the last one that has a decision."""
    last = session.state.history.last
    return sum(one.copies for one in session.state.history.drawn if one.taken > last)


def expected_state(entries, groups, outside):
    """Labels and urn by the rules, from the entries: last decision of each group, drawn groups."""
    last, checked = {}, {}
    for entry in entries:
        if not entry.is_draw:
            last[entry.group] = entry.choice
            if entry.stream is not Stream.RECHECK:
                checked[entry.group] = entry.choice
            elif entry.choice in (POSITIVE, NEGATIVE) and checked.get(entry.group) in (POSITIVE, NEGATIVE):
                last[entry.group] = checked[entry.group]  # a recheck leaves the label
    gone = {entry.group for entry in entries if entry.is_draw and entry.stream is Stream.AUDIT}
    gone |= {entry.group for entry in entries if entry.choice in (POSITIVE, NEGATIVE)}
    label = [{POSITIVE: 1, NEGATIVE: -1}.get(last.get(group), 0) for group in groups]
    unknown = [not out and group not in gone for out, group in zip(outside, groups, strict=True)]
    return np.array(label), np.array(unknown)


# What longer searches found: a skip from before the draw, a recheck skipped, an undo down to a label before the draw.
@example([("decide", 0, SKIP), ("draw", Stream.AUDIT, 3)], False)
@example([("decide", 8, POSITIVE), ("draw", Stream.RECHECK, 1), ("decide", 8, SKIP), ("draw", Stream.AUDIT, 3)], False)
@example([("decide", 8, POSITIVE), ("decide", 8, SKIP), ("draw", Stream.AUDIT, 3), ("undo", 8), ("undo", 8)], False)
@example([("draw", Stream.AUDIT, 3), *[("decide", r, POSITIVE) for r in range(12)], ("draw", Stream.RECHECK, 3)], False)
@settings(deadline=None, max_examples=20)
@given(STEPS, st.booleans())
def test_any_course_of_a_review_follows_the_rules_and_survives_reopening(steps, labelled):
    with TemporaryDirectory() as folder:
        cache = pile_of(Path(folder), 12, twins=[(4, 5), (0, 6), (8, 9), (8, 10)])
        positives = labels_of(12, [0]) if labelled else None
        outside = np.isin(np.arange(12), [0, 6] if labelled else [])
        rng, session = np.random.default_rng(len(steps)), open_session(cache, positives)
        for kind, *values in steps:
            if kind == "reopen":
                session.close()
                session = open_session(cache)
            elif kind == "draw":
                session.draw(rng, values[0], values[1])
            elif kind == "undo":
                if session.state.in_force(values[0]):
                    decide(session, values[0], UNDONE)
            else:
                decide(session, *values)
            label, unknown = expected_state(session.entries(), session.state.groups, outside)
            state, audited, (s, reviewed) = session.state, session.limits(), session.state.labels()
            assert ((s | (reviewed == 1)) - (reviewed == -1))[~outside].tolist() == label[~outside].tolist()
            assert state.untaken.tolist() == unknown.tolist() and state.progress().untaken == unknown.sum()
            assert state.progress().undecided == (label[~outside] == 0).sum()
            assert len(state.random_undecided()) == audited.pending + audited.skipped
            assert audited.unknown - never_shown(session) == unknown.sum()
            assert audited.found == (label[~outside] == 1).sum() and sum(session.pile.urns) == (~outside).sum()
        before = stands(session)
        session.close()
        with open_session(cache) as again:
            assert stands(again) == before


# --- closed and opened again ----------------------------------------------------------------------


FIGURES = "draws skipped pending found unknown perhaps hidden_high chance_high rest_high rechecks missed".split()
OLDER = {  # version: accepted and rejected rows, a random image without an answer, its stream, and the figures
    "0.2": ([10, 11], [20, 26], 19, Stream.AUDIT, [1, 0, 0, 2, 22, 1, 23, 23, 23, 1, 0]),
    "0.3": ([4, 10, 11], [20, 22], 7, Stream.ZONE, [1, 0, 1, 3, 21, 6, 22, 22, 19, 0, 0]),
}


@pytest.mark.parametrize("version", OLDER)
def test_a_session_of_an_earlier_version_goes_on_and_says_what_it_said(tmp_path, version):
    """Its log was written by that version, in the epoch of this cache."""
    positive, negative, waits, stream, figures = OLDER[version]
    cache = pile_of(tmp_path, 30, twins=[(10, 11)])
    folder = session_of(version, cache)
    audited = audit(folder)
    assert [getattr(audited, name) for name in FIGURES] == figures
    with open_session(cache, labels_of(30)) as session:
        s, reviewed = session.state.labels()
        assert session.pile.note == "" and session.pile.urns == (27,) and np.flatnonzero(s).tolist() == [0, 1, 2]
        assert [np.flatnonzero(reviewed == one).tolist() for one in (1, -1)] == [positive, negative]
        assert decide(session, waits, NEGATIVE).stream is stream and session.asked == ""
        for asked in ('{"words": ["a dress"]}', '{"words": ["a gown"]}'):
            session.ask(asked)
        before = stands(session)
    with open_session(cache) as session:
        assert stands(session) == before and session.asked == asked
        assert audit(session).as_dict() == audit(folder).as_dict()
    with open_session(cache, folder=folder / "readers/ben", beside=folder) as session:
        assert session.pile.urns == (27,) and decide(session, 29).unknown == 27
    assert audit(folder, beside=folder / "readers/ben").agreement.decided.images == 0


def test_a_session_of_version_0_4_goes_on_also_that_of_a_second_reader(tmp_path, rng):
    """Its log has a draw of a picture that was taken back, which then returned to the pile; a zone; a second reader."""
    cache = pile_of(tmp_path, 30, twins=[(10, 11)])
    folder = session_of("0.4", cache)
    second = session_of("0.4_second_reader", cache, folder / "readers/ben")
    before = audit(folder)
    assert (before.draws, before.found, before.unknown, before.zone.rows) == (12, 3, 10, 1)
    both = audit(folder, beside=second)
    assert both.agreement.conflicts == (("010.png", "positive", "negative"),)
    assert tuple(both.agreement.drawn) == (0, 0, 0, 2)
    with open_session(cache, labels_of(30)) as session:
        assert session.pile.note == "" and len(session.entries()) == 35 and session.asked == ""
        assert [one.row for one in session.state.waiting()] == [2, 14]
        assert decide(session, 14).stream is Stream.AUDIT
        assert len(session.draw(rng, Stream.AUDIT, 9)) == 9 and audit(folder).draws == 13
    with open_session(cache, folder=second) as session:
        decide(session, 12)
    assert audit(folder, beside=second).found == 3 + 1 + 1 - 2, "12 and 14 are found, the twins 10 and 11 in conflict"


def test_a_session_is_read_while_it_runs_and_a_second_server_is_refused(session, cache):
    decide(session, 10)
    with read_session(cache) as reader:
        assert stands(reader) == stands(session)
        with pytest.raises(SessionError, match="was opened for reading"):
            decide(reader, 20)
    with pytest.raises(SessionLockedError, match=r"pile\.h5\.review is in use by another pucache review"):
        open_session(cache)
    session.close()
    open_session(cache).close()
    with pytest.raises(SessionError, match="no review session at"):
        read_session(cache, session.folder / "none")


COLUMNS = "epoch, key, digest, row, image_group, copies, positives, model_version, time"
ADDED = {
    f"entries (serial, stream, unknown, {COLUMNS}) SELECT 2, 'audit', 9, {COLUMNS} FROM entries": ": draw 2 is of",
    "images SELECT epoch, '0O0.png', digest, label, reviewed FROM images LIMIT 1": r" \(it names images that",
}


@pytest.mark.parametrize(("added", "said"), ADDED.items(), ids=["an entry", "an image"])
def test_a_log_that_contradicts_itself_or_its_cache_is_refused(session, cache, added, said):
    decide(session, 10)
    session.close()
    with closing(sqlite3.connect(session.folder / "decisions.sqlite")) as log, log:
        log.execute(f"INSERT INTO {added}")
    openers = [open_session, read_session, *[lambda cache: audit(session.folder)] * added.startswith("entries")]
    for opener in openers:
        with pytest.raises(SessionError, match=rf"is damaged{said}.*restore "):
            opener(cache)


def test_other_labels_or_twins_than_it_began_with_are_refused(cache):
    open_session(cache, labels_of(60)).close()
    with pytest.raises(SessionError, match=r"began with other labels \(3 positives, 0 negatives; now 2 positives"):
        open_session(cache, labels_of(60, [0, 1]))
    with pytest.raises(SessionError, match=r"began with duplicates by a cosine of 0\.999"):
        open_session(cache, twins=None)
    open_session(cache, labels_of(60)).close()


def test_a_pile_that_was_kept_is_read_again_and_a_damaged_one_computed_anew(cache):
    with open_session(cache, labels_of(60)) as session:
        groups = session.state.groups
    (kept,) = session.folder.glob("pile-*")
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-9])
    for _ in range(2):
        with open_session(cache) as session:
            assert (session.state.groups == groups).all() and session.pile.note == ""
        assert kept.stat().st_size == len(whole)


def test_twins_of_a_large_cache_are_those_of_equal_bytes(cache, monkeypatch):
    monkeypatch.setattr("pucache.reviewing.pile._SCANNED_VALUES", 10)
    with open_session(cache) as session:
        assert [int(row) for row in np.flatnonzero(session.state.groups != np.arange(60))] == [3, 11]
        assert session.state.groups[[3, 11]].tolist() == [1, 10]


# --- the cache has changed ------------------------------------------------------------------------


def test_a_session_of_another_cache_is_refused_by_name(cache, tmp_path):
    with open_session(cache, labels_of(60)) as session:
        decide(session, 10)
    other = pile_of(tmp_path, [f"other{row}.png" for row in range(9)], name="other.h5")
    for opener in (open_session, read_session):
        with pytest.raises(SessionError, match=r"is a session of .*pile\.h5; .*other\.h5 holds none of its images"):
            opener(other, folder=session.folder)


def test_decisions_stay_where_the_cache_grows_shrinks_and_changes_and_a_reader_writes_nothing(tmp_path, rng):
    cache = pile_of(tmp_path, 30, twins=[(10, 11)])
    with open_session(cache, labels_of(30)) as session:
        decide(session, 10), decide(session, 20, NEGATIVE), decide(session, 21), decide(session, 22, SKIP)
        decide(session, 23), decide(session, 23, UNDONE)
        session.draw(rng, Stream.AUDIT, 4)
    keys = ["aaa.png", *(key for key in cache.keys if key not in ("020.png", "002.png"))]
    changed = pile_of(tmp_path, keys, contents={"021.png": "another picture", "011.png": "010.png"})
    rows = {key: row for row, key in enumerate(changed.keys)}
    content = {path: path.read_bytes() for path in session.folder.iterdir()}
    with read_session(changed) as reader:
        assert reader.state.labels()[1][rows["010.png"]] == 1
        assert reader.entries() == [] and "changed" in reader.pile.note
    assert {path: path.read_bytes() for path in session.folder.iterdir() if path in content} == content
    for _ in range(2):
        with open_session(changed) as session:
            s, reviewed = session.state.labels()
            assert np.flatnonzero(s).tolist() == [rows["000.png"], rows["001.png"]]
            assert np.flatnonzero(reviewed).tolist() == [rows["010.png"], rows["011.png"]]
            assert sum(session.pile.urns) == len(keys) - 4 and session.entries() == [] and not session.state.waiting()
            assert "the audit counts from the change on" in session.pile.note
            assert "3 labelled or decided images are gone" in session.pile.note
            assert "'002.png', '020.png', '021.png'" in session.pile.note
            assert session.state.skipped[rows["022.png"]] and session.state.untaken[rows["022.png"]]
            assert session.state.progress().positives == 1 and session.state.progress().skipped == 1
    with open_session(changed) as session:
        assert decide(session, rows["010.png"], NEGATIVE).copies == 0
        assert session.state.labels()[1][rows["011.png"]] == -1
        assert decide(session, rows["022.png"]).copies == 1
        assert len(session.draw(rng, Stream.AUDIT, 2)) == 2
        assert session.limits().unknown == session.state.untaken.sum() + never_shown(session)
        before = stands(session)
    with open_session(changed) as session:
        assert stands(session) == before
        decide(session, rows["010.png"], UNDONE)
        assert session.state.labels()[1][rows["010.png"]] == 1, "the decision of the earlier epoch"
        session.doubt(np.array([rows["010.png"]]))
        said = sentences(session.limits())
        assert said[0].startswith("1 found since the cache changed. ") and "again at 1 doubted" in said[0]
        assert sentences(audit(session.folder)) == said
        decide(session, rows["010.png"])
        assert sentences(audit(session.folder)) == sentences(session.limits()) != said
    positives = dict.fromkeys(["000.png", "001.png", "010.png", "021.png", "022.png"], 1)
    assert decided_keys(session.folder) == positives | {"020.png": 0}, "groups have other numbers in each epoch"


def test_several_files_may_come_in_another_order(tmp_path, rng):
    pile_of(tmp_path, [f"a{row}.png" for row in range(10)], name="a.h5")
    pile_of(tmp_path, [f"b{row}.png" for row in range(10)], name="b.h5", seed=1)
    with open_session([tmp_path / "a.h5", tmp_path / "b.h5"], folder=tmp_path / "s") as session:
        decide(session, 3), decide(session, 14, NEGATIVE)
        session.draw(rng, Stream.AUDIT, 3)
        counts, drawn = session.state.progress(), [session.cache.keys[draw.row] for draw in session.state.waiting()]
    with open_session([tmp_path / "b.h5", tmp_path / "a.h5"], folder=tmp_path / "s") as session:
        assert session.state.progress() == counts and session.pile.note == ""
        s, reviewed = session.state.labels()
        assert np.flatnonzero(s).tolist() == [13] and np.flatnonzero(reviewed).tolist() == [4]
        assert [session.cache.keys[draw.row] for draw in session.state.waiting()] == drawn


# --- disks and kills ------------------------------------------------------------------------------


def review_until_killed(opened, pipe, seed):
    """In a child process: draw and decide at random, and report each acknowledged decision."""
    rng = np.random.default_rng(seed)
    with opened() as session:
        while True:
            if rng.random() < 0.1:
                session.draw(rng, (Stream.AUDIT, Stream.ZONE)[int(rng.integers(2))], 2)
            if rng.random() < 0.1:
                session.fix_zone(rng.choice(len(session.cache), 40))
            row = int(rng.integers(len(session.cache)))
            decision = decide(session, row, list(Choice)[rng.integers(3)])
            os.write(pipe, decision.serial.to_bytes(4, "big"))


@pytest.mark.parametrize("reader", ["first", "second"])
def test_killed_servers_lose_no_acknowledged_decision(tmp_path, reader):
    """The second reader of a session whose first one is open, too."""
    cache, draw, acknowledged = pile_of(tmp_path, 300), random.Random(0), 0
    opened = partial(open_session, cache, labels_of(300))
    if reader == "second":
        first = opened()
        decide(first, 10)
        opened = partial(open_session, cache, folder=tmp_path / "second", beside=first.folder)
    for number in range(6):
        answers, answer = os.pipe()
        child = os.fork()
        if not child:
            try:
                review_until_killed(opened, answer, number)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        os.close(answer)
        for _ in range(draw.randrange(10)):
            acknowledged = int.from_bytes(os.read(answers, 4), "big")
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        while data := os.read(answers, 4):
            acknowledged = int.from_bytes(data, "big")
        os.close(answers)
        with opened() as session:
            entries = session.entries()
            assert len(entries) >= acknowledged
            assert session.limits().unknown == session.state.untaken.sum() + never_shown(session)
            assert session.limits().as_dict() == audit(session.folder).as_dict()
    assert acknowledged > 20
    if reader == "second":
        decide(first, 11)
        first.close()


def test_a_pile_that_grew_keeps_its_limit_and_the_new_images_are_an_urn_of_their_own(tmp_path, rng):
    with open_session(pile_of(tmp_path, 60, twins=[(10, 11)]), labels_of(60)) as session:
        decide(session, 10), decide(session, 20, NEGATIVE)
        for draw in session.draw(rng, Stream.AUDIT, 20):
            decide(session, draw.row, NEGATIVE)
        before, urns = audit(session), session.pile.urns
    keys = ["aaa.png", *(f"{row:03}.png" for row in range(60)), "zzz.png", "zzzz.png"]
    contents = {"zzzz.png": "030.png", "011.png": "010.png"}  # a twin of an older image is no image of the new urn
    grown = pile_of(tmp_path, keys, contents=contents)
    with read_session(grown) as reader:
        assert reader.pile.urns == (*urns, 2)
    for _ in range(2):
        with open_session(EmbeddingCache(grown.files[0].path)) as session:
            assert session.pile.urns == (*urns, 2) and "2 images came to the cache" in session.pile.note
            now = audit(session)
            assert (now.draws, now.found) == (before.draws, before.found)
            assert now.hidden_high <= before.hidden_high + 2 + 3  # new images may all be positive; ranges of totals
            assert now.as_dict() == audit(session.folder).as_dict()
    with open_session(EmbeddingCache(grown.files[0].path)) as session:
        for draw in session.draw(rng, Stream.AUDIT, 30):
            decide(session, draw.row, NEGATIVE)
        assert audit(session).as_dict() == audit(session.folder).as_dict() and audit(session).draws == 50
        assert decide(session, 62, POSITIVE).copies == 1, "the twin has the label of the older image"
        assert session.state.labels()[1][30] == 1
        urns = session.pile.urns
    with open_session(pile_of(tmp_path, [*keys, "a-third.png"], contents=contents)) as session:
        assert session.pile.urns == (*urns, 1) and audit(session).draws == 50


def test_a_zone_is_fixed_once_and_once_more_for_what_came_to_the_pile(tmp_path, rng):
    with open_session(pile_of(tmp_path, 60, twins=[(10, 11)]), labels_of(60)) as session:
        session.fix_zone(np.array([10, 12, 13, 14, 15, 0]))
        session.fix_zone(np.array([40]))
        zone = np.flatnonzero(session.state.zone).tolist()
        assert zone == [10, 11, 12, 13, 14, 15], "with twins, without labelled ones"
        drawn = session.draw(rng, Stream.ZONE, 2)
        assert all(draw.zone and draw.unknown in (6, 5, 4) for draw in drawn)
        decide(session, drawn[0].row), decide(session, 30)
        session.draw(rng, Stream.AUDIT, 3)
    with open_session(EmbeddingCache(tmp_path / "pile.h5")) as session:
        assert session.state.zone.sum() == 6
        zone = audit(session).zone
        assert zone.draws == 1 and zone.rows == 6 and zone.found == drawn[0].copies
        assert len(session.draw(rng, Stream.ZONE, 10)) <= 4, "a zone of fewer rows than draws"
        for draw in session.state.waiting():
            decide(session, draw.row, NEGATIVE)
        before = audit(session)
        assert before.zone.hidden_high == 0 and before.as_dict() == audit(session.folder).as_dict()
        assert not before.came_since and not any("were chosen before" in line for line in sentences(before))
    keys = [*(f"{row:03}.png" for row in range(60)), "y.png", "z.png"]
    with open_session(pile_of(tmp_path, keys, twins=[(10, 11)])) as session:
        now = audit(session)
        assert now.came_since == 2 and now.as_dict() == audit(session.folder).as_dict()
        assert (now.zone.rows, now.zone.hidden_high) == (6, 0) and now.rest_high >= 2, "all that came may be positive"
        assert any("were chosen before 2 of the images came" in line for line in sentences(now))
        session.fix_zone(np.arange(5, 62))
        assert np.flatnonzero(session.state.zone).tolist() == [*range(10, 16), 60, 61], "another part, of what came"
        drawn = {draw.row: draw.unknown for draw in session.draw(rng, Stream.ZONE, 9)}
        assert drawn.keys() == {60, 61} and {*drawn.values()} == {1, 2}
        decide(session, 60, NEGATIVE), decide(session, 61)
        now = audit(session)
        assert now.as_dict() == audit(session.folder).as_dict() and (now.came_since, now.zone.rows) == (0, 8)
        assert not any("were chosen before" in line for line in sentences(now))
        session.draw(rng, Stream.AUDIT, 60)
    with open_session(EmbeddingCache(session.cache.files[0].path)) as session:
        assert session.state.zone.sum() == 6 * 1 + 2 * 2 and audit(session).as_dict() == now.as_dict()
        session.fix_zone(np.arange(62))
        assert (session.state.zone > 0).sum() == 8


# --- a disk that fails ----------------------------------------------------------------------------


class Disk:
    """A network disk as SQLite sees it: it fails to write, or to read, from now on."""

    def __init__(self, monkeypatch):
        self.fails_to, disk, connect = (), self, sqlite3.connect

        class Connection(sqlite3.Connection):
            def execute(self, query, *values):
                verb = "read" if query.startswith("SELECT") else "write"
                if verb in disk.fails_to and not query.startswith("ROLLBACK"):
                    raise sqlite3.OperationalError("disk I/O error")
                return super().execute(query, *values)

        monkeypatch.setattr(sqlite3, "connect", lambda *args, **kwargs: connect(*args, factory=Connection, **kwargs))


WRITES = {
    "decision": lambda session, rng: decide(session, 40),
    "draw": lambda session, rng: session.draw(rng, Stream.AUDIT, 3),
    "zone": lambda session, rng: session.fix_zone(np.arange(20, 40)),
}
READS = (
    lambda session: session.state.labels(),
    lambda session: session.state.progress(),
    lambda session: session.entries(),
    lambda session: session.state.waiting(),
    lambda session: session.limits(),
    lambda session: session.decide(proposal(41)),
)


@pytest.mark.parametrize("write", WRITES)
def test_after_a_failed_write_a_session_goes_on_or_closes_where_it_cannot_be_read_back(cache, rng, monkeypatch, write):
    disk = Disk(monkeypatch)
    with open_session(cache, labels_of(60)) as session:
        for row in range(12, 20):
            decide(session, row, NEGATIVE)
        unknown = session.state.untaken.copy()
        disk.fails_to = ("write",)
        with pytest.raises(SessionError, match="cannot write"):
            WRITES[write](session, rng)
        disk.fails_to = ()
        assert np.array_equal(session.state.untaken, unknown) and not session.state.zone.any()
        for draw in session.draw(rng, Stream.AUDIT, 5):
            decide(session, draw.row, NEGATIVE)
        entries, _ = session.entries(), session.limits()
        disk.fails_to = ("write", "read")
        with pytest.raises(SessionError, match="has closed: its log could neither be written nor read back"):
            WRITES[write](session, rng)
        disk.fails_to = ()
        for use in (*READS, lambda session: WRITES[write](session, rng)):
            assert "start it again" in one_line(SessionError, use, session)
        with open_session(cache) as again:
            assert again.entries() == entries, "the closed one has released the folder"
            WRITES[write](again, rng)
            for draw in again.draw(rng, Stream.AUDIT, 2):
                decide(again, draw.row, NEGATIVE)
            assert again.limits().as_dict() == audit(again).as_dict()


def test_entries_that_do_not_follow_the_log_are_never_written(cache, rng):
    with open_session(cache, labels_of(60)) as session:
        decide(session, 12)
        session.state.untaken[20:30] = False  # as a state would have it that has lost its way
        with pytest.raises(SessionError, match="nothing was drawn"):
            session.draw(rng, Stream.AUDIT, 2)
        assert len(session.entries()) == 1 and session.state.untaken[20:30].all(), "it is that of the log again"
        assert session.draw(rng, Stream.AUDIT, 2)
        session.limits()


# --- export ---------------------------------------------------------------------------------------


def test_what_is_exported_is_read_as_the_labels_of_the_session(tmp_path):
    with open_session(pile_of(tmp_path, ODD_KEYS)) as session:
        for row in range(len(ODD_KEYS) - 1):
            decide(session, row, (POSITIVE, NEGATIVE)[row % 2])
        read = read_labels(session.cache, write_reviewed(session, tmp_path / "reviewed.csv")).only
        assert [read.s.tolist(), read.reviewed.tolist()] == [labels.tolist() for labels in session.state.labels()]
