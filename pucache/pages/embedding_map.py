"""A map of some embeddings in two dimensions: principal components, and t-SNE."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.spatial import cKDTree
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

from ..storage.mapped_arrays import take_rows

_COMPONENTS = 50  # that t-SNE looks at
_PERPLEXITY = 30.0
_NEAREST = 10
_LEAST = 5  # rows from which on t-SNE has something to arrange


@dataclass(frozen=True)
class EmbeddingMap:
    """Where rows lie.

    Attributes
    ----------
    rows : ndarray of int64, (m,)
        Of the cache, rising.
    pca : ndarray of float64, (m, 2)
        First two principal components, in [0, 1].
    tsne : ndarray of float64, (m, 2), or None
        In [0, 1]; None where the rows are too few.
    explained : float
        Share of the rows' variance that the two components hold.
    """

    rows: np.ndarray
    pca: np.ndarray
    tsne: np.ndarray | None
    explained: float


def choose_rows(
    labelled: np.ndarray, unlabelled: np.ndarray, ranked: np.ndarray, *, sample: int, seed: int
) -> np.ndarray:
    """Choose the rows of a map: a third labelled, a third top-ranked, the rest unlabelled ones at random.

    Parameters
    ----------
    labelled, unlabelled : ndarray of int64, (p,) and (u,)
        Rows.
    ranked : ndarray of int64
        The highest-ranked of the unlabelled ones, best first.
    sample : int
        How many rows at most, at least 3.
    seed : int

    Returns
    -------
    ndarray of int64, (m,)
        Rising; all rows where they are no more than `sample`.

    Raises
    ------
    ValueError
        `sample` is below 3.
    """
    if sample < 3:
        raise ValueError(f"sample must be at least 3 rows, got {sample}")
    if len(labelled) + len(unlabelled) <= sample:
        return np.union1d(labelled, unlabelled)
    generator = np.random.default_rng(seed)
    third = sample // 3
    positives = generator.permutation(labelled)[:third]
    top = ranked[:third]
    room = sample - len(positives) - len(top)
    # as many as there is room for are left of so many, whichever of them are at the top
    drawn = generator.choice(len(unlabelled), min(len(unlabelled), room + len(top)), replace=False)
    rest = np.setdiff1d(unlabelled[drawn], top)
    rest = generator.permutation(rest)[:room]
    return np.sort(np.concatenate([positives, top, rest]))


def embedding_map(X: np.ndarray, rows: np.ndarray, *, seed: int = 0) -> EmbeddingMap:
    """Lay out rows of X, (n, d); `rows` rise. Equal seeds give equal maps."""
    with threadpool_limits(1):  # several threads add up in no fixed order, and the map would differ from run to run
        components, explained = _principal(take_rows(X, rows).astype(np.float64), seed)
        return EmbeddingMap(rows, _unit_square(components[:, :2]), _neighbours(components, seed), explained)


def company(places: np.ndarray, labelled: np.ndarray, likely: np.ndarray) -> tuple[float, float]:
    """Share of likely points among the nearest ten of each labelled one, and among all.

    Parameters
    ----------
    places : ndarray, (m, 2)
    labelled, likely : ndarray of bool, (m,)
        At least one point is labelled.
    """
    near = min(_NEAREST + 1, len(places))
    _, found = cKDTree(places).query(places[labelled], near)
    own = np.flatnonzero(labelled)[:, None]
    others = found.reshape(len(own), near) != own
    return float(likely[found.reshape(len(own), near)][others].mean()), float(likely.mean())


def _principal(X: np.ndarray, seed: int) -> tuple[np.ndarray, float]:
    """Coordinates of the leading components, (m, at least 2), and the share of variance of the first two."""
    count = min(_COMPONENTS, *X.shape)
    pca = PCA(count, svd_solver="full" if max(X.shape) < 500 else "randomized", random_state=seed)
    with np.errstate(invalid="ignore"):  # of rows that are all alike
        found = pca.fit_transform(X)
        explained = float(np.nan_to_num(pca.explained_variance_ratio_[:2]).sum())
    return np.pad(found, ((0, 0), (0, max(0, 2 - count)))), explained


def _neighbours(components: np.ndarray, seed: int) -> np.ndarray | None:
    if len(components) < _LEAST or not np.ptp(components, axis=0).any():
        return None
    perplexity = min(_PERPLEXITY, (len(components) - 1) / 3)
    start = components[:, :2] / max(float(components[:, 0].std()), 1e-12) * 1e-4
    found = TSNE(perplexity=perplexity, init=start.astype(np.float32), random_state=seed).fit_transform(components)
    return _unit_square(found)


def _unit_square(places: np.ndarray) -> np.ndarray:
    """Shift and scale each axis into [0, 1]; four decimals."""
    low, width = places.min(0), np.ptp(places, axis=0)
    scaled = np.where(width > 0, (places - low) / np.where(width > 0, width, 1), 0.5)
    return np.asarray(np.round(scaled, 4), np.float64)
