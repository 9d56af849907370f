"""What `leads.py` compares: pucache's head and neighbours on a task, and the leads with their settings.

A lead is a function of `Start` and of its setting, and gives scores of the pile and of the test rows.
"""

from collections.abc import Callable
from functools import cached_property, partial
from itertools import product
from pathlib import Path

import faiss
import numpy as np
from scipy.sparse import csr_matrix
from scipy.special import expit, logit
from sklearn.metrics import average_precision_score

from benchmarks.common.cifar import Task
from benchmarks.quality.retrieval import write_rows
from benchmarks.quality.suite import best_f1
from pucache import EmbeddingCache, PULinearClassifier
from pucache.heads.solve import fit_heads
from pucache.neighbours.search import row_search
from pucache.neighbours.whitening import Whitening

NEIGHBOURS, TEMPERATURE, WEIGHT, CLIP = 30, 0.1, 2.0, 1e-3  # of the fused ranking
HEADS = 12  # of bagging
WEIGHTS = ("1 - posterior", "none for the top", "5 for the top tenth", "by log ratio")


def log_odds(share: np.ndarray) -> np.ndarray:
    return logit(share.clip(CLIP, 1 - CLIP))


def graph(cosines: np.ndarray, rows: np.ndarray, n: int) -> csr_matrix:
    """Row-normalised weights exp(cosine / T) of the neighbours, (m, n); a row number of -1 is left out."""
    weights = np.where(rows < 0, 0, np.exp(cosines / TEMPERATURE))
    weights /= weights.sum(1, keepdims=True)
    first = np.arange(0, rows.size + 1, rows.shape[1])
    return csr_matrix((weights.ravel().astype(np.float32), rows.clip(0).ravel(), first), (len(rows), n))


class Start:
    """A task with pucache's head and neighbours.

    Attributes
    ----------
    task : Task
    model : PULinearClassifier
    pile, test : ndarray of float64, (n,) and (m,)
        Log ratios of the head on all rows trained on, and on the test rows.
    """

    def __init__(self, task: Task, work: Path, like: EmbeddingCache):
        self.task, self._work, self._like = task, work, like
        self._clusters: dict[int, Clusters] = {}
        self.model = PULinearClassifier(method="linear").fit(task.X, task.s)
        self.pile, self.test = (self.model.tilt_.log_ratio(self.model.margins(X)) for X in (task.X, task.X_test))

    @property
    def labelled(self) -> np.ndarray:
        return self.task.s == 1

    def posterior(self, log_ratio: np.ndarray) -> np.ndarray:
        """Of each row of the pile; 1 where labelled."""
        return np.where(self.labelled, 1, expit(log_ratio + logit(self.model.prior_)))

    @property
    def held_out(self) -> np.ndarray:
        """Log ratios by heads that did not see the row, (n,)."""
        return self.model.tilt_.log_ratio(self.model.held_out_margins_)

    @cached_property
    def whitened(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the pile and of the test set, at unit norm."""
        rows = Whitening.estimate(write_rows(self._work / "leads.h5", self._like, self.task.X, imported=True))
        pile, test = (rows.whiten(rows.centred_units(X)) for X in (self.task.X, self.task.X_test))
        return pile, test

    @cached_property
    def near(self) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and row numbers of the neighbours of each row of the pile; -1 stands for the row itself."""
        cosines, rows = row_search(self.whitened[0])(self.whitened[0], NEIGHBOURS + 1)
        return cosines, np.where(rows == np.arange(len(rows))[:, None], -1, rows)

    @cached_property
    def near_test(self) -> tuple[np.ndarray, np.ndarray]:
        return row_search(self.whitened[0])(self.whitened[1], NEIGHBOURS)

    @cached_property
    def graph(self) -> csr_matrix:
        return graph(*self.near, len(self.task.X))

    def clusters(self, count: int) -> "Clusters":
        if count not in self._clusters:
            self._clusters[count] = Clusters(*self.whitened, count)
        return self._clusters[count]

    def fused(self, pile: np.ndarray) -> np.ndarray:
        return pile + WEIGHT * log_odds(self.graph @ self.posterior(pile))

    def matched(self, scores: np.ndarray) -> np.ndarray:
        """The head's log ratios, in the order of the scores of another ranking of the pile."""
        matched = np.empty_like(self.pile)
        matched[np.argsort(scores, kind="stable")] = np.sort(self.pile)
        return matched

    def fit(self, X: np.ndarray, X_test: np.ndarray, weights: np.ndarray | None = None):
        """Margins of the pile and of the test rows by heads at the penalty of pucache's, (n, K) and (m, K)."""
        heads = fit_heads(X, self.task.s, weights=weights, penalty=self.model.penalty_)
        return heads.margins(X), heads.margins(X_test)

    def figures(self, pile: np.ndarray, test: np.ndarray) -> dict[str, float]:
        unlabelled, task = ~self.labelled, self.task
        fused = self.fused(self.matched(pile))
        return {
            "AP": average_precision_score(task.hidden, pile[unlabelled]),
            "AP fused": average_precision_score(task.hidden, fused[unlabelled]),
            "AP new": average_precision_score(task.y_test, test),
            "F1 new": best_f1(task.y_test, test),
        }


class Clusters:
    """k-means of whitened rows of the pile, and of those of the test set by the same means."""

    def __init__(self, pile: np.ndarray, test: np.ndarray, count: int):
        means = faiss.Kmeans(pile.shape[1], count, niter=10, spherical=True, seed=0, max_points_per_centroid=100)
        means.train(pile)
        self.cosines, self.cosines_test = pile @ means.centroids.T, test @ means.centroids.T
        self.own, self.own_test, self.count = self.cosines.argmax(1), self.cosines_test.argmax(1), count

    def total(self, values: np.ndarray) -> np.ndarray:
        return np.bincount(self.own, values, minlength=self.count)


def cluster_share(start: Start, count: int, weight: float):
    """Log odds of the mean posterior of the row's cluster, the row left out, are added."""
    clusters, p = start.clusters(count), start.posterior(start.pile)
    total, size = clusters.total(p), clusters.total(np.ones_like(p))
    others = (total[clusters.own] - p) / np.maximum(size[clusters.own] - 1, 1)
    share = (total / np.maximum(size, 1))[clusters.own_test]
    return start.pile + weight * log_odds(others), start.test + weight * log_odds(share)


def cluster_odds(start: Start, count: int, weight: float, rows: float = 10.0):
    """Log of how many times more labelled rows the cluster has than others, with so many rows of the mean added."""
    clusters, rate = start.clusters(count), start.labelled.mean()
    odds = (clusters.total(start.labelled) + rows * rate) / (clusters.total(np.ones(len(start.pile))) + rows)
    odds = weight * np.log(odds / rate)
    return start.pile + odds[clusters.own], start.test + odds[clusters.own_test]


def cluster_features(start: Start, count: int, scale: float):
    """Soft membership beside X, at so many times the spread of X."""
    clusters, task = start.clusters(count), start.task
    X, X_test = scaled(task.X, task.X_test)
    memberships = [np.exp(cosines / TEMPERATURE) for cosines in (clusters.cosines, clusters.cosines_test)]
    F, F_test = scaled(*(each / each.sum(1, keepdims=True) for each in memberships))
    return columns(start.fit(np.hstack([X, scale * F]), np.hstack([X_test, scale * F_test])))


def scaled(X: np.ndarray, X_test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both less the mean of X, and divided by the root mean square norm."""
    mean = X.mean(0, dtype=np.float64).astype(np.float32)
    X, X_test = X.astype(np.float32) - mean, X_test.astype(np.float32) - mean
    spread = np.sqrt(np.square(X).sum(1).mean())
    return X / spread, X_test / spread


def columns(margins: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, ...]:
    return tuple(each.mean(1) for each in margins)


def bagging(start: Start, size: int):
    """Mean of heads of P against random rows of U, `size` times as many as P; of a row of U, heads that saw it not.

    Mordelet and Vert 2014. No head sees more than a third of U.
    """
    draw, unlabelled = np.random.default_rng(0), np.flatnonzero(~start.labelled)
    weights = np.repeat(start.labelled[:, None].astype(np.float32), HEADS, 1)
    drawn = min(size * int(start.labelled.sum()), len(unlabelled) // 3)
    for head in range(HEADS):
        weights[draw.choice(unlabelled, drawn, replace=False), head] = 1
    pile, test = start.fit(start.task.X, start.task.X_test, weights)
    counted = start.labelled[:, None] | (weights == 0)
    return (pile * counted).sum(1) / np.maximum(counted.sum(1), 1), test.mean(1)


def reweighting(start: Start, kind: str):
    """Weights of the unlabelled rows by their held-out margin."""
    order, q = np.argsort(np.argsort(-start.held_out)) / len(start.pile), start.posterior(start.held_out)
    positive = order <= max(start.model.prior_, 0.003)
    weights = {
        WEIGHTS[0]: 1 - q,
        WEIGHTS[1]: 1.0 - positive,
        WEIGHTS[2]: np.where((order < 0.1) & ~positive, 5.0, 1.0),
        WEIGHTS[3]: np.exp(0.5 * start.held_out.clip(-6, 2)) * (1 - q),
    }[kind]
    weights = np.where(start.labelled, 1, weights)[:, None]
    return columns(start.fit(start.task.X, start.task.X_test, weights))


def diffused(start: Start, k: int, share: float, raw: bool):
    """X mixed with the weighted mean of the k nearest rows; or a head trained on that, and applied to X."""
    X, X_test = (rows.astype(np.float32) for rows in (start.task.X, start.task.X_test))
    means = [
        graph(*(part[:, : k + own] for part in near), len(X)) @ X
        for near, own in ((start.near, 1), (start.near_test, 0))
    ]
    mixed, mixed_test = ((1 - share) * rows + share * mean for rows, mean in zip((X, X_test), means, strict=True))
    heads = fit_heads(mixed, start.task.s, penalty=start.model.penalty_)
    return columns((heads.margins(X if raw else mixed), heads.margins(X_test if raw else mixed_test)))


LEADS: dict[str, dict[str, Callable[[Start], tuple]]] = {
    "share of positives in the cluster": {
        f"{k} clusters, weight {w}": partial(cluster_share, count=k, weight=w)
        for k, w in product((50, 200, 800), (1, 2))
    },
    "labels of the cluster": {
        f"{k} clusters, weight {w}": partial(cluster_odds, count=k, weight=w)
        for k, w in product((50, 200, 800), (0.5, 1))
    },
    "clusters as features": {
        f"{k} clusters, scale {w}": partial(cluster_features, count=k, scale=w) for k, w in product((50, 200), (0.5, 1))
    },
    "bagging over U": {f"{size} x P": partial(bagging, size=size) for size in (1, 5, 50)},
    "weights of U": {kind: partial(reweighting, kind=kind) for kind in WEIGHTS},
    "diffused features": {
        f"{k} neighbours, share {share}{', applied to X' * raw}": partial(diffused, k=k, share=share, raw=raw)
        for k, share, raw in ((10, 0.5, False), (10, 1, False), (30, 0.5, False), (10, 0.5, True))
    },
}
