"""Evidence on whether neighbours help: `pucache.training.neighbour_evidence` says what it is and how it decides."""

from __future__ import annotations

import numpy as np

from ..estimates.calibration import fit_tilt
from ..estimates.review_weights import TrainingLabels
from ..heads.design_matrix import DesignMatrix
from ..heads.risks import PURisk
from ..heads.solve import fit_heads
from ..neighbours.graph import NeighbourGraph
from .neighbour_evidence import WEIGHTS
from .propagation import LEAST_SHARE, neighbour_log_odds, probabilities

LEAST_POSITIVES = 4  # halves of two
_SPLITS = 2  # random splits into halves
_TOLERANCE = 5e-3  # of the heads of the halves
_AGREEMENT_FLOOR, _HELD_OUT_FLOOR = 0.003, 0.01  # added to the share of rows above a positive


def agreement_gains(
    design: DesignMatrix,
    labels: TrainingLabels,
    graph: NeighbourGraph,
    *,
    risk: PURisk,
    training_prior: float,
    penalty: float,
    prior: float,
    groups: np.ndarray | None = None,
    seed: int = 0,
) -> tuple[float, ...]:
    """Gain of the ranking of one half's likely positives by the other half's head, for each of `WEIGHTS`.

    Parameters
    ----------
    design : DesignMatrix
    labels : TrainingLabels
        With at least `LEAST_POSITIVES` positives.
    graph : NeighbourGraph
    risk : PURisk
    training_prior, penalty : float
        Of the heads.
    prior : float
        Share of positives among the unlabelled.
    groups : ndarray of int64, (n,), optional
        Rows of one group stay in one half.
    seed : int

    Returns
    -------
    tuple of float
    """
    weights = _half_weights(labels, groups, seed)
    heads = fit_heads(
        design, weights=weights, risk=risk, prior=training_prior, penalty=penalty, tolerance=_TOLERANCE, seed=seed
    )
    margins, share = design.margins(heads), max(prior, LEAST_SHARE)
    ratios = [fit_tilt(column, labels.s, labels.weights, share).log_ratio(column) for column in margins.T]
    log_ratios = np.stack(ratios, axis=1).astype(np.float32)
    p = probabilities(log_ratios, share)
    p[(labels.training_s == 1)[:, None] & (weights > 0)] = 1
    lifts = neighbour_log_odds(graph.weighted_means(p))
    unlabelled = labels.training_s == 0
    log_ratios, lifts, p = log_ratios[unlabelled], lifts[unlabelled], p[unlabelled]
    pairs = [(head, head ^ 1) for head in range(2 * _SPLITS)]  # heads 0 and 1 are the halves of the first split
    before = [_mean_rank(log_ratios[:, head], p[:, other]) for head, other in pairs]
    gains = []
    for weight in WEIGHTS:
        after = [_mean_rank(log_ratios[:, head] + weight * lifts[:, head], p[:, other]) for head, other in pairs]
        gains.append(float(np.mean(np.subtract(after, before))))
    return tuple(gains)


def held_out_gains(
    classifier: np.ndarray, rankings: list[np.ndarray], labels: TrainingLabels, fold: np.ndarray
) -> tuple[float, ...]:
    """Gain in rank of held-out positives of several rankings against the classifier's.

    Parameters
    ----------
    classifier : ndarray, (n,)
        Held-out scores.
    rankings : list of ndarray, (n,)
        Held-out scores of each ranking.
    labels : TrainingLabels
    fold : ndarray of int64, (n,)

    Returns
    -------
    tuple of float
    """
    before = _ranks_within_folds(classifier, labels, fold)
    return tuple(float(np.mean(_ranks_within_folds(scores, labels, fold) - before)) for scores in rankings)


def _half_weights(labels: TrainingLabels, groups: np.ndarray | None, seed: int) -> np.ndarray:
    """Row weights of the head of each half, float32 (n, 2 * splits); positives of the other half weigh 0."""
    positives = np.flatnonzero(labels.training_s == 1)
    group = positives if groups is None else groups[positives]
    numbers, group = np.unique(group, return_inverse=True)
    base = np.ones(len(labels.s), np.float32) if labels.training_weights is None else labels.training_weights
    weights = np.repeat(base[:, None], 2 * _SPLITS, axis=1).astype(np.float32)
    generator = np.random.default_rng(seed)
    for split in range(_SPLITS):
        first = generator.permutation(len(numbers))[: len(numbers) // 2]
        in_first = np.isin(group, first)
        weights[positives[~in_first], 2 * split] = 0
        weights[positives[in_first], 2 * split + 1] = 0
    return weights


def _mean_rank(scores: np.ndarray, probability: np.ndarray) -> float:
    """Mean of -log(share of the likely negatives above + floor) over likely positives, both by probabilities (u,)."""
    order = np.argsort(-scores, kind="stable")
    positive = probability[order].astype(np.float64)
    if not positive.any():  # each below the least float32: there are no likely positives
        return 0.0
    negative = 1 - positive
    above = np.cumsum(negative) - negative
    return float(np.average(-np.log(above / max(negative.sum(), 1e-12) + _AGREEMENT_FLOOR), weights=positive))


def _ranks_within_folds(scores: np.ndarray, labels: TrainingLabels, fold: np.ndarray) -> np.ndarray:
    """-log(share of unlabelled rows of the fold above + floor) of each positive, (p,)."""
    positives = np.flatnonzero(labels.training_s == 1)
    ranks = np.empty(len(positives))
    for number in np.unique(fold[positives]):
        of_fold = fold[positives] == number
        unlabelled = np.sort(scores[(fold == number) & (labels.training_s == 0)])
        below = np.searchsorted(unlabelled, scores[positives[of_fold]], side="left")
        ranks[of_fold] = -np.log(1 - below / max(len(unlabelled), 1) + _HELD_OUT_FLOOR)
    return ranks
