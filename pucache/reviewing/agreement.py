"""What two readers of the same images have in common: labels, random images, and how far they agree."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import SessionError
from ..labels.label_files import name_first
from .log import DRAWN, LABELS, AuditedEntries, Choice, DecisionLog, Entry, EpochFacts, Stream, labelling_decisions
from .session_folder import open_log

BOTH, FIRST = RULES = ("both", "first")  # whose answers are the labels
LEAST = 10  # pictures that kappa is stated of
_DRAWS = 20_000  # of its interval


def labelled(entries: Iterable[Entry]) -> dict[int, Entry]:
    """The label of each group."""
    return {group: one for group, one in labelling_decisions(entries).items() if one.choice in LABELS}


def conflicts(mine: Iterable[Entry], theirs: Iterable[Entry]) -> list[tuple[Entry, Entry]]:
    """Labels of groups that two logs label otherwise."""
    first, second = labelled(mine), labelled(theirs)
    both = [(one, second[group]) for group, one in first.items() if group in second]
    return [(one, other) for one, other in both if one.choice is not other.choice]


def second_says(mine: Iterable[Entry], theirs: Iterable[Entry]) -> list[Entry]:
    """Decisions by which the labels of the first reader become those that both say.

    Where the second one alone has decided, his; where they differ, a skip: it counts as positive in an upper limit
    and as negative in a lower one.
    """
    first = labelled(mine)
    alone = [other for group, other in labelled(theirs).items() if group not in first]
    return alone + [replace(other, choice=Choice.SKIP) for _, other in conflicts(mine, theirs)]


def audited_by_both(log: DecisionLog, readers: str) -> tuple[AuditedEntries, Agreement | None]:
    """What an audit is computed from, and how the readers agree; None where there is no second one.

    Raises `SessionError` where the logs of both cannot be joined.
    """
    check_rule(readers)
    present, facts, reader = log.audited_entries(), log.facts(), log.reader()
    if reader is None:
        return present, None
    with open_log(log.path.parent / reader[1], read_only=True) as other:
        theirs, same = other.audited_entries().entries, other.facts().pile == facts.pile
    if not same and readers == BOTH:
        raise SessionError(
            f"the logs of both readers of {log.path.parent} are of different states of the cache: go on with each once "
            f"(pucache review, and with --second-reader {reader[0]}), or pass --readers first"
        )
    agreement = Agreement.of(reader[0], present.entries, theirs, readers) if same else None
    if readers == FIRST:
        return present, agreement
    parts = log.zone(facts.continued[0] if facts.continued else log.epoch).parts
    said = [
        replace(one, serial=log.last + number, stream=Stream.SECOND, restores=0, zone=parts.get(one.key, 0))
        for number, one in enumerate(second_says(present.entries, theirs), 1)
    ]
    return present._replace(entries=[*present.entries, *said]), agreement


def reader_of(entries: Iterable[Entry]) -> str:
    """Whose log it is: who decided last."""
    names = [entry.reviewer for entry in entries if not entry.is_draw]
    return (names and names[-1]) or "the first reader"


def check_rule(readers: str) -> None:
    """Raise ValueError for a rule that there is not."""
    if readers not in RULES:
        raise ValueError(f"readers must be both or first, got {readers!r}")


# --- random images of both ---------------------------------------------------------------------


class SharedDraws:
    """The random images of a first reader, which the second reader gets too, so that their answers can be compared.

    They may not simply be given to the second one: they come from what the first one had left, where positives are
    rarer the more he has found. So a row is drawn from what the second reader has left. Where it could have been drawn
    for the first reader too, the next image that was takes its place. Given all that the second reader knows, that
    image is as likely to be any row that both had left as the drawn one is, so the draw stays uniform over what he has
    left. It must be new to him: one that he has decided or was given is passed over for good.

    `entries` are of the first reader's log, `epoch` is the number of the present epoch, `urns` how many its pile has;
    each epoch that goes on with another adds one.
    """

    def __init__(self, entries: Sequence[Entry], epoch: int, urns: int):
        self._entries, self._epoch, self._urns = entries, epoch, urns
        self._draws = [entry for entry in entries if entry.is_draw and entry.stream is Stream.AUDIT]

    @classmethod
    def read(cls, first: Path, facts: EpochFacts) -> SharedDraws:
        """Those in the folder of a session, none where its pile is another one now; raises `SessionError`."""
        with open_log(first, read_only=True) as log:
            same = log.facts().pile == facts.pile
            return cls(log.audited_entries().entries if same else (), log.epoch, len(facts.urns))

    def instead_of(self, group: int, urn: int, seen: Container[int]) -> Entry | None:
        """Draw of the next image that is new to the second reader, if the group could have been drawn in its place.

        `group` was drawn for him, from `urn`, and is new to him; `seen` are the groups that are not.
        """
        draw = next((draw for draw in self._draws if draw.group not in seen), None)
        if draw is None or urn >= self._urns - (self._epoch - draw.epoch):  # came after that draw
            return None
        before = [entry for entry in self._entries if entry.group == group and entry.serial < draw.serial]
        was_out = group in labelled(before) or any(entry.is_draw and entry.stream in DRAWN for entry in before)
        return None if was_out else draw


# --- agreement ---------------------------------------------------------------------------------


class Concordance(NamedTuple):
    """Pictures that both readers labelled, before any was shown again."""

    both_positive: int
    first_positive: int  # the first reader alone
    second_positive: int
    both_negative: int

    @classmethod
    def of(cls, first: dict[int, Entry], second: dict[int, Entry], groups: Iterable[int]) -> Concordance:
        """Of the labels of two readers, and groups that both have."""
        pairs = Counter((first[group].choice, second[group].choice) for group in groups)
        return cls(*(pairs[pair] for pair in itertools.product(LABELS, LABELS)))

    @property
    def images(self) -> int:
        """How many there are."""
        return sum(self)

    @property
    def agreed(self) -> int:
        """How many of them they agree on."""
        return self.both_positive + self.both_negative

    def kappa(self) -> tuple[float, float, float] | None:
        """Cohen's kappa, and a 95 % interval; None of fewer than ten pictures, and where both gave one answer alone.

        The interval is that of the posterior under Jeffreys' prior of the four cells, which has a width also where all
        answers agree.
        """
        if self.images < LEAST or self.images in (self.both_positive, self.both_negative):
            return None
        cells = np.random.default_rng(0).dirichlet(np.add(self, 0.5), _DRAWS)
        low, high = np.quantile(_kappa(cells), (0.025, 0.975)).tolist()
        return float(_kappa(np.array([self]) / self.images)[0]), low, high

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        value, low, high = self.kappa() or (None, None, None)
        share = self.agreed / self.images if self.images else None
        rest = {"images": self.images, "share": share, "kappa": value, "kappa_low": low, "kappa_high": high}
        return self._asdict() | rest

    def __str__(self) -> str:
        said = f"agreed on {self.agreed:,} of {self.images:,}"
        said += f" ({100 * self.agreed / self.images:.1f} %)" if self.images else ""
        return (
            said + ", Cohen's kappa {:.2f} (95 %: {:.2f} to {:.2f})".format(*kappa) if (kappa := self.kappa()) else said
        )


def _kappa(cells: np.ndarray) -> np.ndarray:
    """Cohen's kappa of shares of the four cells, (m, 4) to (m,)."""
    both, first, second, neither = cells.T
    by_chance = (both + first) * (both + second) + (neither + first) * (neither + second)
    return np.asarray((both + neither - by_chance) / (1.0 - by_chance))


class Agreement(NamedTuple):
    """How two readers agree."""

    first: str
    second: str
    decided: Concordance
    drawn: Concordance  # of those that both were given at random
    conflicts: tuple[tuple[str, str, str], ...]  # key, first and second answer, as they are now
    readers: str  # whose answers are the labels

    @classmethod
    def of(cls, name: str, mine: Sequence[Entry], theirs: Sequence[Entry], readers: str) -> Agreement:
        """Of two logs that number groups alike; `name` is that of the second reader."""
        first, second = (labelled(e for e in log if e.stream is not Stream.CONFLICT) for log in (mine, theirs))
        both = first.keys() & second.keys()
        drawn = both & _drawn(mine) & _drawn(theirs)
        differ = sorted((one.key, str(one.choice), str(other.choice)) for one, other in conflicts(mine, theirs))
        decided, at_random = (Concordance.of(first, second, groups) for groups in (both, drawn))
        return cls(reader_of(mine), name, decided, at_random, tuple(differ), readers)

    def statements(self) -> list[str]:
        """In words."""
        said = f"Before any image was shown again, {self.first} and {self.second} {self.decided}"
        said += f"; of those that both were given at random, they {self.drawn}." if self.drawn.images else "."
        if not self.conflicts:
            return [said]
        rule = "have no label" if self.readers == BOTH else f"are labelled as {self.first} says"
        keys = name_first([key for key, *_ in self.conflicts])
        return [said, f"They differ on {len(self.conflicts):,} now, which {rule}: {keys}"]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        named = [dict(zip(("key", "first", "second"), one, strict=True)) for one in self.conflicts]
        return self._asdict() | {"decided": self.decided.as_dict(), "drawn": self.drawn.as_dict(), "conflicts": named}


def _drawn(entries: Iterable[Entry]) -> set[int]:
    return {entry.group for entry in entries if entry.is_draw and entry.stream is Stream.AUDIT}
