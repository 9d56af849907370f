"""How two readers of the same images agree: Cohen's kappa with an interval, and the images on which they differ."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

LEAST = 10  # pictures that kappa is stated of
_DRAWS = 20_000  # of its interval


class Concordance(NamedTuple):
    """Pictures that both readers labelled, before any was shown again."""

    both_positive: int
    first_positive: int  # the first reader alone
    second_positive: int
    both_negative: int

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
        answers agree, and reaches to the kappa of the answers themselves.
        """
        if self.images < LEAST or self.images in (self.both_positive, self.both_negative):
            return None
        cells = np.random.default_rng(0).dirichlet(np.add(self, 0.5), _DRAWS)
        low, high = np.quantile(_kappa(cells), (0.025, 0.975)).tolist()
        value = float(_kappa(np.array([self]) / self.images)[0])
        return value, min(low, value), max(high, value)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        value, low, high = self.kappa() or (None, None, None)
        share = self.agreed / self.images if self.images else None
        rest = {"images": self.images, "share": share, "kappa": value, "kappa_low": low, "kappa_high": high}
        return self._asdict() | rest

    def __str__(self) -> str:
        said = f"agreed on {self.agreed:,} of {self.images:,}"
        said += f" ({100 * self.agreed / self.images:.1f} %)" if self.images else ""
        kappa = self.kappa()
        return said if kappa is None else said + ", Cohen's kappa {:.2f} (95 %: {:.2f} to {:.2f})".format(*kappa)


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
    joined: bool = True  # whether the labels are those of both: where they differ there is none

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        named = [dict(zip(("key", "first", "second"), one, strict=True)) for one in self.conflicts]
        return self._asdict() | {"decided": self.decided.as_dict(), "drawn": self.drawn.as_dict(), "conflicts": named}
