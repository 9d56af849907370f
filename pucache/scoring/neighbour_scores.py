r"""Scores of a model with neighbours: its log density ratio, and the classes of the nearest rows of a pile.

    f(x)  =  log f_P(x) / f_N(x)  +  weight * lg( sum_j w_j(x) p_j )

over the rows j of the pile that are nearest to x (`pucache.neighbours.graph`), with lg the clipped log odds of
`pucache.training.propagation`. p_j is 1 for a known positive, 0 for a known negative, and else the probability by the
model's log density ratio. The margin of a distilled head is a log density ratio; that of a linear one
becomes one by its tilt.

Retrieval ranks the rows of the pile by f (`pucache.retrieval.model_scorers`), and `pucache.score` scores new
images by it (`pucache.scoring.pile_scores`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..training.propagation import neighbour_log_odds, probabilities

if TYPE_CHECKING:
    from ..training.sklearn_classifier import PULinearClassifier

_NO_EVIDENCE = (
    "the model does not say whether neighbours help: it was trained by method linear, with fewer than four positives, "
    "or by an earlier version"
)


def chosen_weight(model: PULinearClassifier) -> float:
    """Weight of the neighbours that a model has chosen; 0 where it chose none."""
    return 0.0 if model.neighbours_ is None else model.neighbours_.weight


def reason(model: PULinearClassifier) -> str:
    """Why neighbours count, or do not, in a model's scores."""
    return _NO_EVIDENCE if model.neighbours_ is None else model.neighbours_.evidence.sentence()


@dataclass(frozen=True)
class NeighbourScores:
    """Scores of a model with neighbours.

    Parameters
    ----------
    model : PULinearClassifier
    weight : float
        Of the neighbours.
    """

    model: PULinearClassifier
    weight: float

    @property
    def is_calibrated(self) -> bool:
        """Whether the model knows the posterior of its scores: at the weight that it has chosen."""
        return self.weight > 0 and self.weight == chosen_weight(self.model)

    def log_ratios(self, margins: np.ndarray) -> np.ndarray:
        """Log density ratios of positives to negatives, float32 (n,).

        Parameters
        ----------
        margins : ndarray, (n,)
            By the model.
        """
        if self.model.method_ == "distilled":
            return np.asarray(margins, np.float32)
        return self.model.tilt_.log_ratio(margins).astype(np.float32)

    def probabilities(self, margins: np.ndarray) -> np.ndarray:
        """Probability of being positive of each row of the pile, by the model alone; float32 (n,).

        Parameters
        ----------
        margins : ndarray, (n,)
            Of the pile.
        """
        settings = self.model.neighbours_
        share = self.model.prior_
        if self.model.method_ == "distilled" and settings is not None:
            share = settings.share
        return probabilities(self.log_ratios(margins), share)

    def scores(self, margins: np.ndarray, shares: np.ndarray) -> np.ndarray:
        """Scores with neighbours, float32 (n,).

        Parameters
        ----------
        margins : ndarray, (n,)
        shares : ndarray, (n,)
            Weighted mean of the probabilities of each row's neighbours.
        """
        return self.log_ratios(margins) + np.float32(self.weight) * neighbour_log_odds(shares.astype(np.float32))

    def posterior(self, scores: np.ndarray, share: float) -> np.ndarray:
        """Probability of being positive, float64 (n,); only where `is_calibrated`.

        Parameters
        ----------
        scores : ndarray, (n,)
            Result of `scores`.
        share : float
            Share of positives where the rows come from.
        """
        assert self.model.neighbours_ is not None
        return self.model.neighbours_.tilt.posterior(scores, share)
