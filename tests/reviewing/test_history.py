"""The fold over a log: what leaves for good, what waits, what contradicts the entries before."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.reviews import Log

from pucache.reviewing.history import RATE_OF, History
from pucache.reviewing.log import Choice, Entry, Stream

POSITIVE, NEGATIVE, SKIP, UNDONE = Choice


def test_a_picture_leaves_for_good_and_waits_when_it_is_taken_back():
    history = Log(20).decide(3, POSITIVE).decide(3, UNDONE).history()
    picture = history.pictures[3]
    assert picture.taken and picture.waits and picture.label == -1 and history.left == [19] and history.found == [0]
    (stratum,) = history.strata()
    assert stratum.waits.tolist() == [True] and stratum.left == 19
    assert history.limits().hidden_high == 20, "it may be positive"
    again = Log(20).decide(3, POSITIVE).decide(3, UNDONE).decide(3, NEGATIVE).history()
    assert not again.pictures[3].waits and again.limits().hidden_high == 19


def test_a_skip_does_not_leave_and_a_draw_does():
    history = Log(20).decide(3, SKIP).draw(4).draw(5, SKIP).history()
    assert not history.pictures[3].taken and history.left == [18]
    limits = history.limits()
    assert (limits.draws, limits.skipped, limits.pending) == (2, 1, 1)
    assert Log(20).draw(4).history().limits().draws == 0, "a draw that no later answer follows counts as not made"


def test_a_recheck_measures_the_reviewer_and_leaves_the_label():
    log = Log(20).decide(3, POSITIVE).draw(3, NEGATIVE, stream=Stream.RECHECK)
    history = log.history()
    assert history.rechecks() == (1, 1) and history.pictures[3].label == 1
    assert not history.pictures[3].waits and history.rate() == (1.0, 1)


def test_draws_of_before_0_5_from_among_pictures_that_had_returned_are_read():
    """What was taken back came back to its urn, and could be drawn."""
    log = Log(20).decide(3, POSITIVE).decide(3, UNDONE)
    draws = [Entry(serial=3, row=4, group=4, copies=1, stream=Stream.AUDIT, unknown=20, time=0.0)]
    draws += [replace(draws[0], serial=4, row=3, group=3, unknown=19)]
    history = History([20], log.entries + draws)
    assert history.left == [18] and history.pictures[3].drawn is None
    with pytest.raises(ValueError, match="20 unknown rows; 19 of 20 were left"):
        History([20], [log.entries[0], replace(draws[0], serial=2)])


def test_what_contradicts_the_entries_before_is_refused():
    good = Log(20).decide(3, POSITIVE).draw(5, NEGATIVE)
    wrong = [replace(entry, unknown=18) if entry.is_draw else entry for entry in good.entries]
    cases = {
        "18 unknown rows; 19 of 20 were left": ([20], wrong),
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
        now, hidden = History(urns, self.entries).limits(level=level, zone=parts), self.y[sorted(self.left)]
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
