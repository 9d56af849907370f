"""Groups of tasks: classes and topics, whose rows lie together, and attributes and kinds, which cut across these.

The constants of pucache's methods are chosen on four tasks (`CHOSEN_ON`) and on nothing else.
"""

from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

from benchmarks.common import attributes, cifar, fashion, texts
from benchmarks.common.image_classes import ImageClasses, Task

CHOSEN_ON = ("airplane", "cat", "frog", "truck")  # of the first group
CIFAR, FASHION, ATTRIBUTES, TOPICS, KINDS = (
    "cifar classes",
    "fashion classes",
    "attributes",
    "texts by topic",
    "texts by kind",
)
TASKS = {
    CIFAR: cifar.CLASSES,
    FASHION: fashion.CLASSES,
    ATTRIBUTES: tuple(attributes.ATTRIBUTES),
    TOPICS: tuple(texts.TOPICS),
    KINDS: tuple(texts.KINDS),
}
CELL = ("group", "task", "share", "labelled", "seed")  # what identifies a task
CROSSING = (ATTRIBUTES, KINDS)  # groups that cut across classes and topics: neighbours may mislead
CHOICE = (
    "The constants of the neighbours and of the distilled head are chosen on four classes of CIFAR-10 "
    f"({', '.join(CHOSEN_ON)}) and on nothing else; "
    "those of the rule whether neighbours count on smaller piles of all ten classes, of the attributes and of the "
    "texts."
)


@dataclass(frozen=True)
class Location:
    """Where data lie.

    Attributes
    ----------
    cifar, work : Path
        Images of CIFAR-10; where embeddings are kept.
    fashion : Path, optional
        Fashion-MNIST as `fashion.Fashion` takes it; without it, there is no such group.
    quick : bool
        A quarter of the rows.
    """

    cifar: Path
    work: Path
    fashion: Path | None
    quick: bool

    @classmethod
    def of(cls, arguments: Namespace, *, quick: bool = False) -> "Location":
        """Of the arguments of `images_parser`; `quick` takes a quarter of the rows whatever they say."""
        folder = arguments.folder.resolve()
        return cls(folder, arguments.work or folder / "pucache-bench", arguments.fashion, quick or arguments.quick)

    @property
    def prefix(self) -> str:
        """How the names of files of cells begin."""
        return "quick-" if self.quick else ""

    @property
    def options(self) -> str:
        """Of the command line that a page states."""
        return " --fashion SOURCE" * bool(self.fashion) + " --quick" * self.quick


class TaskGroups:
    """Data of groups of tasks at a location, made or read when they are first asked for."""

    def __init__(self, at: Location):
        self.at = at
        self._data: dict[str, ImageClasses | attributes.Attributes | texts.Texts] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The groups there are."""
        return tuple(name for name in TASKS if name != FASHION or self.at.fashion is not None)

    def data(self, group: str):
        """What the tasks of a group are made from."""
        if group not in self._data:
            self._data[group] = self._opened(group)
        return self._data[group]

    def task(self, group: str, task: str, share: float, labelled: int, seed: int) -> Task:
        return self.data(group).one_vs_rest(task, share, labelled, seed)

    def describe(self) -> str:
        """What the rows of the groups are that have been asked for, a sentence each."""
        sentences = {
            CIFAR: "CIFAR-10: 50,000 training and 10,000 test images.",
            FASHION: "Fashion-MNIST: 60,000 training and 10,000 test images.",
            ATTRIBUTES: f"Attributes: {attributes.TRANSFORMED:,} training and {attributes.TRANSFORMED_TEST:,} test "
            "images of CIFAR-10, of all classes, rotated by 90 degrees, tinted, compressed to JPEG quality "
            f"{attributes.QUALITY}, or greyed, among the others as they are.",
        }
        descriptions = [sentence for group, sentence in sentences.items() if group in self._data]
        descriptions += [data.describe() for data in set(self._data.values()) if isinstance(data, texts.Texts)]
        return " ".join(descriptions) + " One in four of all rows is used." * self.at.quick

    def _opened(self, group: str):
        at = self.at
        if group == CIFAR:
            return cifar.Cifar(at.cifar, at.work, quick=at.quick)
        if group == FASHION:
            return fashion.Fashion(at.fashion, at.work, quick=at.quick)
        if group == ATTRIBUTES:
            return attributes.Attributes(self.data(CIFAR), at.work)
        other = KINDS if group == TOPICS else TOPICS  # both are of one set of texts
        return self._data.get(other) or texts.Texts(at.work, quick=at.quick)


@cache
def opened(at: Location) -> TaskGroups:
    """Once in each process."""
    return TaskGroups(at)


def prepared(at: Location, groups: Iterable[str]) -> TaskGroups:
    """Embed what is not embedded yet, before other processes read it."""
    for group in groups:
        opened(at).data(group)
    return opened(at)


def settings(
    groups: Iterable[str], *, shares: Iterable[float], seeds: dict[int, int], names: Iterable[str]
) -> Iterator[dict]:
    """What identifies the tasks of these names in groups, seed by seed; `seeds` by number of labelled rows."""
    for seed, labelled, share, group in product(range(max(seeds.values())), seeds, shares, groups):
        for task in TASKS[group]:
            if task in names and seed < seeds[labelled]:
                yield dict(zip(CELL, (group, task, share, labelled, seed), strict=True))
