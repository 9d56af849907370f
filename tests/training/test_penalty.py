"""Choice of the penalty: the likelihood of the labels, and the prior on the grid."""

import numpy as np

from pucache.estimates.review_weights import TrainingLabels
from pucache.training.cross_fitting import PENALTIES, log_posteriors


def test_equal_margins_leave_the_choice_to_the_prior():
    draw = np.random.default_rng(0)
    s = (np.arange(2000) < 30).astype(np.int8)
    labels, margins = TrainingLabels.of(s), draw.normal(2.0 * (s == 1), 1).astype(np.float32)[:, None]
    chosen = log_posteriors([margins] * len(PENALTIES), PENALTIES, labels)
    assert PENALTIES[int(np.argmax(chosen))] == 1e-3
    assert np.isfinite(log_posteriors([margins], (0.0,), labels)).all()


def test_the_likelihood_is_the_mean_over_the_deals():
    draw = np.random.default_rng(1)
    s = (np.arange(800) < 20).astype(np.int8)
    deals = (draw.normal(size=(800, 3)) + 2.0 * (s == 1)[:, None]).astype(np.float32)
    apart = [log_posteriors([deals[:, [number]]], (1e-3,), TrainingLabels.of(s))[0] for number in range(3)]
    assert log_posteriors([deals], (1e-3,), TrainingLabels.of(s))[0] == np.mean(apart) != apart[0]
