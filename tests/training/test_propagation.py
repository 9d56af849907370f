import dataclasses

import numpy as np
import pytest
from helpers.neighbourhoods import dense_weights, random_graph
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import expit, logit

from pucache.estimates.calibration import Tilt, fit_tilt
from pucache.estimates.review_weights import TrainingLabels
from pucache.labels.folds import assign_folds
from pucache.neighbours.graph import NeighbourGraph
from pucache.training.propagation import LEAST_SHARE, ChainLabels, neighbour_log_odds, probabilities, propagate

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


@pytest.mark.parametrize("held", range(FOLDS))
def test_the_chain_of_a_fold_is_blind_to_the_labels_and_to_the_review_of_the_fold(held):
    first = propagate(LOG_RATIOS, chains(reviewed=reviewed_rows()), SHARES, GRAPH, rounds=3)
    s, reviewed = S.copy(), reviewed_rows()
    s[held == FOLD] = reviewed[held == FOLD] = 0
    second = propagate(LOG_RATIOS, chains(s, reviewed), SHARES, GRAPH, rounds=3)
    assert (first[:, held] == second[:, held]).all(), "bit for bit"
    others = np.arange(FOLDS + 1) != held
    assert (first != second).any(0)[others].all()


def test_known_rows_stay_known_where_a_chain_sees_them():
    reviewed = reviewed_rows()
    targets = propagate(LOG_RATIOS, chains(reviewed=reviewed), SHARES, GRAPH, rounds=2)
    for chain in range(FOLDS + 1):
        seen = chain != FOLD
        assert (targets[seen & ((S == 1) | (reviewed == 1)), chain] == 1).all()
        assert (targets[seen & (reviewed == -1), chain] == 0).all()
        rest = targets[~seen | ((S == 0) & (reviewed == 0)), chain]
        assert ((rest > 0) & (rest < 1)).mean() > 0.9  # others are rounded to 0 or 1
    held_out = targets[np.arange(N), FOLD]
    assert (held_out[S == 1] < 1).mean() > 0.5, "a held-out positive is an unlabelled row"


def test_rows_among_positives_rise_and_rows_among_negatives_fall():
    """With margins that say nothing, the labels and the graph alone."""
    flat = np.zeros((N, FOLDS + 1), np.float32)
    clean = random_graph(N, k=10, among=Y)
    targets = propagate(flat, chains(), SHARES, clean, rounds=6)
    rest = S == 0
    assert targets[rest & Y].min(0).min() > targets[rest & ~Y].max(0).max()


def test_the_mean_over_unlabelled_rows_is_weighted_and_counts_held_out_positives():
    values = np.random.default_rng(2).random((N, FOLDS + 1)).astype(np.float32)
    weights = np.random.default_rng(3).uniform(0, 2, N).astype(np.float32)
    for row_weights in (None, weights):
        means = chains(weights=row_weights).unlabelled_means(values)
        for chain in range(FOLDS + 1):
            free = (S == 0) | (chain == FOLD)
            of_free = None if row_weights is None else row_weights[free]
            assert means[chain] == pytest.approx(np.average(values[free, chain], weights=of_free), rel=1e-5)


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


@given(arrays(np.float32, st.integers(1, 20), elements=st.floats(0, 1, width=32)))
def test_log_odds_of_shares_are_finite_odd_and_rise(shares):
    odds = neighbour_log_odds(shares)
    assert odds.dtype == shares.dtype and np.abs(odds).max() <= logit(0.999) + 1e-3
    np.testing.assert_allclose(neighbour_log_odds(1 - shares), -odds, atol=1e-3)
    order = np.argsort(shares)
    assert (np.diff(odds[order]) >= 0).all()


@given(
    arrays(np.float32, (7, 2), elements=st.floats(-(2.0**100), 2.0**100, width=32)),
    st.floats(0, 1) | st.just(0.5) | arrays(np.float64, 2, elements=st.floats(0, 1)),
)
def test_probabilities_are_between_0_and_1_whatever_the_margins(log_ratios, share):
    p = probabilities(log_ratios, share)
    assert p.dtype == np.float32 and p.shape == log_ratios.shape and ((p >= 0) & (p <= 1)).all()
    zero = probabilities(np.zeros((1, 2), np.float32), share)[0]
    np.testing.assert_allclose(zero, np.maximum(share, LEAST_SHARE), rtol=1e-4)


def test_a_graph_without_neighbours_gives_the_calibrated_margins():
    rows, cosines = np.full((N, 4), -1, np.int32), np.full((N, 4), -np.inf, np.float16)
    targets = propagate(LOG_RATIOS, chains(), SHARES, NeighbourGraph(rows=rows, cosines=cosines), rounds=3)
    rest = S == 0
    for chain in range(FOLDS + 1):
        order = np.argsort(LOG_RATIOS[rest, chain])
        assert (np.diff(targets[rest, chain][order]) >= -1e-6).all()
