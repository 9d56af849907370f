"""Images that open tabs hold, so that no other tab is given them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

SILENCE = 600.0  # seconds after which the images of a silent tab are free again


@dataclass
class _Tab:
    heard: float
    groups: set[int] = field(default_factory=set)


class Reservations:
    """Groups of images by the tab that holds them; a group has one holder at most.

    Parameters
    ----------
    silence : float
        Seconds after which a silent tab loses what it holds.
    now : callable
        Time in seconds, from any origin.
    """

    def __init__(self, *, silence: float = SILENCE, now: Callable[[], float] = time.monotonic):
        self._silence, self._now = silence, now
        self._tabs: dict[str, _Tab] = {}
        self._holder: dict[int, str] = {}

    def __contains__(self, group: int) -> bool:
        return group in self._holder

    @property
    def groups(self) -> np.ndarray:
        """Groups that any tab holds, int64 (m,)."""
        return np.fromiter(self._holder, np.int64, len(self._holder))

    def heard(self, tab: str) -> None:
        """Note that a tab is alive, and free what silent tabs hold."""
        time_now = self._now()
        self._tabs.setdefault(tab, _Tab(time_now)).heard = time_now
        for silent in [name for name, other in self._tabs.items() if time_now - other.heard > self._silence]:
            self.release(silent)

    def keep_only(self, tab: str, groups: Iterable[int]) -> None:
        """Free what a tab holds besides these groups; take those of them that nobody holds."""
        self.heard(tab)
        kept = set(groups)
        for group in self._tabs[tab].groups - kept:
            del self._holder[group]
        self._tabs[tab].groups &= kept
        for group in kept - self._tabs[tab].groups:
            self.take(tab, group)

    def take(self, tab: str, group: int) -> bool:
        """Let a tab hold a group; False where another one holds it."""
        if self._holder.setdefault(group, tab) != tab:
            return False
        self._tabs[tab].groups.add(group)
        return True

    def release(self, tab: str) -> None:
        """Free all that a tab holds, when it closes."""
        gone = self._tabs.pop(tab, None)
        for group in gone.groups if gone else ():
            del self._holder[group]
