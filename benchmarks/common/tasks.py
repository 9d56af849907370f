"""Groups of tasks: classes and topics, whose rows lie together, and attributes and kinds, which cut across these.

The constants of pucache's methods are chosen on four tasks (`CHOSEN_ON`) and on nothing else.
"""

from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Protocol

from benchmarks.common import attributes, cifar, fashion, texts
from benchmarks.common.image_classes import Task

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
CROSSING = (ATTRIBUTES, KINDS)  # groups that cut across classes and topics: neighbours may mislead
CHOICE = (
    "The constants of the neighbours and of the distilled head are chosen on four classes of CIFAR-10 "
    f"({', '.join(CHOSEN_ON)}) and on nothing else; "
    "those of the rule whether neighbours count on smaller piles of all ten classes, of the attributes and of the "
    "texts."
)


class Data(Protocol):
    """What tasks are made from."""

    def one_vs_rest(self, name: str, share: float, labelled: int, seed: int) -> Task:
        """One kind of rows hidden, at a share of the unlabelled, among all others."""
        ...


@dataclass(frozen=True)
class Setting:
    """What identifies a task: names are also those of the columns of a table of cells."""

    group: str
    task: str
    share: float
    labelled: int
    seed: int


class TaskGroups:
    """Data of groups of tasks, made or read when they are first asked for.

    Parameters
    ----------
    cifar_folder, work : Path
        Images of CIFAR-10; where embeddings are kept.
    fashion_source : Path, optional
        Fashion-MNIST as `fashion.Fashion` takes it; without it, there is no such group.
    quick : bool
        A quarter of the rows.
    """

    def __init__(self, cifar_folder: Path, work: Path, *, fashion_source: Path | None = None, quick: bool = False):
        self.cifar_folder, self.work, self.quick = cifar_folder, work, quick
        self.fashion_source = fashion_source
        self._data: dict[str, Data] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The groups there are."""
        return tuple(name for name in TASKS if name != FASHION or self.fashion_source is not None)

    @property
    def prefix(self) -> str:
        """How the names of files of cells begin."""
        return "quick-" if self.quick else ""

    def data(self, group: str) -> Data:
        """What the tasks of a group are made from."""
        if group not in self._data:
            self._data[group] = self._opened(group)
        return self._data[group]

    def task(self, setting: Setting) -> Task:
        return self.data(setting.group).one_vs_rest(setting.task, setting.share, setting.labelled, setting.seed)

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
        return " ".join(descriptions) + " One in four of all rows is used." * self.quick

    def _opened(self, group: str) -> Data:
        if group == CIFAR:
            return cifar.Cifar(self.cifar_folder, self.work, quick=self.quick)
        if group == FASHION:
            if self.fashion_source is None:
                raise ValueError(f"{group} need the images of Fashion-MNIST: pass --fashion")
            return fashion.Fashion(self.fashion_source, self.work, quick=self.quick)
        if group == ATTRIBUTES:
            images = self.data(CIFAR)
            assert isinstance(images, cifar.Cifar)
            return attributes.Attributes(images, self.work)
        other = KINDS if group == TOPICS else TOPICS  # both are of one set of texts
        return self._data.get(other) or texts.Texts(self.work, quick=self.quick)


@dataclass(frozen=True)
class Location:
    """Where data lie; the arguments of `TaskGroups`."""

    cifar: Path
    work: Path
    fashion: Path | None
    quick: bool

    @classmethod
    def of(cls, arguments: Namespace, *, quick: bool = False) -> "Location":
        """Of the arguments of `images_parser`; `quick` takes a quarter of the rows whatever they say."""
        folder = arguments.folder.resolve()
        work = arguments.work or folder / "pucache-bench"
        return cls(folder, work, arguments.fashion, quick or arguments.quick)


@cache
def opened(at: Location) -> TaskGroups:
    """Once in each process."""
    return TaskGroups(at.cifar, at.work, fashion_source=at.fashion, quick=at.quick)


def prepared(at: Location, groups: Iterable[str]) -> TaskGroups:
    """Embed what is not embedded yet, before other processes read it."""
    for group in groups:
        opened(at).data(group)
    return opened(at)


def settings(
    groups: Iterable[str],
    *,
    shares: Iterable[float],
    seeds: dict[int, int],
    names: Iterable[str] | None = None,
) -> Iterator[Setting]:
    """All tasks of groups, seed by seed, so that what is cut off is whole but for the last seeds.

    Parameters
    ----------
    groups : iterable of str
    shares : iterable of float
    seeds : dict of int to int
        Number of seeds by number of labelled rows.
    names : iterable of str, optional
        These tasks only.
    """
    groups, shares, wanted = tuple(groups), tuple(shares), None if names is None else set(names)
    for seed in range(max(seeds.values())):
        for labelled, share, group in product(seeds, shares, groups):
            if seed >= seeds[labelled]:
                continue
            for task in TASKS[group]:
                if wanted is None or task in wanted:
                    yield Setting(group, task, share, labelled, seed)
