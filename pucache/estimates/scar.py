r"""SCAR check: do the labelled positives look like the likely positives among the unlabelled?

Estimates from positive and unlabelled data assume that the labelled positives are a random sample of all
positives ("selected completely at random", SCAR; Elkan and Noto 2008). This cannot be proven without
knowing all positives, but it can be refuted: under SCAR, labelled and unlabelled positives with equal
margins cannot be distinguished. So rows of both kinds are taken whose held-out posterior is high, and a
two-sample test compares their embeddings: a nearest-neighbour classifier predicts which rows are labelled
(Schilling 1986, Henze 1988; as a classifier test: Lopez-Paz and Oquab 2017). Its AUC is the effect size, 0.5
if it is guessing; its p-value comes from permutations of the labels.

Some of the likely positives are negatives. If each of them could be told from every positive, the AUC would
rise by half their share; an excess up to that, plus chance, is not held against the labels. The test does
not see positives that are far from the labelled ones, because these have low margins: images drawn at random do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from ..labels.labels import PULabels
from ..labels.near_duplicates import unlabelled_twins
from ..storage.rows import RowMatrix, take_rows
from .calibration import Tilt
from .label_requirements import LabelCount, figure

SURE = 0.5  # minimum posterior of the rows compared
LEAST = 10  # minimum number of rows of either kind
LEVEL = 0.01  # significance level of the test
BEYOND = 1.645  # standard errors by which the AUC must exceed what negatives explain
_MAX_LABELLED, _MAX_LIKELY = 1000, 2000  # rows compared


@dataclass(frozen=True)
class ScarCheck:
    """Result of the comparison of labelled with likely positives.

    Attributes
    ----------
    n_labelled, n_likely : int
        Rows compared: labelled positives, and unlabelled rows likely to be positive.
    auc : float or None
        Effect size: how well labelled rows are told from likely ones, 0.5 by guessing, 1 without an
        error; None if there are too few rows.
    error : float or None
        Standard deviation of the AUC over permuted labels.
    p_value : float or None
        Probability of an AUC at least as great under permuted labels.
    explained : float or None
        Greatest AUC that the negatives expected among the likely positives can account for.
    verdict : str
        ``alike``; ``explained``: told apart, but no better than negatives among the likely positives may explain;
        ``differ``; ``too few`` rows to compare; ``none found``: almost no unlabelled row is likely positive, because
        few are hidden, or because the labelled positives come from elsewhere, such as another camera.
    rows_by_likeness : ndarray of int64, (n_labelled + n_likely,)
        Rows compared, from those most like the labelled to those most like the likely positives.
    """

    n_labelled: int
    n_likely: int
    auc: float | None = None
    error: float | None = None
    p_value: float | None = None
    explained: float | None = None
    verdict: str = "too few"
    rows_by_likeness: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64), repr=False, compare=False)

    @property
    def auc_interval(self) -> tuple[float, float] | None:
        """90 % interval of the AUC; None if there is none."""
        if self.auc is None or self.error is None:
            return None
        return max(0.0, self.auc - BEYOND * self.error), min(1.0, self.auc + BEYOND * self.error)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the rows, for JSON; ``auc`` is None where only its interval is stated."""
        return {
            "labelled": self.n_labelled,
            "found": self.n_likely,
            "auc": self.auc if LabelCount(self.n_labelled).has_points else None,
            "auc_interval": None if self.auc_interval is None else list(self.auc_interval),
            "p_value": self.p_value,
            "explained": self.explained,
            "verdict": self.verdict,
        }

    def __str__(self) -> str:
        """The verdict in one sentence."""
        counts = f"{self.n_labelled:,} labelled and {self.n_likely:,} found"
        sentence = f"labelled against found positives: {_VERDICTS[self.verdict]}"
        if self.auc is None:
            return f"{sentence} ({counts})"
        auc = f"{self.auc:.2f}" if LabelCount(self.n_labelled).has_points else figure(None, self.auc_interval)
        compared = f"{sentence}: told apart with AUC {auc}, p = {self.p_value:.2g} ({counts})"
        return compared if self.verdict == "differ" else f"{compared}; {_BLIND}"


_BLIND = "kinds of positives that were not found are not compared, only random images show them (pucache review)"
_VERDICTS = {
    "alike": "no sign that they differ",
    "explained": "they differ no more than negatives among the found may explain",
    "differ": "they differ",
    "too few": "too few likely positives to compare",
    "none found": "hardly any unlabelled image looks like the labelled",
}


def check_scar(
    X: RowMatrix,
    labels: PULabels,
    margins: np.ndarray,
    tilt: Tilt,
    *,
    group: np.ndarray | None = None,
    clusters: np.ndarray | None = None,
    seed: int = 0,
) -> ScarCheck:
    """Compare labelled positives with unlabelled rows that are likely positive, by held-out `margins` (n,).

    One image is compared of each `group` of images that show the same picture, int64 (n,), and of each of the
    `clusters` of images that are not independent; no unlabelled copy of a labelled positive, and no known negative.
    `seed` is that of the samples, where the rows are many, and of the permutations. Only the rows compared are read
    from X.
    """
    generator = np.random.default_rng(seed)
    sure = tilt.posterior(margins) >= SURE
    found = sure & (labels.s == 0) & ~labels.negative
    if group is not None:
        found[unlabelled_twins(group, labels.s)[0]] = False
    together = group if clusters is None else clusters
    labelled = _sample(_one_per_group(sure & (labels.s == 1), together), _MAX_LABELLED, generator)
    likely = _sample(_one_per_group(found, together), _MAX_LIKELY, generator)
    if min(len(labelled), len(likely)) < LEAST:
        few_hidden = len(labelled) >= LEAST and len(likely) < len(labelled) / 2
        return ScarCheck(len(labelled), len(likely), verdict="none found" if few_hidden else "too few")
    compared = np.concatenate([take_rows(X, labelled), take_rows(X, likely)])
    auc, error, p_value, likeness = two_sample(compared, np.arange(len(compared)) < len(labelled), generator)
    explained = 0.5 + float(1 - tilt.posterior(margins[likely]).mean()) / 2
    if p_value >= LEVEL:
        verdict = "alike"
    else:
        verdict = "differ" if auc > explained + BEYOND * error else "explained"
    return ScarCheck(
        n_labelled=len(labelled),
        n_likely=len(likely),
        auc=auc,
        error=error,
        p_value=p_value,
        explained=explained,
        verdict=verdict,
        rows_by_likeness=np.concatenate([labelled, likely])[np.argsort(-likeness, kind="stable")],
    )


def _one_per_group(rows: np.ndarray, group: np.ndarray | None) -> np.ndarray:
    """Row numbers, one of each group, int64, ascending; `rows` is bool (n,)."""
    numbers = np.flatnonzero(rows)
    return numbers if group is None else np.sort(numbers[np.unique(group[numbers], return_index=True)[1]])


def _sample(rows: np.ndarray, size: int, generator: np.random.Generator) -> np.ndarray:
    return rows if len(rows) <= size else np.sort(generator.choice(rows, size, replace=False))


def two_sample(
    X: np.ndarray, first: np.ndarray, generator: np.random.Generator, permutations: int = 999
) -> tuple[float, float, float, np.ndarray]:
    """Test whether two samples have one distribution, by the nearest neighbours of each row.

    X (n, d) holds the rows of both; `first` (n,) is True for those of the first sample. The likeness of a row, float64
    (n,), is the share of the first sample among its sqrt(n) nearest other rows by cosine, centred. Returns the AUC of
    the likeness, shifted so that its mean over permuted labels is 0.5, because a row is never its own neighbour; its
    standard deviation over permuted labels; the share of these, and of the sample, with an AUC at least as great; and
    the likeness.
    """
    k = max(1, round(len(X) ** 0.5))
    order = generator.permutation(len(X))  # breaks ties between equally near rows at random
    near = _neighbours(X[order], k)[np.argsort(order)][:, np.argsort(order)]
    labels = np.stack([first, *(generator.permutation(first) for _ in range(permutations))], axis=1)  # (n, 1 + P)
    counts = near @ labels.astype(np.float32)  # of the first sample among the k nearest
    auc = _auc(counts.astype(np.int64), labels, k)
    p_value = np.count_nonzero(auc >= auc[0] - 1e-12) / len(auc)
    effect = float(np.clip(auc[0] - auc[1:].mean() + 0.5, 0, 1))
    return effect, float(auc[1:].std()), float(p_value), counts[:, 0] / k


def _neighbours(X: np.ndarray, k: int) -> csr_array:
    """The k nearest other rows of each row, as a sparse (n, n) matrix of ones."""
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
