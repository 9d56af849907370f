"""Entries of the decision log: random draws and decisions, in one order.

The log is the truth of a sitting. Labels, counts and the audit follow from its entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Choice(StrEnum):
    """What a reviewer decided about an image."""

    POSITIVE = "positive"
    NEGATIVE = "negative"
    SKIP = "skip"
    UNDONE = "undone"  # takes the decision back that it replaces

    @property
    def is_label(self) -> bool:
        """Whether it says what the image is."""
        return self in (Choice.POSITIVE, Choice.NEGATIVE)


class Stream(StrEnum):
    """Why an image was shown."""

    RANKED = "ranked"  # high in the ranking
    AUDIT = "audit"  # drawn at random from all unknown rows
    RECHECK = "recheck"  # a known positive, shown again to see whether it is recognised


@dataclass(frozen=True)
class Draw:
    """A random draw, written before anybody sees the image.

    Attributes
    ----------
    serial : int
        Position in the log, which draws and decisions share; ascending from 1.
    row : int
        Row of the cache.
    group : int
        Smallest row of the images that show the same picture and share their label.
    copies : int
        Rows of the pile in that group.
    stream : Stream
        AUDIT or RECHECK.
    unknown : int
        Rows of the pile that were neither decided nor drawn before: n_i. The draw was uniform over these.
    positives : int
        Rows of the pile that were known as positive: f_i, as far as it was known then.
    expected : float
        Share of positives among the unknown rows by the model, Σp / n_i; NaN without a model.
    model_version : int
        Serial number of the last entry that the model has seen; 0 without a model.
    time : float
        Seconds since the epoch.
    """

    serial: int
    row: int
    group: int
    copies: int
    stream: Stream
    unknown: int
    positives: int
    expected: float
    model_version: int
    time: float


@dataclass(frozen=True)
class Decision:
    """A decision of a reviewer, written before it is acknowledged.

    Attributes
    ----------
    serial : int
        Position in the log.
    request : str
        Identifier that the client chose; a second entry with it is refused, so that a request can be repeated.
    row, group, copies : int
        As for `Draw`. All rows of the group get the label.
    choice : Choice
    stream : Stream
    replaces : int
        Serial number of the decision on this group that was in force; 0: none.
    unknown, positives : int
        Counts before the decision, as for `Draw`.
    model_version : int
        Of the ranking that showed the image.
    reviewer : str
    time : float
    """

    serial: int
    request: str
    row: int
    group: int
    copies: int
    choice: Choice
    stream: Stream
    replaces: int
    unknown: int
    positives: int
    model_version: int
    reviewer: str
    time: float


Entry = Draw | Decision


@dataclass(frozen=True)
class Proposal:
    """A decision as a client sends it.

    Attributes
    ----------
    request : str
        Identifier that the client chose; sent again, it gets the same answer.
    row : int
        Row of the cache.
    choice : Choice
        UNDONE takes back the decision named by `replaces`. What that one replaced is in force again.
    replaces : int
        Serial number of the decision that the client knows to be in force; 0: none.
    reviewer : str
    model_version : int
        Of the ranking that showed the image.
    """

    request: str
    row: int
    choice: Choice
    replaces: int = 0
    reviewer: str = ""
    model_version: int = 0
