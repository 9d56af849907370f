"""Piles with few labels, and the held-out margins of pucache on them, for `benchmarks.quality.prior`.

Margins take seconds for each pile, intervals a fraction of one: margins are computed once and kept.
"""

import json
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.common.attributes import Attributes
from benchmarks.common.environment import commit
from benchmarks.common.tasks import ATTRIBUTES, CIFAR, FASHION, KINDS, TASKS, TOPICS, TaskGroups
from benchmarks.common.texts import Texts
from pucache import PULinearClassifier
from pucache.storage.atomic import replacing

# half of the piles are of CIFAR-10, a fifth of Fashion-MNIST, a tenth of each of the others
GROUPS = (CIFAR, FASHION, CIFAR, ATTRIBUTES, CIFAR, TOPICS, CIFAR, FASHION, CIFAR, KINDS)
ROWS, SHARES = (1000, 1500, 3000), (0.01, 0.25)
DIM, PCA_ROWS = 256, 5000  # of embeddings of images, so that a fit takes a third of the time


@dataclass(frozen=True)
class Pile:
    """Rows of one pile; the labelled ones come first, then the hidden positives.

    Attributes
    ----------
    group, task : str
        As in `benchmarks.common.tasks`.
    rows : ndarray of int64, (n,)
        Rows of the task's rows.
    labelled, hidden : int
    """

    group: str
    task: str
    rows: np.ndarray
    labelled: int
    hidden: int

    @property
    def s(self) -> np.ndarray:
        return (np.arange(len(self.rows)) < self.labelled).astype(np.int8)

    @property
    def share(self) -> float:
        """Of positives among the unlabelled."""
        return self.hidden / (len(self.rows) - self.labelled)


@dataclass(frozen=True)
class Margins:
    """Held-out margins of one pile.

    Attributes
    ----------
    task : str
    group : str
    share : float
        Of positives among the unlabelled.
    commit : str
        Of the code that trained.
    seconds : float
        CPU time of the fit.
    margins : dict of str to ndarray of float32, (n,)
        Of the method by default, and of the classifier alone, ``linear``.
    s : ndarray of int8, (n,)
    """

    task: str
    group: str
    share: float
    commit: str
    seconds: float
    margins: dict[str, np.ndarray]
    s: np.ndarray


def reduced(X: np.ndarray) -> np.ndarray:
    """The first `DIM` principal components, of evenly spaced rows; float16, (n, DIM)."""
    sample = X[:: max(len(X) // PCA_ROWS, 1)].astype(np.float32)
    mean = sample.mean(axis=0)
    directions = np.linalg.eigh(np.cov(sample.T))[1][:, : -DIM - 1 : -1].astype(np.float32)
    return np.concatenate([(rows - mean) @ directions for rows in np.array_split(X, 10)]).astype(np.float16)


@cache
def task_groups(source: Path, work: Path, fashion: Path | None) -> TaskGroups:
    return TaskGroups(source, work, fashion_source=fashion)


@cache
def task_rows(groups: TaskGroups, group: str, task: str) -> tuple[np.ndarray, np.ndarray]:
    """Training rows of a task, (n, 256), and which are positive, (n,)."""
    data = groups.data(group)
    if isinstance(data, Attributes):
        negatives, positives, *_ = data.base(task)
        X = np.concatenate([positives, negatives])
        return reduced(X), np.arange(len(X)) < len(positives)
    if isinstance(data, Texts):
        return data.X[~data.test], data.labels[task][~data.test]
    return reduced_rows(groups, group), data.label == task


@cache
def reduced_rows(groups: TaskGroups, group: str) -> np.ndarray:
    """Reduced embeddings of all images of a group of classes."""
    return reduced(groups.data(group).X)


def task_of(number: int, names: tuple[str, ...]) -> tuple[str, str]:
    """Group and task of a pile."""
    group = GROUPS[number % len(GROUPS)]
    group = group if group in names else CIFAR
    earlier = GROUPS[: number % len(GROUPS)].count(group) + GROUPS.count(group) * (number // len(GROUPS))
    return group, TASKS[group][earlier % len(TASKS[group])]


def draw_pile(groups: TaskGroups, labelled: int, number: int) -> Pile:
    """Draw a pile, one and the same for one number."""
    draw = np.random.default_rng([labelled, number])
    unlabelled = ROWS[draw.integers(len(ROWS))]
    share = np.exp(draw.uniform(*np.log(SHARES)))
    group, task = task_of(number, groups.names)
    y = task_rows(groups, group, task)[1]
    positive, rest = (draw.permutation(np.flatnonzero(y == value)) for value in (True, False))
    hidden = min(max(1, round(share * unlabelled)), len(positive) - labelled)
    rows = np.concatenate([positive[: labelled + hidden], rest[: unlabelled - hidden]])
    return Pile(group=group, task=task, rows=rows, labelled=labelled, hidden=hidden)


def held_out(
    source: Path, work: Path, fashion: Path | None, labelled: int, number: int, *, fresh: bool = False
) -> Margins:
    """Margins of a pile: those of an earlier run, of this commit or of whatever commit, or of a fit."""
    folder = work / ("prior-margins" if fashion else "prior-margins-without-fashion")
    folder = folder / (commit() or "unknown") if fresh else folder
    path = folder / f"{labelled:03}-{number:04}.npz"
    if not path.exists():
        _fit(task_groups(source, work, fashion), path, labelled, number)
    with np.load(path) as stored:
        margins = {name: stored[name] for name in ("default", "linear")}
        return Margins(**json.loads(str(stored["pile"])), margins=margins, s=stored["s"])


def _fit(groups: TaskGroups, path: Path, labelled: int, number: int) -> None:
    pile = draw_pile(groups, labelled, number)
    X = task_rows(groups, pile.group, pile.task)[0][pile.rows]
    began = time.process_time()
    model = PULinearClassifier(random_state=number).fit(X, pile.s)
    described = {
        "task": pile.task,
        "group": pile.group,
        "share": pile.share,
        "commit": commit() or "unknown",
        "seconds": time.process_time() - began,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(
            stream,
            default=model.held_out_margins_,
            linear=model.classifier_margins_,
            s=pile.s,
            pile=json.dumps(described),
        )
