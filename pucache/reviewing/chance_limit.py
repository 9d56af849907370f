"""Upper limit of the number of positives in a pile from every look, where the ranking is no worse than chance.

Look t is at one of n_t rows, of which K - f_t are positive; y_t says whether it is. Let each look be positive with a
probability of at least p_t = (K - f_t) / n_t, given the past: a random image is, with equality, and an image of a
ranking is where the ranking finds positives at least as often as chance. With a factor r in [0, 1) and any rule that
says before a look whether it counts,

    M(K) = prod_t r^y_t * ((1 - r * p_t) / (1 - p_t))^(1 - y_t)    over the looks that count

is a test supermartingale where K is the truth, and so is the mean over several factors and rules: it ever reaches
1 / error with a probability of at most `error` (Ville). Looks of a ranking count in a run without positives alone,
since each positive costs evidence. M rises with K, and falls with each y_t and f_t, so a row without a label counts as
positive. docs/method.md has the proof.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .hidden_interval import _first
from .log import DRAWN, Choice, Entry, Stream

FACTORS = (0.0, 0.125, 0.5)  # r
RUNS = (0, 20, 80, 320)  # looks without a positive, after which a look of the ranking counts


@dataclass(frozen=True)
class Looks:
    """Looks in order, a picture once: a random image when it was drawn, others when they were first decided.

    Attributes
    ----------
    positive : ndarray of bool, (t,)
        y_t by the label in force; a picture without one is positive.
    unknown, positives_before : ndarray of float64, (t,)
        n_t and f_t.
    run : ndarray of float64, (t,)
        Decisions since the last positive, as they were made; inf for a random image, which always counts.
    left : int
        Rows that nobody has looked at.
    found : int
        Rows that were looked at and are positive, or without a label.
    """

    positive: np.ndarray
    unknown: np.ndarray
    positives_before: np.ndarray
    run: np.ndarray
    left: int
    found: int

    def evidence(self, total: float) -> np.ndarray:
        """Logarithm of the mean of M(K) after each look, float64 (t,); K must allow every look."""
        hidden = total - self.positives_before
        paths = []
        with np.errstate(divide="ignore"):
            ruled_out = np.log(self.unknown - hidden)
            for factor in FACTORS:
                negative = np.log(self.unknown - factor * hidden) - ruled_out
                step = np.where(self.positive, np.log(factor), negative)
                paths += [np.cumsum(np.where(self.run >= run, step, 0.0)) for run in RUNS]
        return np.asarray(np.logaddexp.reduce(paths, axis=0) - np.log(len(paths)))

    def greatest_total(self, error: float) -> int:
        """Largest K that was never excluded; it is ever too small with a probability of at most `error`."""

        def excluded(total: int) -> bool:
            return bool(np.max(self.evidence(total), initial=0.0) >= -np.log(error))

        return max(self.found, _first(excluded, self.found, self.found + self.left) - 1)

    def without_positives(self, more: int) -> Looks:
        """With further looks of the ranking at single rows, none of which is positive."""
        steps, run = np.arange(more), min(self.run[-1], RUNS[-1]) if self.run.size else 0
        return Looks(
            np.append(self.positive, np.zeros(more, bool)),
            np.append(self.unknown, self.left - steps),
            np.append(self.positives_before, np.full(more, self.found)),
            np.append(self.run, run + steps),
            self.left - more,
            self.found,
        )


def looks_of(entries: Sequence[Entry], rows: int, labels: Mapping[int, Choice | None], since: int = 0) -> Looks:
    """Looks of a log.

    Parameters
    ----------
    entries : sequence of Entry
    rows : int
        Of the pile.
    labels : mapping of int to Choice or None
        What each group is in the end.
    since : int
        Serial number of the entry after which looks count; what was looked at before is out of the pile.
    """
    answered = [e.serial for e in entries if e.is_draw and e.stream in DRAWN and labels.get(e.group) in _ANSWERS]
    last = max(answered, default=0)
    looks: list[tuple[bool, int, int, float]] = []
    seen: set[int] = set()
    unknown, positives, run = rows, 0, 0
    for entry in entries:
        if entry.stream is Stream.RECHECK or (entry.is_draw and entry.serial > last):
            continue
        if entry.group not in seen and entry.copies:
            seen.add(entry.group)
            is_positive = labels.get(entry.group) is not Choice.NEGATIVE
            if entry.serial > since:
                is_random = entry.is_draw and entry.stream is Stream.AUDIT
                looks.append((is_positive, unknown, positives, np.inf if is_random else run))
            unknown -= entry.copies
            positives += entry.copies * is_positive
        if not entry.is_draw and not entry.is_undo and entry.choice is not Choice.SKIP:
            run = 0 if entry.choice is Choice.POSITIVE else run + 1
    columns = zip(*looks, strict=True) if looks else ((), (), (), ())
    y, n, f, runs = (np.array(column, float) for column in columns)
    return Looks(y.astype(bool), n, f, runs, unknown, positives)


_ANSWERS = (Choice.POSITIVE, Choice.NEGATIVE, Choice.SKIP)
