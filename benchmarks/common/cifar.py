"""CIFAR-10 tasks: embeddings by pucache's default encoder, computed once, and the positive classes.

The folder holds train/<class>/<index>.png and test/<class>/<index>.png, `index` being the place in the
original batches; or those batches themselves, ``cifar-10-batches-py``, see `unpack.py`.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from benchmarks.common.unpack import unpacked
from pucache import EmbeddingCache, load_encoder, open_source
from pucache.embedding.embed import run_embedding
from pucache.storage.tables import table_writer

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
VEHICLES = ("airplane", "automobile", "ship", "truck")
LABELLED, HIDDEN = 150, 600  # of each class of vehicles, in the authors' task
QUICK = 4  # the small version takes every image whose index this divides


@dataclass(frozen=True)
class Task:
    """Rows to learn from and rows to be tested on.

    Attributes
    ----------
    X : ndarray of float16, (n, d)
    s : ndarray of int8, (n,)
    y : ndarray of bool, (n,)
    X_test : ndarray of float16, (m, d)
    y_test : ndarray of bool, (m,)
    """

    X: np.ndarray
    s: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray

    @property
    def prior(self) -> float:
        """True share of positives among the unlabelled."""
        return float(self.y[self.s == 0].mean())

    @cached_property
    def unlabelled(self) -> np.ndarray:
        return self.X[self.s == 0]

    @property
    def hidden(self) -> np.ndarray:
        """Which of the unlabelled rows are positive."""
        return self.y[self.s == 0]


class Cifar:
    """Embeddings and classes of the training and of the test images, in the order of their keys.

    Parameters
    ----------
    folder, work : Path
        The images, or the original batches; where the caches are kept.
    quick : bool
        One image in `QUICK`.

    Attributes
    ----------
    folder : Path
        The images.
    train : EmbeddingCache
        Of the training images.
    """

    def __init__(self, folder: Path, work: Path, *, quick: bool = False):
        work.mkdir(parents=True, exist_ok=True)
        self.folder, self.part = unpacked(folder, work), QUICK if quick else 1
        self.train, test = (self._embedded(work, name) for name in ("train", "test"))
        self.encoder = str(self.train.encoder)
        self.keys, self.keys_test = list(self.train.keys), list(test.keys)
        self.X, self.X_test = np.array(self.train.X), np.array(test.X)
        self.label, self.label_test = (
            np.array([key.split("/")[-2] for key in keys]) for keys in (self.keys, self.keys_test)
        )

    def _embedded(self, work: Path, name: str) -> EmbeddingCache:
        source, cache = self.folder / name, work / f"suite-{name}.h5"
        if self.part > 1:
            keys = [f"{path.parent.name}/{path.name}" for path in sorted(source.glob("*/*.png"))]
            kept = [key for key in keys if int(Path(key).stem) % self.part == 0]
            source, cache = write_manifest(work / f"quick-{name}.csv", source, kept), work / f"quick-{name}.h5"
        run_embedding(open_source(source), cache, load_encoder())
        return EmbeddingCache(cache)

    def authors(self) -> Task:
        """The authors' 1:10 task: of each class of vehicles the first 750 by index, the last 150 of them labelled."""
        pile, s = np.isin(self.label, VEHICLES, invert=True), np.zeros(len(self.label), np.int8)
        for name in VEHICLES:
            rows = np.flatnonzero(self.label == name)[: (HIDDEN + LABELLED) // self.part]
            pile[rows], s[rows[HIDDEN // self.part :]] = True, 1
        return self._task(pile, s, np.array(VEHICLES))

    def balanced(self, labelled: int, seed: int) -> Task:
        """All images, and so many vehicles labelled at random: the task of most other papers."""
        positive, s = np.flatnonzero(np.isin(self.label, VEHICLES)), np.zeros(len(self.label), np.int8)
        s[np.random.default_rng(seed).choice(positive, labelled // self.part, replace=False)] = 1
        return self._task(np.ones(len(s), bool), s, np.array(VEHICLES))

    def one_vs_rest(self, name: str, share: float, labelled: int, seed: int) -> Task:
        """One class hidden, at a share of the unlabelled, among all images of the others."""
        draw = np.random.default_rng([CLASSES.index(name), round(1000 * share), labelled, seed])
        positive, rest = draw.permutation(np.flatnonzero(self.label == name)), self.label != name
        hidden = round(share / (1 - share) * rest.sum())
        pile, s = rest.copy(), np.zeros(len(rest), np.int8)
        pile[positive[: labelled + hidden]], s[positive[:labelled]] = True, 1
        return self._task(pile, s, np.array([name]))

    def _task(self, pile: np.ndarray, s: np.ndarray, positives: np.ndarray) -> Task:
        y, y_test = np.isin(self.label, positives), np.isin(self.label_test, positives)
        return Task(self.X[pile], s[pile], y[pile], self.X_test, y_test)


# --- the authors' task as files, for what embeds in its own way ------------------------------------


def split(folder: Path) -> tuple[list[str], list[str], list[str]]:
    """Keys of the pile, of the labelled positives in it, and of the test set."""
    pile, labelled = [], []
    for directory in sorted((folder / "train").iterdir()):
        keys = [f"train/{directory.name}/{path.name}" for path in sorted(directory.iterdir())]
        if directory.name in VEHICLES:
            keys = keys[: HIDDEN + LABELLED]
            labelled += keys[HIDDEN:]
        pile += keys
    test = [str(path.relative_to(folder)) for path in sorted((folder / "test").glob("*/*.png"))]
    return pile, labelled, test


def write_manifest(path: Path, folder: Path, keys: list[str]) -> Path:
    with path.open("w", newline="") as stream:
        write_row = table_writer(stream)
        write_row(["key", "path"])
        for key in keys:
            write_row([key, folder / key])
    return path


def is_positive(keys) -> np.ndarray:
    return np.array([key.split("/")[-2] in VEHICLES for key in keys])
