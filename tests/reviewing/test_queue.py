import re
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from helpers.planted import write_cache
from helpers.sessions import decide, pile_of
from hypothesis import given, settings
from hypothesis import strategies as st

from pucache import EmbeddingCache, PULabels, audit
from pucache.estimates.limit_sentences import sentences
from pucache.estimates.limits import RECHECKS_NEEDED
from pucache.reviewing.advice import advice
from pucache.reviewing.log import Choice, Stream
from pucache.reviewing.queue import MIN_POSITIVES, SILENCE, NextImages, best_rows, one_of_each_first
from pucache.reviewing.session import open_session

NEGATIVE, POSITIVE, SKIP, UNDONE = Choice.NEGATIVE, Choice.POSITIVE, Choice.SKIP, Choice.UNDONE


@pytest.fixture
def session_of(tmp_path):
    """Opens a session on `n` rows, of which the last are labelled."""
    opened = []

    def make(n=200, labelled=0):
        labels = PULabels.of((np.arange(n) >= n - labelled).astype(np.int8)) if labelled else None
        opened.append(open_session(pile_of(tmp_path, n), labels))
        return opened[-1]

    yield make
    for session in opened:
        session.close()


@pytest.fixture
def clock(monkeypatch):
    """The time, which a test sets."""
    clock = [0.0]
    monkeypatch.setattr("pucache.reviewing.queue.monotonic", lambda: clock[0])
    return clock


def drawn(session, stream=Stream.AUDIT):
    """Rows that were drawn at random."""
    return [entry.row for entry in session.entries() if entry.is_draw and entry.stream is stream]


def scores_of(n):
    return np.arange(n, 0, -1, dtype=np.float32)


def ranked(session, *, clusters=None, audit_share=0.0, recheck_share=0.0, seed=0):
    images = NextImages(session, np.random.default_rng(seed), clusters)
    images.audit_share, images.recheck_share = audit_share, recheck_share
    images.set_ranking(scores_of(len(session.state.groups)), None, 0)
    return images


def reviewing(session, images, looks, *, answer=lambda row: NEGATIVE, batch=5):
    """Decide what comes, in batches; returns its rows."""
    shown = []
    while len(shown) < looks and (rows := images.next("a", batch)):
        for row in rows:
            decide(session, row, answer(row))
        shown += rows
    return shown


# --- by rank --------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(1, 50), st.integers(0, 2**31))
def test_best_rows_are_those_of_a_full_sort(values, count, seed):
    scores, unknown = np.array(values, np.float32), np.random.default_rng(seed).random(len(values)) < 0.7
    expected = [row for row in np.lexsort((np.arange(len(scores)), -scores)) if unknown[row]][:count]
    assert best_rows(scores, unknown, count).tolist() == expected


@given(st.lists(st.integers(0, 4), max_size=30), st.lists(st.integers(0, 4), max_size=30))
def test_every_group_comes_once_before_any_comes_twice(groups, before):
    order = one_of_each_first(np.array(groups, np.int64), np.array(before, np.int64))
    times = Counter(before)
    turns = []
    for position in order:
        turns.append(times[groups[position]])
        times[groups[position]] += 1
    assert sorted(order) == list(range(len(groups)))
    assert turns == sorted(turns), "the image of a group comes after all that more groups lack"
    for turn in set(turns):
        of_turn = [int(position) for position, one in zip(order, turns, strict=True) if one == turn]
        assert of_turn == sorted(of_turn), "within a turn the ranking stands"


def test_of_the_likely_positives_one_of_each_group_is_shown_before_a_second_one(session_of):
    session = session_of(labelled=1)  # row 199
    clusters = np.arange(200) // 4
    clusters[[0, 199]] = 50
    images = ranked(session, clusters=clusters)
    p = np.where(np.arange(200) < 9, 0.9, 0.1).astype(np.float32)
    images.set_ranking(scores_of(200), p, 0)
    assert images.next("a", 12) == [1, 4, 8, 0, 2, 5, 3, 6, 7, 9, 10, 11]
    decide(session, 1)
    images.set_ranking(scores_of(200), p, 0)
    assert images.next("a", 3) == [4, 8, 0]
    images.set_ranking(scores_of(200), None, 0)
    assert images.next("a", 4) == [4, 8, 12, 16], "without probabilities of all"


def test_two_tabs_get_different_rows_in_the_order_of_the_ranking_and_a_silent_one_loses_them(session_of, clock):
    images = ranked(session_of())
    assert images.next("a", 2) == [0, 1] and images.next("a", 1, keep=[0, 1]) == [2]
    clock[0] = SILENCE - 10
    images.keep_alive("a")
    clock[0] = 2 * SILENCE - 20
    assert images.next("b", 1) == [3]
    assert images.free("b", range(4)) == 1 and not images.next("b", 3, keep=[3], of=[0, 1, 2])
    clock[0] = 2 * SILENCE - 9
    images.keep_alive("b")
    assert images.free("b", range(4)) == 4
    assert images.next("b", 3, keep=[3]) == [0, 1, 2]
    assert images.next("a", 2, keep=[0, 1]) == [4, 5]  # b holds what a still shows
    for scores in (np.zeros(3, np.float32), np.full(200, np.nan, np.float32)):
        with pytest.raises(ValueError, match="score"):
            images.set_ranking(scores, None, 0)


def test_what_is_taken_back_comes_first_and_skipped_images_come_when_nothing_else_is_left(session_of):
    session = session_of(6)
    images = ranked(session)
    decide(session, 5), decide(session, 5, UNDONE)
    assert set(images.next("a", 3)) == {5, 0, 1}
    decide(session, 5, NEGATIVE), decide(session, 3, SKIP), decide(session, 0, SKIP)
    assert images.next("a", 3) == [1, 2, 4]
    decide(session, 1, NEGATIVE), decide(session, 2, NEGATIVE)
    assert images.next("a", 2, keep=[4]) == [3, 0]  # skipped longest ago first


# --- audits and rechecks --------------------------------------------------------------------------------


@pytest.mark.parametrize(("choice", "least", "most"), [(POSITIVE, -1, 6), (NEGATIVE, 20, 60)])
def test_fewer_slots_are_audits_while_the_ranking_yields(session_of, choice, least, most):
    session = session_of(500)
    reviewing(session, ranked(session, audit_share=0.2), 200, answer=lambda row: choice)
    assert least < len(drawn(session)) < most


def test_a_draw_that_a_tab_holds_is_answered_there(session_of):
    session = session_of(4)
    images = ranked(session)
    held = images.next("a", 3)
    images.closing_audit = True
    assert images.next("b", 4) == [3]
    assert sorted(drawn(session)) == [0, 1, 2, 3], "drawn from all unknown rows, whoever holds them"
    images.release("a")
    images.closing_audit = False
    assert sorted(images.next("b", 4, keep=[3])) == held


def test_an_audit_of_a_zone_of_fewer_rows_than_draws_goes_on_in_the_pile_and_may_be_left(session_of):
    session = session_of(50)
    images = ranked(session)
    session.fix_zone(images.likeliest())
    images.closing_audit, images.closing_stream = True, Stream.ZONE
    waiting = images.next("a", 14)
    assert sorted(drawn(session, Stream.ZONE)) == sorted(waiting[:10]) == list(range(10))
    assert drawn(session) == waiting[10:]
    images.closing_audit = False
    images.release("a")
    assert {*waiting} < {*images.next("a", 30)}, "they wait for a decision"
    assert audit(session).zone.draws == 0 and "before the first random image" in sentences(audit(session))[0]


def test_a_review_to_the_advice_that_one_may_stop_says_what_is_true(session_of):
    """By rank until nothing comes, then at random among the likeliest, with known positives among them."""
    session = session_of(500, labelled=4)
    hidden = {*range(121), 200, 300, 390}  # the last three look like negatives
    images, said = ranked(session), ""

    def review(looks):
        return set(
            reviewing(session, images, looks, answer=lambda row: POSITIVE if row in hidden | known else NEGATIVE)
        )

    known = set(range(496, 500))
    left = hidden - review(150)
    session.fix_zone(images.likeliest())
    zone = set(np.flatnonzero(session.state.zone).tolist())
    images.closing_audit, images.closing_stream = True, Stream.ZONE
    while not said.startswith("You may stop"):
        shown = review(10)
        assert shown, said
        left, now = left - shown, session.limits()
        assert now.found == len(hidden - left) and now.hidden_low <= len(left) <= now.hidden_high
        assert len(left & zone) <= now.zone.hidden_high and len(left - zone) <= now.rest_high
        said = advice(session.state.progress(), now, closing_audit=True, in_zone=True)
    others, stated = re.search(r"(?:if (\d+) images .*)?with 95 % confidence at least ([\d.]+) %", said).groups()
    missed = len(left if others is None else left & zone)
    assert others is None or int(others) == 496 - len(zone)
    assert 95 <= float(stated) <= 100 * now.found / (now.found + missed)
    assert RECHECKS_NEEDED <= now.rechecks < RECHECKS_NEEDED + 10 and now.missed == 0
    review(60)
    assert audit(session).rechecks == now.rechecks, "the share of the test is 0 afterwards"


def test_positives_are_shown_again_once_there_are_some_but_no_examples_beside_the_image(session_of):
    session = session_of(600, labelled=10)
    images = ranked(session, recheck_share=0.5)
    reviewing(session, images, 60)
    assert not drawn(session, Stream.RECHECK)
    shown = reviewing(session, images, 300, answer=lambda row: POSITIVE if row % 6 == 0 else NEGATIVE)
    again, examples = drawn(session, Stream.RECHECK), session.state.examples.tolist()
    first = {row: shown.index(row) for row in again}
    assert all(shown[place + 1 : place + 30].count(row) == 0 for row, place in first.items())
    begin = min(shown.index(row, place + 1) for row, place in first.items() if row in shown[place + 1 :])
    assert sum(row % 6 == 0 for row in shown[:begin]) >= MIN_POSITIVES
    assert examples == [590, 593, 596, 599]
    assert {row for row in again if row >= 590} and not set(again) & set(examples)


@settings(deadline=None, max_examples=15)
@given(st.data())
def test_whatever_happens_no_row_has_two_holders_and_none_is_lost(data):
    n = data.draw(st.integers(1, 30))
    twins = [(data.draw(st.integers(0, row)), row) for row in range(0, n, 3)]
    with TemporaryDirectory() as folder, open_session(pile_of(Path(folder), n, twins=twins)) as session:
        images = ranked(session, audit_share=0.3, recheck_share=0.3, seed=data.draw(st.integers(0, 99)))
        holds, decided = {tab: [] for tab in "abc"}, set()
        for _ in range(data.draw(st.integers(1, 25))):
            tab = data.draw(st.sampled_from("abc"))
            action = data.draw(st.sampled_from(["next", "decide", "undo", "release", "audit", "rank"]))
            if action == "next":
                holds[tab] += images.next(tab, data.draw(st.integers(0, 4)), keep=holds[tab])
            elif action == "decide" and holds[tab]:
                decided.add(row := holds[tab].pop())
                decide(session, row, data.draw(st.sampled_from([POSITIVE, NEGATIVE, SKIP])))
            elif action == "undo" and decided:
                row = data.draw(st.sampled_from(sorted(decided)))
                if session.state.in_force(row) is not None:
                    decide(session, row, UNDONE)
            elif action == "release":
                images.release(tab)
                holds[tab] = []
            elif action == "audit":
                images.closing_audit = not images.closing_audit
            elif action == "rank":
                scores = np.random.default_rng(n).random(n).astype(np.float32)
                images.set_ranking(scores, None, session.state.label_serial)
            held = [int(session.state.groups[row]) for rows in holds.values() for row in rows]
            assert len(held) == len({*held})
        images.closing_audit = False
        for tab in "abc":
            images.release(tab)
        left = {int(group) for group in session.state.groups[session.state.untaken]}
        left |= {int(session.state.groups[one.row]) for one in session.state.waiting()}
        assert left <= {int(session.state.groups[row]) for row in images.next("a", 2 * n + 9)}


@pytest.mark.parametrize("stream", [Stream.AUDIT, Stream.RECHECK])
def test_a_tab_that_changes_its_images_for_better_ones_gets_no_further_draws(session_of, stream):
    session = session_of(400)
    for row in range(300, 300 + MIN_POSITIVES):
        decide(session, row)
    share = {"audit_share": 0.3} if stream is Stream.AUDIT else {"recheck_share": 0.3}
    images = ranked(session, **share)
    first, *_ = images.next("a", 12)
    before = drawn(session, stream)
    for _ in range(30):
        images.set_ranking(scores_of(400), None, 0)
        images.next("a", 11, keep=[first])
    assert drawn(session, stream) == before
    for _ in range(60):
        decide(session, first, NEGATIVE)
        first, *_ = images.next("a", 12)
    assert stream is Stream.RECHECK or 5 < len(drawn(session)) < 45  # of 72 slots


# --- no positive is known -------------------------------------------------------------------------------


def test_without_a_ranking_the_first_rows_are_spread_out_to_the_end_of_the_pile(tmp_path, monkeypatch):
    rng, label = np.random.default_rng(0), np.repeat(np.arange(6), [100, 80, 5, 5, 5, 5])
    X = (10 * rng.normal(size=(6, 8))[label] + 0.1 * rng.normal(size=(200, 8))).astype(np.float32)
    write_cache(tmp_path / "cache.h5", X)
    with open_session(EmbeddingCache(tmp_path / "cache.h5"), twins=None) as session:
        images = NextImages(session, np.random.default_rng(0))
        images.audit_share = 0.0
        assert {*label[images.next("a", 8)]} == set(range(6))
        monkeypatch.setattr("pucache.reviewing.queue.SAMPLE", 70)
        decide(session, 4, SKIP)
        images = NextImages(session, np.random.default_rng(0))
        assert sorted(reviewing(session, images, 200, batch=30)) == list(range(200))
