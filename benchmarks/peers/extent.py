"""What is run in a comparison: data sets, tasks, learners by their pace, and limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.peers.learners import LEARNERS

if TYPE_CHECKING:
    from benchmarks.common.cifar import Cifar, Task

CLASSES, LABELLED, SHARE, SEED = ("airplane", "cat", "frog", "truck"), 100, 0.05, 0
AUTHORS, FOOTWEAR, CEILING = "1:10", "footwear 1:10", "supervised ceiling"
BUSY = 2  # processes


@dataclass(frozen=True)
class Extent:
    """How much is run.

    Attributes
    ----------
    tasks : dict of str to tuple of str
        By the pace of a learner.
    images : int
        To embed.
    ceiling : bool
        Whether a head is trained on the true labels too.
    """

    tasks: dict[str, tuple[str, ...]]
    images: int
    ceiling: bool = True

    def of(self, name: str) -> tuple[str, ...]:
        """Tasks of a learner or of the ceiling."""
        if name == CEILING:
            return self.tasks["fast"] if self.ceiling else ()
        return self.tasks[LEARNERS[name].pace]

    def without(self, task: str) -> Extent:
        kept = {pace: tuple(one for one in tasks if one != task) for pace, tasks in self.tasks.items()}
        return Extent(kept, self.images, self.ceiling)


ALL, THREE = (AUTHORS, *CLASSES, FOOTWEAR), (AUTHORS, CLASSES[-1], FOOTWEAR)
FULL = Extent({"quick": ALL, "fast": ALL, "slow": THREE, "slowest": CLASSES[-1:]}, 2000)
SHORT = Extent({"quick": THREE, "fast": THREE, "slow": (AUTHORS,), "slowest": CLASSES[-1:]}, 384)
QUICK = Extent({"quick": (AUTHORS,), "fast": (), "slow": (), "slowest": ()}, 192, ceiling=False)
LIMIT = 600  # seconds of one process


@dataclass(frozen=True)
class Sources:
    """Data sets of the tasks; `footwear` is None without Fashion-MNIST."""

    cifar: Cifar
    footwear: Task | None = None

    def task(self, name: str) -> Task:
        if name == FOOTWEAR:
            assert self.footwear is not None
            return self.footwear
        return self.cifar.authors() if name == AUTHORS else self.cifar.one_vs_rest(name, SHARE, LABELLED, SEED)
