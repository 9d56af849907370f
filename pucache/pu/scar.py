r"""Whether the labelled positives look like the positives that are found.

Everything estimated from positive and unlabelled data rests on the labelled positives being a fair
sample of all ("selected completely at random", SCAR; Elkan and Noto 2008). That cannot be proven
without knowing all positives, but it can be seen to fail: where it holds, labelled and unlabelled
positives with the same margins cannot be told apart. So both are taken where a row is likely
positive by a head that did not see it, and a two-sample test is made on their embeddings: a
classifier by nearest neighbours is asked which rows are labelled (Schilling 1986, Henze 1988; the
view as a classifier: Lopez-Paz and Oquab 2017). Its AUC is the effect size, 0.5 where it is
guessing; its p-value comes from permuting the labels.

The found rows hold some negatives. Were each of them told from every positive, they would raise the
AUC by half their share; so much, and its chance, is not held against the labels. The test is blind
to positives that are nowhere near the labelled ones, as these are not found.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from ..storage.mapped_arrays import take_rows
from .calibration import Tilt
from .labels import Labels
from .near_duplicates import unlabelled_twins

SURE = 0.5  # least posterior of the rows that are compared
LEAST = 10  # rows of either kind, below which nothing is compared
LEVEL, BEYOND = 0.01, 1.645  # of the test; standard errors by which an AUC must be above what negatives explain
_MOST_LABELLED, _MOST_FOUND = 1000, 2000


@dataclass(frozen=True)
class ScarCheck:
    """What came of comparing labelled with found positives.

    Attributes
    ----------
    labelled, found : int
        Rows that were compared: labelled positives, and unlabelled rows likely to be positive.
    auc : float or None
        Effect size: how well the labelled are told from the found, 0.5 by guessing and 1 without
        an error; None where there were too few rows to compare.
    p_value : float or None
        Of an AUC as great, were the labels permuted.
    explained : float or None
        AUC that the negatives expected among the found could account for at most.
    verdict : str
        ``alike``; ``explained``: told apart, but no better than negatives among the found may
        explain; ``differ``; ``too few`` to compare; ``none found``: the labelled look like positives
        and next to nothing else does, because hardly any are hidden, or because the labels come
        from elsewhere, such as another camera.
    apart : ndarray of int64
        Rows that were compared, from those most like the labelled to those most like the found.
    """

    labelled: int
    found: int
    auc: float | None = None
    p_value: float | None = None
    explained: float | None = None
    verdict: str = "too few"
    apart: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64), repr=False, compare=False)

    def told(self) -> dict[str, Any]:
        """Everything but the rows, ready for JSON."""
        return {name: value for name, value in vars(self).items() if name != "apart"}

    def __str__(self) -> str:
        """The verdict in a sentence."""
        rows, said = f"{self.labelled:,} labelled and {self.found:,} found", _SAID[self.verdict]
        if self.auc is None:
            return f"labelled against found positives: {said} ({rows})"
        figures = f"told apart with AUC {self.auc:.2f}, p = {self.p_value:.2g} ({rows})"
        return f"labelled against found positives: {said}: {figures}"


_SAID = {
    "alike": "no sign that they differ",
    "explained": "they differ no more than negatives among the found may explain",
    "differ": "they differ",
    "too few": "too few likely positives to compare",
    "none found": "hardly any unlabelled image looks like the labelled",
}


def check_scar(
    X: np.ndarray,
    labels: Labels,
    margins: np.ndarray,
    tilt: Tilt,
    *,
    group: np.ndarray | None = None,
    seed: int = 0,
) -> ScarCheck:
    """Compare labelled positives with unlabelled rows that are likely positive.

    Parameters
    ----------
    X : ndarray, (n, d)
        May be a memory map; only the rows compared are read.
    labels : Labels
        Known negatives are left out.
    margins : ndarray of float32, (n,)
        Each by a head that did not see the row.
    tilt : Tilt
        What makes posteriors of them.
    group : ndarray of int64, (n,), optional
        Of images that show the same picture: one of each is compared, and no unlabelled copy of a
        labelled positive.
    seed : int
        Of the sample, where the rows are many, and of the permutations.

    Returns
    -------
    ScarCheck
    """
    draw = np.random.default_rng(seed)
    sure = tilt.posterior(margins) >= SURE
    labelled = _sample(_pictures(sure & (labels.s == 1), group), _MOST_LABELLED, draw)
    found = _sample(_pictures(sure & _may_be_found(labels, group), group), _MOST_FOUND, draw)
    if min(len(labelled), len(found)) < LEAST:
        none = len(labelled) >= LEAST and len(found) < len(labelled) / 2
        return ScarCheck(len(labelled), len(found), verdict="none found" if none else "too few")
    both = np.concatenate([take_rows(X, labelled), take_rows(X, found)])
    auc, p_value, error, likeness = two_sample(both, np.arange(len(both)) < len(labelled), draw)
    explained = 0.5 + float(1 - tilt.posterior(margins[found]).mean()) / 2
    verdict = "alike" if p_value >= LEVEL else "differ" if auc > explained + BEYOND * error else "explained"
    apart = np.concatenate([labelled, found])[np.argsort(-likeness, kind="stable")]
    return ScarCheck(len(labelled), len(found), auc, p_value, explained, verdict, apart)


def _may_be_found(labels: Labels, group: np.ndarray | None) -> np.ndarray:
    """Rows that are neither labelled, nor known to be negative, nor copies of a labelled one; bool (n,)."""
    rows = (labels.s == 0) & (labels.reviewed != -1)
    if group is not None:
        rows[unlabelled_twins(group, labels.s)[0]] = False
    return rows


def _pictures(rows: np.ndarray, group: np.ndarray | None) -> np.ndarray:
    """Numbers of the rows, one of each group; int64, rising."""
    numbers = np.flatnonzero(rows)
    return numbers if group is None else np.sort(numbers[np.unique(group[numbers], return_index=True)[1]])


def _sample(rows: np.ndarray, most: int, draw: np.random.Generator) -> np.ndarray:
    return rows if len(rows) <= most else np.sort(draw.choice(rows, most, replace=False))


def two_sample(
    X: np.ndarray, first: np.ndarray, draw: np.random.Generator, permutations: int = 999
) -> tuple[float, float, float, np.ndarray]:
    """How well two samples are told apart by the nearest neighbours of each row.

    Parameters
    ----------
    X : ndarray, (n, d)
    first : ndarray of bool, (n,)
        Which rows are of the first sample.
    draw : numpy.random.Generator
        Of the permutations.
    permutations : int

    Returns
    -------
    auc : float
        Of the share of the first sample among the sqrt(n) nearest other rows by cosine, centred;
        moved so that its mean by permuted labels is 0.5, as a row is never its own neighbour.
    p_value : float
        Share of the permutations, and of the sample itself, whose AUC is as great.
    error : float
        Standard deviation of the AUC by permuted labels.
    likeness : ndarray of float64, (n,)
        That share: how much a row looks like the first sample.
    """
    k, order = max(1, round(len(X) ** 0.5)), draw.permutation(len(X))  # neighbours as near as others go by chance
    near = _neighbours(X[order], k)[np.argsort(order)][:, np.argsort(order)]
    labels = np.stack([first, *(draw.permutation(first) for _ in range(permutations))], axis=1)  # (n, 1 + permutations)
    counts = near @ labels.astype(np.float32)  # of the first sample among the k nearest
    auc = _auc(counts.astype(np.int64), labels, k)
    p_value = np.count_nonzero(auc >= auc[0] - 1e-12) / len(auc)
    effect = float(np.clip(auc[0] - auc[1:].mean() + 0.5, 0, 1))
    return effect, float(p_value), float(auc[1:].std()), counts[:, 0] / k


def _neighbours(X: np.ndarray, k: int) -> csr_array:
    """Which rows are the k nearest others of a row, sparse (n, n)."""
    Z = np.asarray(X, np.float32) - np.mean(X, axis=0, dtype=np.float64).astype(np.float32)
    Z /= np.maximum(np.linalg.norm(Z, axis=1, keepdims=True), 1e-12)
    cosine = Z @ Z.T
    np.fill_diagonal(cosine, -np.inf)
    near = np.argpartition(-cosine, k - 1, axis=1)[:, :k]
    n = len(X)
    return csr_array((np.ones(n * k, np.float32), near.ravel(), np.arange(0, n * k + 1, k)), shape=(n, n))


def _auc(counts: np.ndarray, labels: np.ndarray, k: int) -> np.ndarray:
    """AUC of each column of integer scores from 0 to k, (n, m), for its labels; float64 (m,)."""
    columns = counts.shape[1]
    cell = counts + (k + 1) * np.arange(columns)
    of_first, of_all = (
        np.bincount(cells.ravel(), minlength=(k + 1) * columns).reshape(columns, k + 1)
        for cells in (cell[labels].ravel(), cell)
    )
    of_rest = of_all - of_first
    below = np.cumsum(of_rest, axis=1) - of_rest / 2  # ties count half
    return np.asarray((of_first * below).sum(1) / (of_first.sum(1) * of_rest.sum(1)))
