"""CIFAR-100 and Glaucoma as the tasks of the paper: a random fifth of the positives is labelled."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.common.cifar import Task
from benchmarks.common.unpack import unpacked
from pucache import EmbeddingCache, load_encoder, open_source
from pucache.embedding.embed import run_embedding
from pucache.errors import SourceError

VEHICLES_100 = {
    8: "bicycle",
    13: "bus",
    41: "lawn_mower",
    48: "motorcycle",
    58: "pickup_truck",
    69: "rocket",
    81: "streetcar",
    85: "tank",
    89: "tractor",
    90: "train",
}  # of the fine labels: the superclasses "vehicles 1" and "vehicles 2"
LABELLED = 0.2  # of the positives to learn from
TRAINED_ON = 0.85  # of the fundus images


def cifar100(folder: Path, work: Path) -> Callable[[int], Task]:
    """Tasks, by seed, of a folder that `unpacked` takes; the classes are named as the makers did.

    Raises
    ------
    SourceError
        As `unpacked`; a class of the positives is missing.
    """
    folder = unpacked(folder, work)
    (X, label), (X_test, label_test) = (
        _embedded(folder / part, work / f"cifar100-{part}.h5") for part in ("train", "test")
    )
    missing = sorted(set(VEHICLES_100.values()) - (set(label) & set(label_test)))
    if missing:
        raise SourceError(
            f"{folder} has no images of {', '.join(missing)}; expected the fine classes of CIFAR-100 by name"
        )
    y, y_test = (np.isin(labels, list(VEHICLES_100.values())) for labels in (label, label_test))
    return lambda seed: Task(X, labelled(y, np.random.default_rng(seed)), y, X_test, y_test)


def glaucoma(folder: Path, work: Path, positive: str = "glaucoma") -> Callable[[int], Task]:
    """Tasks, by seed, of a folder with a folder of images for each of two classes.

    Parameters
    ----------
    folder, work : Path
    positive : str
        The class to find.

    Raises
    ------
    SourceError
        There are other than two folders, or none of that name.
    """
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir() and path.resolve() != work.resolve())
    if len(classes) != 2 or positive not in classes:
        raise SourceError(f"{folder} holds {classes}; expected two folders of images, one of them named {positive!r}")
    X, label = _embedded(folder, work / "glaucoma.h5")
    return lambda seed: divided(X, label == positive, seed)


def divided(X: np.ndarray, y: np.ndarray, seed: int) -> Task:
    """A task of rows that have no test set of their own: 15 % become it, drawn by the seed."""
    draw = np.random.default_rng(seed)
    rows = draw.permutation(len(y))
    train, test = np.split(rows, [round(TRAINED_ON * len(y))])
    return Task(X[train], labelled(y[train], draw), y[train], X[test], y[test])


def labelled(y: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Label one positive in five, (n,) int8."""
    s, positive = np.zeros(len(y), np.int8), np.flatnonzero(y)
    s[draw.choice(positive, round(LABELLED * len(positive)), replace=False)] = 1
    return s


def _embedded(folder: Path, cache: Path) -> tuple[np.ndarray, np.ndarray]:
    run_embedding(open_source(folder), cache, load_encoder())
    rows = EmbeddingCache(cache)
    return np.array(rows.X), np.array([Path(key).parts[-2] for key in rows.keys])
