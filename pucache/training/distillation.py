r"""Distillation: one linear head that has learnt what a classifier and its neighbours' graph say together.

1. The classifier's margins become log density ratios by its tilt, and probabilities are propagated over
   the graph (`pucache.training.propagation`), `_FIRST_ROUNDS` rounds.
2. A linear head is trained on the probabilities T as soft targets, by cross-entropy with the penalty of
   `penalty_of`. Its margin minus logit(mean T) is a log density ratio.
3. From these, `_LATER_ROUNDS` more rounds of 1 and another head of 2, which is the result.

The classifier is the linear head of `pucache.training.train_head`, so the result is one coefficient vector again.

**Figures.** The targets of a head have seen the labels, so none of its margins of the rows it was trained
on is fit for an estimate. The chain 1-3 therefore runs once for each fold, side by side: it starts from the
head that was trained without the fold, nowhere sees a label of the fold, and trains its heads without the
rows of the fold, as even without their labels it would know them better than new rows. The held-out
positives are unlabelled rows to it as the hidden positives are. The margins of a fold by its chain are held
out, and penalty, prior, tilt, threshold and all figures rest on them alone (docs/method.md has the
measurements).

Where rows are many, everything happens on the positives and an evenly spaced sample of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import logit

from ..estimates.calibration import Tilt
from ..estimates.review_weights import TrainingLabels
from ..heads.design_matrix import DesignMatrix
from ..heads.linear_heads import FittedHeads
from ..heads.solve import SoftTargetTrainer
from ..neighbours.graph import NeighbourGraph
from ..storage.rows import evenly_spaced
from .cross_fitting import CrossFit, weights_without_folds
from .neighbour_evidence import WEIGHT, NeighbourEvidence, held_out_gain
from .propagation import ChainLabels, neighbour_log_odds, probabilities, propagate

# graph of the rows with these numbers (ascending), or of all rows for None
GraphSource = Callable[[np.ndarray | None], NeighbourGraph]

_FIRST_ROUNDS, _LATER_ROUNDS = 6, 3
_LEAST_PENALTY, _PENALTY_OF_ROW = 2e-6, 0.06  # the second is divided by the number of rows
_MEAN_LIMIT = 1e-5  # mean targets are kept this far from 0 and 1
SAMPLE_ROWS, SAMPLE_BYTES = 1 << 16, 1 << 28  # greatest sample of rows and of their embeddings


@dataclass(frozen=True)
class DistillationRows:
    """Rows that a head is distilled on, all or a sample, with their labels, folds and graph."""

    rows: np.ndarray | None  # (m,), ascending; None for all
    design: DesignMatrix
    labels: TrainingLabels
    fold: np.ndarray
    graph: NeighbourGraph

    @classmethod
    def of(
        cls,
        design: DesignMatrix,
        labels: TrainingLabels,
        fold: np.ndarray,
        graph_source: GraphSource,
        labelled_by_any: np.ndarray | None = None,
    ) -> DistillationRows:
        """All rows, or the positives and as many of the others as fit into the sample, evenly spaced.

        Rows of weight 0 are left out. The weights of all others are divided by their mean, among the labelled positives
        and among the rest. `labelled_by_any`, positives of any of several concepts, are all taken, so that the sample
        is the same for each.
        """
        X, labels = design.X, _evenly_weighted(labels)
        room = max(1, min(SAMPLE_ROWS, SAMPLE_BYTES // (X.itemsize * X.shape[1])))
        positives, others = (
            rows[labels.row_weights[rows] > 0] for rows in (design.positive_rows, design.unlabelled_rows)
        )
        also = positives[:0] if labelled_by_any is None else np.intersect1d(labelled_by_any, others)
        rest = np.setdiff1d(others, also, assume_unique=True)
        kept = np.union1d(rest[evenly_spaced(len(rest), room)], also)
        if len(kept) + len(positives) == len(fold):
            return cls(rows=None, design=design, labels=labels, fold=fold, graph=graph_source(None))
        rows = np.union1d(kept, positives)
        sampled = labels.take(rows, len(kept) / len(others))
        return cls(
            rows=rows,
            design=design.take(rows, sampled.training_s),
            labels=sampled,
            fold=fold[rows],
            graph=graph_source(rows),
        )

    def take(self, values: np.ndarray) -> np.ndarray:
        """Values of these rows, out of values of all rows."""
        return values if self.rows is None else values[self.rows]


@dataclass(frozen=True)
class Distillation:
    """Result of distillation."""

    sampled: DistillationRows
    head: FittedHeads  # one head, trained on all labels; its margins are log density ratios
    fold_heads: FittedHeads  # those of the folds' chains
    margins: np.ndarray  # float32, (n,): held-out, of all rows, by the heads of the folds' chains
    share: float  # mean target of the rows not labelled positive, with which probabilities for neighbours are computed
    evidence: NeighbourEvidence  # what neighbours are worth
    # float32, (m,): held-out, with neighbours at the weight of the evidence; the classifier's margins where it is 0
    scores: np.ndarray


def penalty_of(rows: int) -> float:
    """Penalty of a head that is distilled on so many rows: on fewer the targets say less about each direction."""
    return max(_LEAST_PENALTY, _PENALTY_OF_ROW / rows)


def distil(
    sampled: DistillationRows,
    design: DesignMatrix,
    linear: CrossFit,
    tilt: Tilt,
    agreement: float,
    positives: int,
) -> Distillation:
    """Run the chains of all folds, and the one with all labels.

    The `design` is of all rows; `linear` and the `tilt` of its held-out margins are those of the classifier,
    `agreement` is the result of `pucache.training.neighbour_evidence.agreement_gains`, and `positives` the number of
    labelled ones that are independent.
    """
    folds = linear.folds
    labels = ChainLabels.of(sampled.labels, sampled.fold, folds)
    margins = sampled.design.margins(linear.heads.take(np.arange(folds + 1)))
    log_ratios = tilt.log_ratio(margins).astype(np.float32)
    targets = propagate(log_ratios, labels, np.full(folds + 1, tilt.prior), sampled.graph, rounds=_FIRST_ROUNDS)
    of_folds = weights_without_folds(sampled.labels, sampled.fold[:, None])
    weights = np.column_stack([of_folds, sampled.labels.row_weights])
    trainer = SoftTargetTrainer(sampled.design, weights=weights, penalty=penalty_of(len(sampled.fold)))
    heads, log_ratios = _fit(trainer, sampled, targets, weights)
    shares = labels.unlabelled_means(targets)
    targets = propagate(log_ratios, labels, shares, sampled.graph, rounds=_LATER_ROUNDS)
    heads, log_ratios = _fit(trainer, sampled, targets, weights, start=heads)
    shares = labels.unlabelled_means(targets)
    heads = _centred(heads, targets, weights)
    fold_heads = heads.take(np.arange(folds))
    margins = _by_own_chain(log_ratios, sampled.fold)
    if sampled.rows is not None:
        margins = design.margins(fold_heads, linear.fold[:, None])[:, 0]
    before, (own, lift) = sampled.take(linear.margins), _held_out_lifts(sampled, labels, log_ratios, shares)
    gain = held_out_gain(before, own + lift, sampled.labels, sampled.fold)
    evidence = NeighbourEvidence(agreement=agreement, held_out=gain, labels=positives)
    return Distillation(
        sampled=sampled,
        head=replace(heads.take([folds]), risk=linear.head.risk, clamped=linear.head.clamped),
        fold_heads=fold_heads,
        margins=margins,
        share=float(shares[-1]),
        evidence=evidence,
        scores=own + np.float32(WEIGHT) * lift if evidence.weight else before,
    )


def _evenly_weighted(labels: TrainingLabels) -> TrainingLabels:
    """Labels with the row weights divided by their mean, among the labelled positives and among the rest.

    A held-out positive then weighs as much as a hidden one, on the average.
    """
    if labels.weights is None or labels.training_weights is None:
        return labels
    positive, weighted = labels.s == 1, labels.weights > 0
    of_positives, of_rest = (float(labels.weights[rows & weighted].mean()) for rows in (positive, ~positive))
    scale = np.where(positive, 1 / of_positives, 1 / of_rest).astype(np.float32)
    return replace(
        labels,
        weights=labels.weights * scale,
        training_weights=labels.training_weights * scale,
        confirmed_weight=labels.confirmed_weight / of_rest,
        rejected_weight=labels.rejected_weight / of_rest,
    )


def _fit(
    trainer: SoftTargetTrainer,
    sampled: DistillationRows,
    targets: np.ndarray,
    weights: np.ndarray,
    start: FittedHeads | None = None,
) -> tuple[FittedHeads, np.ndarray]:
    """Heads of soft targets (m, C) at weights (m, C), and their margins as log density ratios, float32 (m, C)."""
    heads = trainer.fit(targets, start=start)
    return heads, sampled.design.margins(_centred(heads, targets, weights))


def _centred(heads: FittedHeads, targets: np.ndarray, weights: np.ndarray) -> FittedHeads:
    """The heads with logit(mean target), by the weights they were trained with, taken off their intercepts."""
    means = np.average(targets.astype(np.float64), axis=0, weights=weights).clip(_MEAN_LIMIT, 1 - _MEAN_LIMIT)
    return replace(heads, intercept=(heads.intercept - logit(means)).astype(np.float32))


def _held_out_lifts(
    sampled: DistillationRows, labels: ChainLabels, log_ratios: np.ndarray, shares: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Log ratio of each row, and what neighbours add to it, by the chain of its fold, float32 (m,) each."""
    p = probabilities(log_ratios, shares)
    labels.set_known(p)
    lifts = neighbour_log_odds(sampled.graph.weighted_means(p))
    return _by_own_chain(log_ratios, sampled.fold), _by_own_chain(lifts, sampled.fold)


def _by_own_chain(values: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """Values (m, C) of each row by the chain of its fold, (m,)."""
    return np.asarray(np.take_along_axis(values, fold[:, None], axis=1)[:, 0])
