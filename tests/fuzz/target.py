"""What is fuzzed: samples, damage, and a check that knows the right answer."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fuzz.mutators import Mutator, mutate
from fuzz.oracle import one_line
from pucache.errors import PUCacheError


class Input(NamedTuple):
    sample: str  # name of the sample it was made of
    data: bytes


@dataclass(frozen=True)
class Target:
    """One reader of pucache.

    Attributes
    ----------
    name : str
    samples : callable
        Gives name to bytes.
    check : callable
        Takes the sample's name, the input and an empty folder; returns what became of the input, in a
        word. Raises `Wrong` for a wrong answer; any other error but `refusals` is a bug as well.
    refusals : tuple of types
        The errors that this reader may name.
    share : int
        Inputs in every 1,000 of a run over all targets.
    """

    name: str
    samples: Callable[[], dict[str, bytes]]
    check: Callable[[str, bytes, Path], str]
    refusals: tuple[type[Exception], ...]
    share: int
    mutate: Mutator = mutate
    room: Callable[[bytes], int] = lambda data: (96 << 20) + 8 * len(data)

    def input(self, seed: int, number: int) -> Input:
        """Damage a sample; the same seed and number give the same input, for ever."""
        draw = random.Random(f"{self.name} {seed} {number}")
        samples = self.samples()
        name, other = draw.choice(list(samples)), draw.choice(list(samples))
        return Input(name, self.mutate(samples[name], samples[other], draw))

    def outcome(self, sample: str, data: bytes, folder: Path) -> str:
        """Run the check; gives its word, or the name of the error that refused the input."""
        try:
            return self.check(sample, data, folder)
        except self.refusals as error:
            if isinstance(error, PUCacheError):
                one_line(str(error), type(error).__name__)
            return type(error).__name__
