"""Random images that the second reader of a session gets too, so that the answers of both can be compared.

What the first reader was drawn may not simply be given to the second one: it comes from what the first one had left,
where positives are rarer the more he has found. So a row is drawn from what the second reader has left. Where it could
have been drawn for the first reader too, the next image that was takes its place. Given all that the second reader
knows, that image is as likely to be any row that both had left as the drawn one is, so the draw stays uniform over what
he has left. It must be new to him: one that he has decided or was given is passed over for good.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from pathlib import Path

from .agreement import labelled
from .log import DRAWN, Entry, EpochFacts, Stream
from .session_folder import open_log


class SharedDraws:
    """The random images of a first reader.

    Parameters
    ----------
    entries : sequence of Entry
        Of his log, in order.
    epoch, urns : int
        Number of the present epoch, and of the urns of its pile. Each epoch that goes on with another adds one.
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
