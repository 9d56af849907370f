import dataclasses

import numpy as np
import pytest
from helpers.neighbourhoods import dense_weights, random_graph
from scipy.special import expit, logit

from pucache.estimates.calibration import Tilt, fit_tilt
from pucache.estimates.review_weights import TrainingLabels
from pucache.labels.folds import assign_folds
from pucache.training.propagation import ChainLabels, propagate

N, FOLDS, SHARE = 300, 3, 0.2
DRAW = np.random.default_rng(0)
Y = DRAW.random(N) < 0.3
S = (Y & (DRAW.random(N) < 0.4)).astype(np.int8)
FOLD = assign_folds(S, FOLDS, 0, None)
LOG_RATIOS = (DRAW.normal(size=(N, FOLDS + 1)) + 2 * Y[:, None] - 1).astype(np.float32)
SHARES = np.full(FOLDS + 1, SHARE)
GRAPH = random_graph(N, among=Y ^ (DRAW.random(N) < 0.25))


def chains(s=S, reviewed=None, weights=None, fold=FOLD):
    return ChainLabels.of(TrainingLabels.of(s, reviewed, weights), fold, FOLDS)


def reviewed_rows():
    """Every fifth unlabelled row is confirmed or rejected."""
    reviewed = np.zeros(N, np.int8)
    rows = np.flatnonzero(S == 0)[::5]
    reviewed[rows] = np.where(Y[rows], 1, -1)
    return reviewed


def slow_chain(log_ratios, positive, negative, s, weights, W, rounds):
    """The chain written down plainly in float64."""

    def known(values):
        return np.where(positive, 1.0, np.where(negative, 0.0, values))

    q = p = known(expit(log_ratios.astype(float) + logit(SHARE)))
    tilt = Tilt(0.0, 1.0, SHARE)
    for _ in range(rounds):
        shares = np.clip(W @ p, 0.001, 0.999)
        f = log_ratios + np.log(shares / (1 - shares))
        tilt = fit_tilt(f, (positive & (s == 1)).astype(np.int8), weights, start=tilt)
        q = known(expit(tilt.alpha + tilt.slope * f + logit(max(tilt.prior, 0.003))))
        p = (p + q) / 2
    return q


@pytest.mark.parametrize("rounds", [0, 1, 3])
@pytest.mark.parametrize("reviewed", [None, reviewed_rows()], ids=["labels", "review"])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weights"])
def test_each_chain_is_the_one_written_down_plainly(rounds, reviewed, weighted):
    weights = np.random.default_rng(1).uniform(0.5, 2, N).astype(np.float32) if weighted else None
    labels = chains(reviewed=reviewed, weights=weights)
    graph = dataclasses.replace(GRAPH, rows=GRAPH.rows.copy(), cosines=GRAPH.cosines.copy())
    graph.rows[:3], graph.cosines[:3] = -1, -np.inf  # no neighbours
    graph.rows[3:9, 2:], graph.cosines[3:9, 2:] = -1, -np.inf  # fewer than others
    targets = propagate(LOG_RATIOS, labels, SHARES, graph, rounds=rounds)
    assert targets.dtype == np.float32 and targets.shape == LOG_RATIOS.shape
    W = dense_weights(graph, N)
    for chain in range(FOLDS + 1):
        known = labels.positive[:, chain], labels.negative[:, chain]
        expected = slow_chain(LOG_RATIOS[:, chain], *known, S, weights, W, rounds)
        np.testing.assert_allclose(targets[:, chain], expected, atol=5e-3)


@pytest.mark.parametrize("hidden", [0, 2])
def test_after_a_review_that_confirmed_nearly_all_positives_negatives_stay_negative(hidden):
    draw = np.random.default_rng(0)
    y = np.arange(1500) < 200
    s, reviewed = np.zeros((2, len(y)), np.int8)
    s[:20], reviewed[20 : 200 - hidden], reviewed[200:260] = 1, 1, -1
    margins = np.where(y, draw.normal(10, 3, len(y)), draw.normal(-12, 6, len(y)))
    log_ratios = np.repeat(margins[:, None], FOLDS + 1, axis=1).astype(np.float32)
    labels, graph = (
        chains(s, reviewed, fold=assign_folds(s, FOLDS, 0, None)),
        random_graph(len(y), k=2, among=np.arange(1500) // 50),
    )
    targets = propagate(log_ratios, labels, np.full(FOLDS + 1, 1e-12), graph, rounds=3)
    assert targets[~y].mean() < 0.01
    assert targets[y].mean() > 0.97
