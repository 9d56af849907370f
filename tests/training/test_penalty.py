"""Choice of the penalty: the likelihood of the labels, and the prior on the grid."""

import numpy as np

from pucache.estimates.review_weights import TrainingLabels
from pucache.training.penalty import PENALTIES, log_posteriors


def test_equal_margins_leave_the_choice_to_the_prior():
    draw = np.random.default_rng(0)
    s = (np.arange(2000) < 30).astype(np.int8)
    labels, margins = TrainingLabels.of(s), draw.normal(2.0 * (s == 1), 1).astype(np.float32)
    chosen = log_posteriors([margins] * len(PENALTIES), PENALTIES, labels)
    assert PENALTIES[int(np.argmax(chosen))] == 1e-3
    assert np.isfinite(log_posteriors([margins], (0.0,), labels)).all()
