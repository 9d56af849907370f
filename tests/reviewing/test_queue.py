from dataclasses import dataclass

import numpy as np
import pytest
from helpers.planted import write_cache
from hypothesis import given
from hypothesis import strategies as st

from pucache import EmbeddingCache
from pucache.reviewing.log import LABELS, Choice, Entry, Stream
from pucache.reviewing.queue import MIN_POSITIVES, NextImages, best_rows


@dataclass(frozen=True)
class Counts:
    decided: int
    skipped: int
    rechecked: int
    positives: int
    rate: float
    rate_of: int


class FakeSession:
    """The parts of a session that `NextImages` uses, over plain arrays."""

    def __init__(self, n=200, *, groups=None, cache=None):
        self.groups = np.arange(n) if groups is None else np.asarray(groups)
        self.cache, self.serial, self.draws, self.decisions = cache, 0, {}, {}

    @property
    def unknown(self):
        closed = [group for group, decision in self.decisions.items() if decision.choice in LABELS]
        return ~np.isin(self.groups, [*closed, *(group for (stream, group) in self.draws if stream is Stream.AUDIT)])

    @property
    def skipped(self):
        return np.isin(self.groups, [group for group, at in self.decisions.items() if at.choice is Choice.SKIP])

    def counts(self):
        choices = [at.choice for at in self.decisions.values() if at.choice in LABELS]
        last = choices[-100:]
        rechecks = [draw for (stream, _), draw in self.draws.items() if stream is Stream.RECHECK]
        done = len(choices), int(self.skipped.sum()), sum(map(self._is_answered, rechecks))
        return Counts(*done, choices.count(Choice.POSITIVE), last.count(Choice.POSITIVE) / max(len(last), 1), len(last))

    def decision_in_force(self, row):
        return self.decisions.get(int(self.groups[row]))

    def pending_draws(self):
        return [draw for draw in self.draws.values() if not self._is_answered(draw)]

    def _is_answered(self, draw):
        decision = self.decisions.get(draw.group)
        return decision is not None and decision.serial > draw.serial and decision.choice is not Choice.UNDONE

    def draw(self, rng, stream, count, model_version, exclude):
        assert stream is Stream.RECHECK or not exclude
        drawn = []
        for _ in range(count):
            rows = np.flatnonzero(self.unknown)
            if stream is Stream.RECHECK:
                positive = [group for group, at in self.decisions.items() if at.choice is Choice.POSITIVE]
                rows = np.flatnonzero(np.isin(self.groups, positive))
                rows = np.setdiff1d(rows, [*exclude, *(draw.row for draw in drawn)])
            if len(rows):
                row, self.serial = int(rng.choice(rows)), self.serial + 1
                group = int(self.groups[row])
                facts = {"copies": 1, "unknown": len(rows), "positives": 0, "time": 0.0, "model_version": model_version}
                draw = Entry(serial=self.serial, row=row, group=group, stream=stream, **facts)
                self.draws[stream, group] = draw
                drawn.append(draw)
        return drawn

    def decide(self, row, choice=Choice.NEGATIVE):
        self.serial += 1
        group = int(self.groups[row])
        facts = {"copies": 1, "unknown": 0, "positives": 0, "time": 0.0, "stream": Stream.RANKED}
        self.decisions[group] = Entry(serial=self.serial, row=int(row), group=group, choice=choice, **facts)

    def drawn(self, stream=Stream.AUDIT):
        return [draw.row for (of, _), draw in self.draws.items() if of is stream]


class Clock:
    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds


def scores_of(n):
    return np.arange(n, 0, -1, dtype=np.float32)


def ranked(session, *, audit_share=0.0, recheck_share=0.0, seed=0, **options):
    rng = np.random.default_rng(seed)
    images = NextImages(session, rng, audit_share=audit_share, recheck_share=recheck_share, **options)
    images.set_ranking(scores_of(len(session.groups)), None, 0)
    return images


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(1, 50), st.integers(0, 2**31))
def test_best_rows_are_those_of_a_full_sort(values, count, seed):
    scores, unknown = np.array(values, np.float32), np.random.default_rng(seed).random(len(values)) < 0.7
    expected = [row for row in np.lexsort((np.arange(len(scores)), -scores)) if unknown[row]][:count]
    assert best_rows(scores, unknown, count).tolist() == expected


def test_rows_come_in_the_order_of_the_ranking():
    images = ranked(FakeSession())
    assert images.next("a", 3) == [0, 1, 2]
    assert images.next("a", 3, keep=[0, 1, 2]) == [3, 4, 5]


@pytest.mark.parametrize("scores", [np.zeros(3, np.float32), np.array([0, np.nan, 1, 2], np.float32)])
def test_scores_that_do_not_fit_are_refused(scores):
    with pytest.raises(ValueError, match="score"):
        ranked(FakeSession(4)).set_ranking(scores, None, 0)


def test_two_tabs_get_different_rows():
    images = ranked(FakeSession(10))
    first, second = images.next("a", 4), images.next("b", 4)
    assert not {*first} & {*second}
    assert images.next("a", 9, keep=first) == [8, 9]


def test_rows_of_a_silent_tab_are_free_after_ten_minutes():
    clock = Clock()
    images = ranked(FakeSession(), now=clock)
    images.next("a", 2)
    clock.seconds = 500
    images.keep_alive("a")
    clock.seconds = 1050
    assert images.next("b", 1) == [2]
    clock.seconds = 1101
    assert images.next("b", 2, keep=[2]) == [0, 1]
    assert images.next("a", 2, keep=[0, 1]) == [3, 4]  # b holds what a still shows


def test_one_image_of_a_group_is_shown():
    session = FakeSession(6, groups=[0, 0, 2, 0, 2, 5])
    images = ranked(session)
    assert images.next("a", 6) == [0, 2, 5]
    session.decide(0)
    assert images.next("a", 6, keep=[2, 5]) == []


def test_an_image_may_be_shown_again_before_those_of_the_ranking():
    session = FakeSession(10)
    images = ranked(session)
    session.decide(7)
    session.decide(7, Choice.UNDONE)
    images.show_again(7)
    assert images.next("a", 3) == [7, 0, 1]
    session.decide(7)
    assert images.next("a", 3) == [0, 1, 2]


def test_skipped_images_come_back_when_nothing_else_is_left():
    session = FakeSession(5)
    images = ranked(session)
    session.decide(3, Choice.SKIP)
    session.decide(0, Choice.SKIP)
    assert images.next("a", 3) == [1, 2, 4]
    for row in (1, 2):
        session.decide(row)
    assert images.next("a", 2, keep=[4]) == [3, 0]  # skipped longest ago first


def test_the_pile_ends():
    session = FakeSession(3)
    images = ranked(session, audit_share=0.5)
    shown = images.next("a", 10)
    for row in shown:
        session.decide(row)
    assert sorted(shown) == [0, 1, 2]
    assert images.next("a", 10) == []


# --- audits and rechecks --------------------------------------------------------------------------------


def reviewing(session, images, looks, *, answer=lambda row: Choice.NEGATIVE, batch=5):
    shown = []
    while len(shown) < looks and (rows := images.next("a", batch)):
        for row in rows:
            session.decide(row, answer(row))
        shown += rows
    return shown


def test_one_slot_in_twenty_is_an_audit():
    session = FakeSession(4000)
    reviewing(session, ranked(session, audit_share=0.05), 2000)
    assert 70 < len(session.drawn()) < 130


def test_audits_are_drawn_from_all_unknown_rows_whoever_holds_them():
    drawn = np.zeros(20)
    for seed in range(1500):
        session = FakeSession(20)
        images = ranked(session, seed=seed)
        images.next("a", 10)
        images.closing_audit = True
        images.next("b", 1)
        drawn[session.drawn()[0]] += 1  # the first draw, which another tab may hold
    assert drawn.min() > 40
    assert drawn.max() < 115


def test_draws_of_a_closed_tab_are_shown_first():
    session = FakeSession(1000)
    images = ranked(session)
    images.closing_audit = True
    waiting = images.next("a", 3)
    images.closing_audit = False
    assert images.next("b", 2) == [0, 1]  # withheld while a tab shows them
    images.release("a")
    rows = images.next("b", 5, keep=[0, 1])
    assert {*waiting} < {*rows}
    assert [row for row in rows if row not in waiting] == [row for row in range(2, 9) if row not in waiting][:2]


def test_a_row_pending_in_an_audit_is_not_shown_by_rank():
    session = FakeSession(6)
    session.draw(np.random.default_rng(0), Stream.AUDIT, 5, 0, [])
    images = ranked(session)
    rows = images.next("a", 5)
    assert sorted(rows) == sorted(session.drawn())


def test_a_closing_audit_shows_random_rows_alone():
    session = FakeSession(50)
    images = ranked(session)
    images.closing_audit = True
    shown = reviewing(session, images, 100)
    assert sorted(shown) == list(range(50))
    assert sorted(session.drawn()) == list(range(50))
    assert shown != sorted(shown)


def test_positives_are_shown_again_once_there_are_some():
    session = FakeSession(3000)
    images = ranked(session, recheck_share=0.2)
    reviewing(session, images, 300)
    assert not session.drawn(Stream.RECHECK)
    positive = np.random.default_rng(0).permutation(3000)[:300]
    shown = reviewing(session, images, 1500, answer=lambda row: Choice.POSITIVE if row in positive else Choice.NEGATIVE)
    again = session.drawn(Stream.RECHECK)
    assert again
    first = {row: shown.index(row) for row in again}
    assert all(shown[place + 1 : place + 30].count(row) == 0 for row, place in first.items())
    begin = min(shown.index(row, place + 1) for row, place in first.items() if row in shown[place + 1 :])
    assert sum(row in positive for row in shown[:begin]) >= MIN_POSITIVES


@given(st.data())
def test_whatever_happens_no_row_has_two_holders_and_none_is_lost(data):
    n = data.draw(st.integers(1, 30))
    groups = np.array([data.draw(st.integers(0, row)) if row % 3 == 0 else row for row in range(n)])
    groups = groups[groups]
    session, clock = FakeSession(n, groups=groups), Clock()
    images = ranked(session, audit_share=0.3, recheck_share=0.3, seed=data.draw(st.integers(0, 99)), now=clock)
    holds = {tab: [] for tab in "abc"}
    for _ in range(data.draw(st.integers(1, 25))):
        tab = data.draw(st.sampled_from("abc"))
        action = data.draw(st.sampled_from(["next", "decide", "undo", "release", "audit", "rank"]))
        if action == "next":
            rows = images.next(tab, data.draw(st.integers(0, 4)), keep=holds[tab])
            holds[tab] += rows
        elif action == "decide" and holds[tab]:
            row = holds[tab].pop()
            session.decide(row, data.draw(st.sampled_from([Choice.POSITIVE, Choice.NEGATIVE, Choice.SKIP])))
        elif action == "undo" and session.decisions:
            session.decide(data.draw(st.sampled_from(sorted(session.decisions))), Choice.UNDONE)
        elif action == "release":
            images.release(tab)
            holds[tab] = []
        elif action == "audit":
            images.closing_audit = not images.closing_audit
        elif action == "rank":
            images.set_ranking(np.random.default_rng(n).random(n).astype(np.float32), None, session.serial)
        held = [int(groups[row]) for rows in holds.values() for row in rows]
        assert len(held) == len({*held})
    images.closing_audit = False
    for tab in "abc":
        images.release(tab)
    left = {int(group) for group in groups[session.unknown]}
    left |= {draw.group for draw in session.pending_draws()}
    assert left <= {int(groups[row]) for row in images.next("a", 2 * n + 9)}


# --- no positive is known -------------------------------------------------------------------------------


def clusters(tmp_path, sizes, d=8):
    rng = np.random.default_rng(0)
    centres = 10 * rng.normal(size=(len(sizes), d))
    label = np.repeat(np.arange(len(sizes)), sizes)
    X = (centres[label] + 0.1 * rng.normal(size=(len(label), d))).astype(np.float32)
    write_cache(tmp_path / "cache.h5", X, [f"{row:05}.png" for row in range(len(X))])
    return EmbeddingCache(tmp_path / "cache.h5"), label


def test_without_a_ranking_the_first_rows_are_spread_out(tmp_path):
    cache, label = clusters(tmp_path, [500, 400, 5, 5, 5, 5])
    images = NextImages(FakeSession(len(label), cache=cache), np.random.default_rng(0), audit_share=0)
    assert {*label[images.next("a", 8)]} == set(range(6))


def test_a_spread_out_selection_ends_with_the_pile(tmp_path, monkeypatch):
    monkeypatch.setattr("pucache.reviewing.queue.SAMPLE", 7)
    cache, _ = clusters(tmp_path, [10, 10])
    session = FakeSession(20, cache=cache)
    images = NextImages(session, np.random.default_rng(0))
    session.decide(4, Choice.SKIP)
    shown = reviewing(session, images, 20, batch=3)
    assert sorted(shown) == list(range(20))


@pytest.mark.parametrize("stream", [Stream.AUDIT, Stream.RECHECK])
def test_a_tab_that_changes_its_images_for_better_ones_gets_no_further_draws(stream):
    session = FakeSession(400)
    for row in range(300, 300 + MIN_POSITIVES):
        session.decide(row, Choice.POSITIVE)
    share = {"audit_share": 0.3} if stream is Stream.AUDIT else {"recheck_share": 0.3}
    images = ranked(session, **share)
    first, *_ = images.next("a", 12)
    drawn = session.drawn(stream)
    for _ in range(30):
        images.set_ranking(scores_of(400), None, 0)
        images.next("a", 11, keep=[first])
    assert session.drawn(stream) == drawn
    for _ in range(60):
        session.decide(first)
        first, *_ = images.next("a", 12)
    assert stream is Stream.RECHECK or 5 < len(session.drawn(stream)) < 45  # of 72 slots


def test_fewer_slots_are_audits_while_the_ranking_yields():
    drawn = []
    for kind in (Choice.POSITIVE, Choice.NEGATIVE):
        session = FakeSession(4000)
        images = ranked(session, audit_share=0.2, share_at_full_yield=0.25)
        reviewing(session, images, 1000, answer=lambda row, kind=kind: kind)
        drawn.append(len(session.drawn()))
    assert 30 < drawn[0] < 75
    assert 160 < drawn[1] < 240
