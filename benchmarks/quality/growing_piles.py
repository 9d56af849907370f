"""Limits of piles that grow: what a closing audit after each growth says, and how often the truth is excluded.

Part of the page of `audit.py`. Rows are drawn by permanent random numbers, as a review draws them: images that came
catch up by themselves.
"""

from collections.abc import Iterator

import numpy as np

from pucache.estimates.limits import UPPER_PART
from pucache.estimates.strata import SIDES, Stratum, greatest_total

LEVEL, WEEKS = 0.95, 3
ERROR = UPPER_PART * (1.0 - LEVEL)
GROWING = [  # rows at first and each week, draws at first and each week, share of positives
    (20_000, 2000, 300, 100, 0.001),
    (20_000, 2000, 300, 100, 0.01),
    (3500, 350, 150, 50, 0.002),
    (50_000, 200, 400, 50, 0.002),
]
SHARES, PART, DRAWS, LOOKS = (0.01, 0.1, 0.3), (600, 150, 150, 150), (60, 30, 30, 30), (150, 60, 60, 60)

GROWTH_TEXT = """Images come to a pile three times, and a closing audit follows each time (means): what is hidden, the
limit of all strata, and that of an audit that was begun anew with the random images of that week alone."""
EVER_TEXT = f"""Piles of {PART[0]} images, to which {PART[1]} come three times; {DRAWS[0]} random images and {LOOKS[0]}
of a ranking that learns, then {DRAWS[1]} and {LOOKS[1]} each time. How often the limit of all strata ever excluded the
truth, at an error of 5 % each."""


class GrowingPile:
    """Strata of a pile to which images come, and what left each of them: label and number of the draw, or 0."""

    def __init__(self, rows: list[int], share: float, rng: np.random.Generator):
        self.rows, self.stratum = rows, np.repeat(np.arange(len(rows)), rows)
        self.y, self.number = rng.random(len(self.stratum)) < share, rng.random(len(self.stratum))
        self.left = np.ones(len(self.stratum), bool)
        self.events: list[list[tuple[int, int]]] = [[] for _ in rows]
        self.serial = 0

    def here(self, weeks: int) -> np.ndarray:
        """Rows that have come and not left."""
        return np.flatnonzero((self.stratum <= weeks) & self.left)

    def take(self, row: int, *, at_random: bool) -> None:
        self.serial += 1
        self.left[row] = False
        self.events[self.stratum[row]].append((int(self.y[row]), self.serial * at_random))

    def draw(self, weeks: int) -> None:
        here = self.here(weeks)
        self.take(int(here[self.number[here].argmin()]), at_random=True)

    def strata(self, weeks: int) -> list[Stratum]:
        return [stratum(self.rows[week], self.events[week]) for week in range(weeks + 1)]


def stratum(rows: int, events: list[tuple[int, int]]) -> Stratum:
    label, draw = np.array(events, np.int64).reshape(-1, 2).T
    return Stratum(rows, label, np.ones(len(label), np.int64), draw, np.zeros(len(label), bool))


# --- width -------------------------------------------------------------------------------------------------


def growth(case: int, reviews: int) -> dict:
    """Means by week: hidden, their limit, and that of an audit begun anew with the draws of the week."""
    return {"weeks": np.mean([list(_weeks(case, number)) for number in range(reviews)], axis=0).tolist()}


def _weeks(case: int, number: int) -> Iterator[tuple[int, int, int]]:
    first, more, draws, later, share = GROWING[case]
    pile = GrowingPile([first, *[more] * WEEKS], share, np.random.default_rng([case, number]))
    for week in range(WEEKS + 1):
        before, rows = pile.serial, len(pile.here(week))
        for _ in range(later if week else draws):
            pile.draw(week)
        strata = pile.strata(week)
        events = [event for of_one in pile.events for event in of_one]
        fresh = sorted((event for event in events if event[1] > before), key=lambda event: event[1])
        hidden = int(pile.y[pile.here(week)].sum())
        found, anew = (sum(label for label, _ in of) for of in (events, fresh))
        yield hidden, greatest_total(strata, ERROR) - found, greatest_total([stratum(rows, fresh)], ERROR) - anew


# --- coverage ----------------------------------------------------------------------------------------------


def exclusions(share: float, begin: int, count: int) -> dict:
    """Whether the truth was ever excluded above and below, at the whole error, by review.

    Between the draws a ranking that learns from all positives found takes rows, and the pile grows three times.
    """
    return {"excluded": [_ever(share, number) for number in range(begin, begin + count)]}


def _ever(share: float, number: int) -> list[bool]:
    rng = np.random.default_rng([round(1000 * share), number])
    pile, learned = GrowingPile(list(PART), share, rng), 0
    signal = rng.normal(size=len(pile.y)) + 1.5 * pile.y
    for week, (draws, looks) in enumerate(zip(DRAWS, LOOKS, strict=True)):
        for at_random in rng.permutation([True] * draws + [False] * looks):
            here = pile.here(week)
            if at_random:
                pile.draw(week)
            else:
                scores = signal[here] * min(learned, 20) / 20 + rng.normal(size=len(here)) * 0.5
                pile.take(int(here[scores.argmax()]), at_random=False)
            learned = int(pile.y[~pile.left].sum())
    strata = pile.strata(WEEKS)
    times = np.sort(np.concatenate([one.draw[one.drawn] for one in strata]))
    sums = np.zeros((2, len(times)))
    for one, total in zip(strata, (int(pile.y[pile.stratum == week].sum()) for week in range(WEEKS + 1)), strict=True):
        after = np.searchsorted(one.draw[one.drawn], times, side="right")
        above, below = (np.append(0.0, path) for path in (one.evidence_above(total), one.evidence_below(total)))
        for side, weights in enumerate((SIDES, SIDES[::-1])):
            sums[side] += np.logaddexp(np.log(weights[0]) + above, np.log(weights[1]) + below)[after]
    return (sums.max(axis=1) >= -np.log(1.0 - LEVEL)).tolist()
