r"""Whether and how much the nearest neighbours of a row count, decided by the labels at hand.

Neighbours help where the positives form clusters of the embedding space, and mislead where what is wanted
cuts across them. Two kinds of evidence tell the cases apart.
Both are mean changes of

    -log(share of negatives above a positive + a small constant),

that is, of how high positives rank, between the ranking by the classifier and the ranking by

    log f_P / f_N  +  weight * lg(W p),

the log density ratio plus the log odds of the neighbours' mean probability (`pucache.training.propagation`).

*Agreement.* The labelled positives are split into halves at random, twice or (of few rows) more often, and a
head is trained on each half. The likely positives of one head are ranked by the other among the likely
negatives of the first (all unlabelled rows are both, weighted by its probabilities), with and without
neighbours. What both heads share is what is wanted; what neighbours add to one head and the other does not
share is noise. Thousands of rows take part, so this works with few labels.

*Held-out positives.* Each is ranked among the unlabelled rows of its fold, by the chain of its fold, with
and without neighbours. With n labels this counts `_HELD_OUT_WEIGHT` * n / (n + `_HALF_TRUST`).

Both are judged at weight 1. Neighbours are used, at `WEIGHT`, where the sum of the two exceeds `_LEAST_EVIDENCE`
* sqrt(20 / n): with few labels only clear evidence counts. Without agreement they are not used, as held-out
positives alone are noisy. The constants were chosen on classes of CIFAR-10 and on tasks in which neighbours mislead
(docs/results/few-labels.md).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..estimates.calibration import Tilt, fit_tilt
from ..estimates.review_weights import TrainingLabels
from .propagation import LEAST_SHARE, neighbour_log_odds, probabilities

if TYPE_CHECKING:
    from ..neighbours.graph import NeighbourGraph

WEIGHT = 2.0  # of the neighbours in a ranking, where they count
_HELD_OUT_WEIGHT, _HALF_TRUST = 0.5, 20
_LEAST_EVIDENCE = 0.02  # with 20 labels
LEAST_POSITIVES = 4  # halves of two
METHODS = ("distilled", "linear")
_SPLITS, _MOST_SPLITS, _ROWS_OF_SPLITS = 2, 15, 16_384  # random splits into halves: more of them where rows are few
_AGREEMENT_FLOOR, _HELD_OUT_FLOOR = 0.003, 0.01  # added to the share of rows above a positive


def method_of(method: str | None, loss: str, solver: str) -> str:
    """The method of a classifier: as given, or else `distilled` where loss and solver are those by default."""
    return method or ("distilled" if (loss, solver) == ("imbupu", "batch") else "linear")


@dataclass(frozen=True)
class NeighbourEvidence:
    """Change of how high positives rank when neighbours count.

    Attributes
    ----------
    agreement : float
        Of the likely positives of a head trained on the other half of the labels.
    held_out : float
        Of held-out positives.
    labels : int
        Number of labelled positives.
    """

    agreement: float
    held_out: float
    labels: int

    @property
    def total(self) -> float:
        """Weighted sum of both kinds."""
        return self.agreement + _HELD_OUT_WEIGHT * self.labels / (self.labels + _HALF_TRUST) * self.held_out

    @property
    def weight(self) -> float:
        """Weight of the neighbours: 0 or `WEIGHT`."""
        return WEIGHT if self.total > self.least and self.agreement > 0 else 0.0

    @property
    def least(self) -> float:
        """Evidence that is asked for."""
        return _LEAST_EVIDENCE * float(np.sqrt(20 / max(self.labels, 1)))

    def sentence(self) -> str:
        """The choice and its reason."""
        if self.agreement <= 0:
            return "nearest neighbours do not count: with them, heads of two halves of the labels do not agree better"
        fewer, least = 1 - np.exp(-self.total), 1 - np.exp(-self.least)
        change = f"{abs(fewer):.0%} {'fewer' if fewer >= 0 else 'more'} other images rank above a positive"
        choice = "count" if self.weight else "do not count"
        return f"nearest neighbours {choice}: with them {change} (counted from {least:.0%} fewer on)"


@dataclass(frozen=True)
class NeighbourSettings:
    """What a model keeps of its neighbours: the evidence, and how scores with neighbours are calibrated.

    Attributes
    ----------
    evidence : NeighbourEvidence
    search : str
        How neighbours were searched.
    share : float
        Share of positives with which the margins of the pile become probabilities.
    tilt : Tilt
        Of scores with neighbours.
    threshold : float
        Score above which a row is called positive.
    weight : float
        Of the neighbours; 0 where they do not count, 0.5 or 1 in some models of 0.4.
    """

    evidence: NeighbourEvidence
    search: str
    share: float
    tilt: Tilt
    threshold: float
    weight: float

    def to_json(self) -> dict[str, Any]:
        """Content for the model file."""
        return asdict(self) | {"reason": self.evidence.sentence()}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> NeighbourSettings:
        """Read the result of `to_json`; LookupError, TypeError, ValueError or ArithmeticError for other content."""
        evidence = content["evidence"]
        gains = [evidence[name] for name in ("agreement", "held_out")]
        # models of 0.4 have them at weights of 0.5, 1 and 2, of which the second decided
        agreement, held_out = (float(gain[1] if isinstance(gain, list) else gain) for gain in gains)
        tilt = Tilt(**{name: float(content["tilt"][name]) for name in ("alpha", "slope", "prior")})
        settings = cls(
            evidence=NeighbourEvidence(agreement=agreement, held_out=held_out, labels=int(evidence["labels"])),
            search=str(content["search"]),
            share=float(content["share"]),
            tilt=tilt,
            threshold=float(content["threshold"]),
            weight=float(content["weight"]),
        )
        numbers = [agreement, held_out, tilt.alpha, tilt.slope, settings.threshold]
        if not (np.isfinite(numbers).all() and settings.weight in (0.0, 0.5, 1.0, WEIGHT)):
            raise ValueError("its evidence on neighbours is not that of a model")
        if settings.evidence.labels < 1:
            raise ValueError(f"its evidence on neighbours is that of {settings.evidence.labels} positives")
        if not (0 <= settings.share <= 1 and 0 < tilt.prior < 1):
            raise ValueError(f"its shares for neighbours are {settings.share} and {tilt.prior}")
        return settings


def agreement_gain(
    margins: np.ndarray, halves: np.ndarray, labels: TrainingLabels, graph: NeighbourGraph, *, prior: float
) -> float:
    """Gain of the ranking of one half's likely positives by the other half's head.

    `margins` (n, H) are those of heads that were each trained on a column of `halves` (n, H); `prior` is the share of
    positives among the unlabelled.
    """
    share = max(prior, LEAST_SHARE)
    ratios = [fit_tilt(column, labels.s, labels.weights, share).log_ratio(column) for column in margins.T]
    log_ratios = np.stack(ratios, axis=1).astype(np.float32)
    p = probabilities(log_ratios, share)
    p[(labels.training_s == 1)[:, None] & halves] = 1
    lifts = neighbour_log_odds(graph.weighted_means(p))
    unlabelled = labels.training_s == 0
    log_ratios, lifts, p = log_ratios[unlabelled], lifts[unlabelled], p[unlabelled]
    pairs = [(head, head ^ 1) for head in range(margins.shape[1])]  # heads 0 and 1 are the halves of the first split
    before = [_mean_rank(log_ratios[:, head], p[:, other]) for head, other in pairs]
    after = [_mean_rank(log_ratios[:, head] + lifts[:, head], p[:, other]) for head, other in pairs]
    return float(np.mean(np.subtract(after, before)))


def held_out_gain(classifier: np.ndarray, ranking: np.ndarray, labels: TrainingLabels, fold: np.ndarray) -> float:
    """Gain in rank of held-out positives of a ranking against the classifier's; both are held-out scores, (n,)."""
    ranks = _ranks_within_folds(ranking, labels, fold) - _ranks_within_folds(classifier, labels, fold)
    return float(np.mean(ranks))


def halves_of(labels: TrainingLabels, groups: np.ndarray | None, seed: int) -> np.ndarray:
    """Rows of random halves of the positives, each with all other rows, bool (n, 2 * splits).

    At least `LEAST_POSITIVES` positives have a weight above 0; rows of one of the `groups` (n,) stay in one half.
    """
    positives = np.flatnonzero((labels.training_s == 1) & (labels.row_weights > 0))
    group = positives if groups is None else groups[positives]
    numbers, group = np.unique(group, return_inverse=True)
    splits = min(_MOST_SPLITS, max(_SPLITS, _ROWS_OF_SPLITS // len(labels.s)))
    halves = np.ones((len(labels.s), 2 * splits), bool)
    generator = np.random.default_rng(seed)
    for split in range(splits):
        first = generator.permutation(len(numbers))[: len(numbers) // 2]
        in_first = np.isin(group, first)
        halves[positives, 2 * split], halves[positives, 2 * split + 1] = in_first, ~in_first
    return halves


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
