"""Choice of the penalty: the likelihood of the labels, and the prior on the grid."""

import numpy as np

from pucache.estimates.review_weights import TrainingLabels
from pucache.training.penalty import PENALTIES, log_posteriors


def pile(n_labelled=30, n=2000, prior=0.1, separation=2.0, seed=0):
    draw = np.random.default_rng(seed)
    s = (np.arange(n) < n_labelled).astype(np.int8)
    y = (s == 1) | (draw.random(n) < prior)
    return draw.normal(separation * y, 1).astype(np.float32), s, y


def test_margins_that_separate_the_positives_are_likelier():
    good, s, _ = pile(separation=3)
    weak, _, _ = pile(separation=0.5)
    chosen = log_posteriors([weak, good, weak], (1e-4, 1e-3, 1e-2), TrainingLabels.of(s))
    assert np.argmax(chosen) == 1


def test_equal_margins_leave_the_choice_to_the_prior():
    margins, s, _ = pile()
    labels = TrainingLabels.of(s)
    chosen = log_posteriors([margins] * len(PENALTIES), PENALTIES, labels)
    assert PENALTIES[int(np.argmax(chosen))] == 1e-3
    assert np.isfinite(log_posteriors([margins], (0.0,), labels)).all()
