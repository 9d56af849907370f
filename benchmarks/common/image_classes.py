"""One-vs-rest tasks on images of labelled classes: embeddings by pucache's default encoder, computed once."""

import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from pucache import EmbeddingCache, load_encoder, open_source
from pucache.embedding.embed import EmbedOptions, run_embedding
from pucache.errors import CacheLockedError
from pucache.storage.table_writer import write_rows

QUICK = 4  # the small version takes every image whose index this divides


def embedded(source: Path, cache: Path, reuse: Path | None = None) -> EmbeddingCache:
    """Embeddings of images by the default encoder; waits while another process makes or checks them.

    Those that the cache `reuse` has are taken from it, if it is there.
    """
    options = EmbedOptions(reuse=[reuse] if reuse is not None and reuse.exists() else [])
    while True:
        try:
            run_embedding(open_source(source), cache, load_encoder(), options=options)
        except CacheLockedError:
            time.sleep(1)
        else:
            return EmbeddingCache(cache)


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

    @property
    def deploy_prior(self) -> float:
        """True share of positives among the test rows."""
        return float(self.y_test.mean())

    @cached_property
    def unlabelled(self) -> np.ndarray:
        return self.X[self.s == 0]

    @property
    def hidden(self) -> np.ndarray:
        """Which of the unlabelled rows are positive."""
        return self.y[self.s == 0]


def one_vs_rest_rows(
    y: np.ndarray, *, share: float, labelled: int, draw: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a pile with all negatives and few positives.

    Parameters
    ----------
    y : ndarray of bool, (n,)
    share : float
        Of positives among the unlabelled, in (0, 1).
    labelled : int
    draw : Generator

    Returns
    -------
    pile : ndarray of bool, (n,)
        The rows that the task has.
    s : ndarray of int8, (n,)

    Raises
    ------
    ValueError
        There are too few positives.
    """
    positive = draw.permutation(np.flatnonzero(y))
    hidden = round(share / (1 - share) * np.count_nonzero(~y))
    if labelled + hidden > len(positive):
        raise ValueError(f"the task needs {labelled} labelled and {hidden} hidden positives, there are {len(positive)}")
    pile, s = ~y, np.zeros(len(y), np.int8)
    pile[positive[: labelled + hidden]], s[positive[:labelled]] = True, 1
    return pile, s


class ImageClasses:
    """Embeddings and classes of the training and of the test images, in the order of their keys.

    Parameters
    ----------
    folder : Path
        Holds train/<class>/<index>.png and test/<class>/<index>.png.
    work : Path
        Where the caches are kept.
    quick : bool
        One image in `QUICK`.

    Attributes
    ----------
    folder : Path
    train : EmbeddingCache
        Of the training images.
    """

    classes: tuple[str, ...]
    prefix: str  # of the caches' names
    quick_prefix: str

    def __init__(self, folder: Path, work: Path, *, quick: bool = False):
        work.mkdir(parents=True, exist_ok=True)
        self.folder, self.part = folder, QUICK if quick else 1
        self.train, test = (self._embedded(work, name) for name in ("train", "test"))
        self.encoder = str(self.train.encoder)
        self.keys, self.keys_test = list(self.train.keys), list(test.keys)
        self.X, self.X_test = np.array(self.train.X), np.array(test.X)
        self.label, self.label_test = (
            np.array([key.split("/")[-2] for key in keys]) for keys in (self.keys, self.keys_test)
        )

    def _embedded(self, work: Path, name: str) -> EmbeddingCache:
        source, cache = self.folder / name, work / f"{self.prefix}-{name}.h5"
        if self.part == 1:
            return embedded(source, cache)
        keys = [f"{path.parent.name}/{path.name}" for path in sorted(source.glob("*/*.png"))]
        kept = [key for key in keys if int(Path(key).stem) % self.part == 0]
        manifest = write_manifest(work / f"{self.quick_prefix}-{name}.csv", source, kept)
        return embedded(manifest, work / f"{self.quick_prefix}-{name}.h5", reuse=cache)

    def one_vs_rest(self, name: str, share: float, labelled: int, seed: int) -> Task:
        """One class hidden, at a share of the unlabelled, among all images of the others."""
        draw = np.random.default_rng([self.classes.index(name), round(1000 * share), labelled, seed])
        pile, s = one_vs_rest_rows(self.label == name, share=share, labelled=labelled, draw=draw)
        return self.task(pile, s, np.array([name]))

    def first_of_each(self, positives: tuple[str, ...], *, hidden: int, labelled: int) -> Task:
        """All images of the other classes; of each of `positives` the first `hidden`, then the next, labelled."""
        pile, s = np.isin(self.label, positives, invert=True), np.zeros(len(self.label), np.int8)
        for name in positives:
            rows = np.flatnonzero(self.label == name)[: (hidden + labelled) // self.part]
            pile[rows], s[rows[hidden // self.part :]] = True, 1
        return self.task(pile, s, np.array(positives))

    def task(self, pile: np.ndarray, s: np.ndarray, positives: np.ndarray) -> Task:
        y, y_test = np.isin(self.label, positives), np.isin(self.label_test, positives)
        return Task(self.X[pile], s[pile], y[pile], self.X_test, y_test)


def write_manifest(path: Path, folder: Path, keys: list[str]) -> Path:
    write_rows(path, [["key", "path"], *([key, folder / key] for key in keys)])
    return path
