"""Two-dimensional map of embeddings: principal components and t-SNE."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.spatial import cKDTree
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

from ..storage.rows import RowMatrix, take_rows

_COMPONENTS = 50  # principal components that t-SNE works on
_PERPLEXITY = 30.0
_ITERATIONS = 500  # of t-SNE; the divergence at 400 to 2,000 photographs is within 5 % of that after 1,000
_NEAREST = 10  # neighbours in `shares_of_likely`
_MIN_ROWS = 5  # for t-SNE


@dataclass(frozen=True)
class EmbeddingMap:
    """Positions of rows in two dimensions."""

    rows: np.ndarray  # of the cache, ascending, int64 (m,)
    pca: np.ndarray  # first two principal components, in [0, 1], float64 (m, 2)
    tsne: np.ndarray | None  # in [0, 1], float64 (m, 2); None where the rows are too few
    explained: float  # share of the variance along the two components


def choose_rows(
    labelled: np.ndarray, unlabelled: np.ndarray, ranked: np.ndarray, *, sample: int, seed: int
) -> np.ndarray:
    """Sample at most `sample` rows of a map, ascending: a third labelled, a third top-ranked, the rest random.

    `labelled` and `unlabelled` are rows, int64; `ranked` are unlabelled rows, best first. A cache of at most `sample`
    rows is taken whole.
    """
    if len(labelled) + len(unlabelled) <= sample:
        return np.union1d(labelled, unlabelled)
    generator = np.random.default_rng(seed)
    third = sample // 3
    positives = generator.permutation(labelled)[:third]
    top = ranked[:third]
    remaining = sample - len(positives) - len(top)
    # top-ranked rows among the drawn ones are dropped below, so draw len(top) more
    drawn = generator.choice(len(unlabelled), min(len(unlabelled), remaining + len(top)), replace=False)
    rest = np.setdiff1d(unlabelled[drawn], top)
    rest = generator.permutation(rest)[:remaining]
    return np.sort(np.concatenate([positives, top, rest]))


def embedding_map(X: RowMatrix, rows: np.ndarray, *, seed: int = 0) -> EmbeddingMap:
    """Map rows (int64, ascending) of X, (n, d), by principal components and t-SNE; equal seeds give equal maps."""
    seed %= 1 << 32  # the largest that scikit-learn takes
    with threadpool_limits(1):  # the order of sums varies with threads, and t-SNE amplifies the rounding
        components, explained = _principal(take_rows(X, rows).astype(np.float64), seed)
        return EmbeddingMap(rows, _unit_square(components[:, :2]), _tsne(components, seed), explained)


def shares_of_likely(points: np.ndarray, labelled: np.ndarray, likely: np.ndarray) -> tuple[float, float]:
    """Share of likely positives among the ten nearest neighbours of labelled points, and among all points.

    `points` is (m, 2); `labelled` and `likely` are bool, (m,), and at least one point is labelled.
    """
    k = min(_NEAREST + 1, len(points))
    _, indices = cKDTree(points).query(points[labelled], k)
    own = np.flatnonzero(labelled)[:, None]
    nearest = indices.reshape(len(own), k)
    return float(likely[nearest][nearest != own].mean()), float(likely.mean())


def _principal(X: np.ndarray, seed: int) -> tuple[np.ndarray, float]:
    """Coordinates of the leading components, (m, at least 2), and the share of variance of the first two."""
    count = min(_COMPONENTS, *X.shape)
    pca = PCA(count, svd_solver="full" if max(X.shape) < 500 else "randomized", random_state=seed)
    with np.errstate(invalid="ignore"):  # rows may all be equal
        coordinates = pca.fit_transform(X)
        explained = float(np.nan_to_num(pca.explained_variance_ratio_[:2]).sum())
    return np.pad(coordinates, ((0, 0), (0, max(0, 2 - count)))), explained


def _tsne(components: np.ndarray, seed: int) -> np.ndarray | None:
    """Positions by t-SNE, (m, 2); None for too few rows, or rows that are all equal."""
    if len(components) < _MIN_ROWS or not np.ptp(components, axis=0).any():
        return None
    perplexity = min(_PERPLEXITY, (len(components) - 1) / 3)
    initial = components[:, :2] / max(float(components[:, 0].std()), 1e-12) * 1e-4
    tsne = TSNE(perplexity=perplexity, max_iter=_ITERATIONS, init=initial.astype(np.float32), random_state=seed)
    return _unit_square(tsne.fit_transform(components))


def _unit_square(points: np.ndarray) -> np.ndarray:
    """Shift and scale each axis into [0, 1]; four decimals."""
    low, width = points.min(0), np.ptp(points, axis=0)
    scaled = np.where(width > 0, (points - low) / np.where(width > 0, width, 1), 0.5)
    return np.asarray(np.round(scaled, 4), np.float64)
