"""Choice of the penalty: the most likely one, given the held-out margins of each candidate and a prior on the grid."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..estimates.calibration import log_likelihood
from ..estimates.review_weights import TrainingLabels

PENALTIES = tuple(float(f"{10 ** (step / 2 - 6):.3g}") for step in range(9))  # 1e-6 to 1e-2
_EXPECTED, _DECADES = 1e-3, 1.1  # log-normal prior on the penalty: its median, and its standard deviation


def log_posteriors(margins: Sequence[np.ndarray], penalties: Sequence[float], labels: TrainingLabels) -> np.ndarray:
    """Log posterior (J,) of each penalty, up to a constant, by the held-out margins (n, S) of the heads of each.

    The likelihood is that of the labels given the held-out margins, at the tilt that fits these margins best
    (`pucache.estimates.calibration`), and the mean over S divisions into folds. The prior is log-normal: with few
    labels, when the likelihoods hardly differ, a medium penalty is the safer choice. Positives that a review has
    confirmed count as labelled.
    """
    likelihood = [
        np.mean([log_likelihood(column, labels.training_s, labels.training_weights) for column in deals.T])
        for deals in margins
    ]
    floor = PENALTIES[0]  # for a penalty of 0
    decades = np.log10(np.maximum(penalties, floor) / _EXPECTED)
    return np.asarray(likelihood - np.square(decades / _DECADES) / 2)
