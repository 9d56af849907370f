"""The fold over a log: what leaves for good, what waits, what contradicts the entries before."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.command_line import printed, run_json
from helpers.reviews import Log, ReviewProcess, served
from helpers.sessions import decide, labels_of, pile_of, proposal

import pucache
from pucache import EmbeddingCache, audit, session_labels
from pucache.errors import SessionError
from pucache.estimates.limit_sentences import sentences
from pucache.reviewing.history import RATE_OF, History, agreement
from pucache.reviewing.log import Choice, Entry, Stream, Zone
from pucache.reviewing.serve import rows_in_conflict
from pucache.reviewing.session import open_session

POSITIVE, NEGATIVE, SKIP, UNDONE = Choice


def test_what_contradicts_the_entries_before_is_refused():
    good = Log(20).decide(3, POSITIVE).draw(5, NEGATIVE)
    wrong = [replace(entry, unknown=18) if entry.is_draw else entry for entry in good.entries]
    cases = {
        "18 unknown rows; 19 of 20 were left": ([20], wrong),
        "20 unknown rows; 19 of 20 were left": ([20], [good.entries[0], replace(good.entries[1], unknown=20)]),
        "19 unknown rows; 29 of 30 were left": ([30], good.entries),
        "row 5, which had been decided or drawn before": ([20], Log(20).draw(5, NEGATIVE).draw(5).entries),
        "row 6, which had been decided or drawn before": ([20], Log(20).decide(6, NEGATIVE).draw(6).entries),
        "row 1, which is none of its images": ([3], Log([3, 0]).draw(1).entries),
        "in the order of the log": ([20], good.entries[::-1]),
        "more rows of urn 0 than its 0": ([0], good.entries),
        "there are 1": ([20], [replace(good.entries[0], urn=1)]),
        "takes back what is not in force": ([20], [good.entries[0], replace(good.entries[0], serial=2, choice=UNDONE)]),
    }
    for said, (urns, entries) in cases.items():
        with pytest.raises(ValueError, match=said):
            History(urns, entries)
    other = replace(good.entries[2], group=3, row=3, copies=5)
    with pytest.raises(ValueError, match="group 3 has 5 rows in urn 0, and had 1"):
        History([20], [*good.entries[:2], other])


def test_the_best_rate_is_that_of_a_hundred_labels_in_a_row():
    positive = [True] * 80 + [False] * 100 + [True] * 30
    rates = []
    for upto in (0, 99, 100, 210):
        log = Log(300)
        for group, one in enumerate(positive[:upto]):
            log.decide(group, POSITIVE if one else NEGATIVE)
        rates.append(log.history().best_rate())
        last = positive[:upto][-RATE_OF:]
        assert log.history().rate() == (np.mean(last) if last else 0.0, len(last))
    assert rates == [0, 0, 0.8, 0.8]


# --- a zone in parts ------------------------------------------------------------------------------------

PILE, CAME, PART = 45, 40, 25  # rows of each urn, and of each part of the zone


class ZonedReview:
    """A review of a pile that grows, by random images among the likeliest, among all, and by rank; rows are groups."""

    def __init__(self, seed):
        self.rng, self.entries, self.left = np.random.default_rng(seed), [], set(range(PILE))
        rows = np.arange(PILE + CAME)
        self.rank = np.where(rows < PILE, rows, rows - PILE)  # in its urn
        self.part = np.where(self.rank < PART, 1 + (rows >= PILE), 0)
        self.y = self.rng.random(len(rows)) < np.where(self.part > 0, 0.15, 0.05)

    def look(self, stream):
        """One image, decided by the truth."""
        left = np.array(sorted(self.left))
        among = left[self.part[left] > 0] if stream is Stream.ZONE else left
        if not len(among):
            return
        row = int(among[self.rank[among].argmin()] if stream is Stream.RANKED else self.rng.choice(among))
        own = self.part if stream is Stream.ZONE else np.arange(PILE + CAME) >= PILE
        shared = {"row": row, "group": row, "copies": 1, "time": 0.0, "stream": stream}
        shared |= {"urn": int(row >= PILE), "zone": int(self.part[row]), "unknown": int((own[left] == own[row]).sum())}
        for choice in (None, POSITIVE if self.y[row] else NEGATIVE)[stream is Stream.RANKED :]:
            self.entries.append(Entry(serial=len(self.entries) + 1, choice=choice, **shared))
        self.left.remove(row)

    def hold(self, level, parts):
        """Whether both limits hold, and how much they exclude among the likeliest."""
        urns, inside = [PILE, CAME][: len(parts)], self.part[sorted(self.left)] > 0
        zone = Zone(
            {str(row): part for part, rows in enumerate(parts, 1) for row in range(part * PILE, part * PILE + rows)},
            len(urns),
        )
        now, hidden = History(urns, self.entries).limits(level=level, zone=zone), self.y[sorted(self.left)]
        assert now.zone.rows == sum(parts) and now.zone.unknown == inside.sum()
        holds = hidden[inside].sum() <= now.zone.hidden_high and hidden[~inside].sum() <= now.rest_high
        return holds, inside.sum() - now.zone.hidden_high


def test_the_limits_of_a_zone_in_parts_hold_after_the_pile_grew():
    missed, excluded, count, level = 0, [], 40, 0.3
    for seed in range(count):
        review, held = ZonedReview(seed), True
        for parts in ((PART,), (PART, PART)):
            for stream in map(Stream, review.rng.permutation([*[Stream.ZONE] * 16, Stream.AUDIT, Stream.RANKED])):
                review.look(stream)
            holds, less = review.hold(level, parts)
            held &= holds
            review.left |= set(range(PILE, PILE + CAME)) if len(parts) == 1 else set()
        missed += not held
        excluded.append(less)
    assert missed <= (1 - level) * count and np.mean(excluded) > 1, (missed, excluded)


# --- two readers: a session beside another one ------------------------------------------------------------


@pytest.fixture
def cache(tmp_path):
    return pile_of(tmp_path, 60, twins=[(10, 11), (1, 3)])


@pytest.fixture
def folder(cache):
    """Session of a first reader, anna, who has decided rows 10 to 14 and five random images."""
    with open_session(cache, labels_of(60)) as session:
        for row in (10, 12, 13, 14):
            session.decide(proposal(row, POSITIVE if row < 13 else NEGATIVE, reviewer="anna"))
        for draw in session.draw(np.random.default_rng(0), Stream.AUDIT, 5):
            session.decide(proposal(draw.row, NEGATIVE, reviewer="anna"))
        return session.folder


def beside(cache, folder, name="ben"):
    """The session of a second reader."""
    return open_session(EmbeddingCache(cache.files[0].path), folder=folder.parent / name, beside=folder)


def test_a_second_reader_begins_with_the_labels_and_the_pile_of_the_first_and_sees_no_answer(cache, folder, tmp_path):
    with beside(cache, folder) as session:
        assert session.pile.urns == (56,) and session.state.untaken.sum() == 56
        assert np.flatnonzero(session.state.labels()[0]).tolist() == [0, 1, 2] and not session.entries()
        decide(session, 20)
    with beside(cache, folder) as session, open_session(cache, folder=folder) as first:
        decide(session, 21), decide(first, 22)
        assert (session.state.progress().decided, first.state.progress().decided) == (2, 10)
    with pytest.raises(SessionError, match="no review session at"):
        open_session(cache, folder=tmp_path / "new", beside=tmp_path / "none")


@pytest.mark.parametrize("verb", [lambda _, folder, **of: audit(folder, **of), session_labels, open_session])
def test_a_review_does_not_stand_beside_itself(cache, folder, verb):
    with pytest.raises(SessionError, match="name that of another reader"):
        verb(cache, folder=folder, beside=folder / "../pile.h5.review")


# --- what they differ on ---------------------------------------------------------------------------


def test_conflicts_are_offered_among_as_many_others_unmarked(cache, folder, tmp_path):
    with beside(cache, folder) as session:
        decide(session, 11, NEGATIVE), decide(session, 12), decide(session, 14, POSITIVE)
    with open_session(cache, folder=folder) as first:
        differ = rows_in_conflict(first, tmp_path / "ben")
        assert sorted(differ) == [10, 14]
    with served(cache, folder, conflicts=differ) as (_, server):
        client = server.client()
        cards = client.post("/api/next", count=50, only="doubted")["images"]
        rows = [card["row"] for card in cards]
        assert {10, 14} < set(rows) and len(rows) == 4 and rows == sorted(rows)
        for card in cards:
            answer = "negative" if card["row"] == 10 else "positive" if card["row"] == 14 else "skip"
            client.decide(card, answer, correction=True)
        assert client.get("/api/state")["doubted"] == 0, "each is offered once"
    assert audit(folder, beside=tmp_path / "ben").agreement.conflicts == ()


def test_agreement_is_of_the_first_labels_and_of_those_given_at_random():
    first, second = Log(40), Log(40)
    for group in range(20):
        first.decide(group, POSITIVE if group < 8 else NEGATIVE)
        second.decide(group, POSITIVE if group < 10 else NEGATIVE)
    for group in (30, 31):
        first.draw(group, NEGATIVE), second.draw(group, NEGATIVE)
    first.decide(8, POSITIVE)  # after both were looked at
    of = agreement(first.history(), second.history())
    assert tuple(of.decided) == (8, 0, 2, 12) and tuple(of.drawn) == (0, 0, 0, 2)
    assert [one for one, *_ in of.conflicts] == [""], "one is left; logs of tests have no keys"


# --- labels of both --------------------------------------------------------------------------------


def test_labels_are_what_both_say(cache, folder, tmp_path):
    with beside(cache, folder) as session:
        decide(session, 11, NEGATIVE), decide(session, 12), decide(session, 13, SKIP), decide(session, 20)
    both, alone = session_labels(cache, folder, beside=tmp_path / "ben").only, session_labels(cache, folder).only
    assert both.reviewed[[10, 11, 12, 13, 20]].tolist() == [0, 0, 1, -1, 1], "none, both, the first, the second alone"
    assert alone.reviewed[[10, 11, 12, 13, 20]].tolist() == [1, 1, 1, -1, 0]
    assert "They differ on 1 now, which have no label: '010.png'" in both.hidden.statements


@pytest.mark.parametrize("seed", range(3))
def test_the_audit_of_both_is_that_of_their_labels_whatever_both_did(tmp_path, seed):
    rng, keys = np.random.default_rng(seed), [f"{row:03}.png" for row in range(60)]
    cache, folder = pile_of(tmp_path, keys, twins=[(10, 11), (20, 25)]), tmp_path / "anna"
    for grown in (False, True):
        for name in ("anna", "ben"):
            opened = open_session(cache, folder=folder) if name == "anna" else beside(cache, folder)
            with opened as session:
                for _ in range(12):
                    if rng.random() < 0.3:
                        session.draw(rng, Stream.AUDIT, 2)
                    if not session.state.zone.any() and rng.random() < 0.2:
                        session.fix_zone(rng.choice(60, 20, replace=False))
                    row = int(rng.integers(len(session.cache)))
                    decide(session, row, list(Choice)[rng.integers(3)])
        audited = pucache.audit(folder, beside=tmp_path / "ben")
        labels = session_labels(EmbeddingCache(cache.files[0].path), folder, beside=tmp_path / "ben").only
        if labels.hidden is not None:
            assert list(labels.hidden.statements) == sentences(audited)
        if not grown:
            cache = pile_of(tmp_path, [*keys, "new.png", "newer.png"], twins=[(10, 11), (20, 25)])


def test_reviews_of_different_images_or_states_of_the_cache_are_no_audit_of_both(cache, folder, tmp_path):
    open_session(pile_of(tmp_path, 20, name="other.h5")).close()
    with pytest.raises(SessionError, match=r"are no reviews of the same images in the same state"):
        audit(folder, beside=tmp_path / "other.h5.review")
    beside(cache, folder).close()
    grown = pile_of(tmp_path, [*cache.keys, "new.png"], twins=[(10, 11), (1, 3)])
    open_session(grown, folder=folder).close()
    with pytest.raises(SessionError, match=r"go on with each once after the cache has changed"):
        audit(folder, beside=tmp_path / "ben")
    assert audit(folder).agreement is None
    assert session_labels(grown, folder, beside=tmp_path / "ben").only.hidden is not None, "labels are matched by key"


# --- commands --------------------------------------------------------------------------------------


def test_commands_take_both_readers(cache, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = ("--session", "ben", "--beside", folder, "--reviewer", "Dr. Ben", "--port", 0)
    with ReviewProcess(tmp_path, *place) as other:
        decisions = [{"request": f"r{row}", "row": row, "choice": "negative", "replaces": 0} for row in (10, 20)]
        other.client().post("/api/decide", decisions=decisions)
        assert other.end() == 130 and "train on it: pucache train-pu pile.h5 --labels ben\n" in other.printed
    result = run_json("audit pile.h5.review --beside ben")
    assert result["agreement"]["conflicts"] == [{"key": "010.png", "first": "positive", "second": "negative"}]
    assert result["found"] == 1 and "anna and Dr. Ben agreed on 0 of 1" in result["statements"][-2]
    trained = printed("train-pu pile.h5 --labels pile.h5.review --beside ben --method linear")
    assert "of them known: 2 positive, " in trained, "12 and 3; not 10, which they differ on, and its twin"


def test_a_table_of_a_review_needs_no_positive_and_no_image_that_is_left(cache, tmp_path):
    with open_session(cache, folder=tmp_path / "none") as session:
        decide(session, 20, NEGATIVE)
    counts = run_json(f"labels {cache.files[0].path} {tmp_path / 'none'} --out {tmp_path / 'none.csv'}")
    assert (counts["positive"], counts["negative"]) == (0, 1)
