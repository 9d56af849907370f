"""Ranking by the labels of a review."""

import numpy as np
import pytest
from helpers.neighbourhoods import clusters, cut_across
from scipy.stats import spearmanr

from pucache.neighbours.graph import neighbour_graph
from pucache.neighbours.row_source import row_source
from pucache.training import ranker as ranker_module
from pucache.training.ranker import PileFeatures, Ranker, RankingFolds

N, D, POSITIVE = 600, 24, 60


@pytest.fixture(scope="module")
def pile():
    """Rows (n, d) of two clusters of positives among negatives, and the truth."""
    generator = np.random.default_rng(0)
    y = np.zeros(N, bool)
    y[generator.permutation(N)[:POSITIVE]] = True
    X = generator.normal(size=(N, D)).astype(np.float32)
    X[y, :4] += 1.5
    return X.astype(np.float16), y


@pytest.fixture(scope="module")
def graph(pile):
    return neighbour_graph(pile[0])


def labels(y, positives=5, negatives=0):
    s, reviewed = np.zeros(N, np.int8), np.zeros(N, np.int8)
    s[np.flatnonzero(y)[:positives]] = 1
    reviewed[np.flatnonzero(~y)[:negatives]] = -1
    return s, reviewed


def found_on_top(scores, y, s, reviewed):
    unknown = np.flatnonzero((s == 0) & (reviewed == 0))
    top = unknown[np.argsort(-scores[unknown], kind="stable")[:30]]
    return y[top].mean()


@pytest.mark.parametrize("positives", [1, 2, 20])
@pytest.mark.parametrize("negatives", [0, 50])
def test_positives_rank_high(pile, graph, positives, negatives):
    X, y = pile
    s, reviewed = labels(y, positives, negatives)
    result = Ranker(X, graph).fit(s, reviewed)
    assert result.scores.shape == (N,) and result.scores.dtype == np.float32 and np.isfinite(result.scores).all()
    assert found_on_top(result.scores, y, s, reviewed) > (0.3 if positives > 1 else 0.2)


def test_posterior_is_a_probability_from_ten_positives_on(pile):
    X, y = pile
    few, many = (Ranker(X).fit(*labels(y, positives, 10)) for positives in (9, 10))
    assert few.posterior is None
    assert many.posterior is not None and (many.posterior >= 0).all() and (many.posterior <= 1).all()


def test_wrong_decisions_are_doubted_first(pile):
    X, y = pile
    s, reviewed = labels(y, 12, 80)
    reviewed[np.flatnonzero(y)[12:40]] = 1
    score = X[:, :4].astype(np.float32).sum(1)
    unseen = np.flatnonzero((s == 0) & (reviewed == 0))
    wrong = min(unseen[~y[unseen]], key=lambda row: score[row]), max(unseen[y[unseen]], key=lambda row: score[row])
    reviewed[list(wrong)] = 1, -1
    doubted = Ranker(X).fit(s, reviewed).doubted
    assert set(wrong) <= set(doubted[:10].tolist()) and set(doubted) <= set(np.flatnonzero(reviewed | s))


def test_warm_start_ranks_as_cold_start(pile, graph):
    """A review, in which decisions are also changed, ends where a new ranker begins."""
    X, y = pile
    warm = Ranker(X, graph)
    for count in (1, 7, 19, 30, 39, 40):
        s, reviewed = labels(y, 5, 2 * count)
        reviewed[np.flatnonzero(y)[5 : 5 + count]] = 1 if count % 3 else -1
        last = warm.fit(s, reviewed)
    cold = Ranker(X, graph).fit(s, reviewed)
    assert spearmanr(last.scores, cold.scores).statistic > 0.99
    tops = [set(np.argsort(-result.scores)[:60]) for result in (last, cold)]
    assert len(tops[0] & tops[1]) >= 57


def test_positives_of_the_review_alone_are_enough(pile):
    X, y = pile
    s, reviewed = np.zeros(N, np.int8), np.zeros(N, np.int8)
    reviewed[np.flatnonzero(y)[:15]], reviewed[np.flatnonzero(~y)[:15]] = 1, -1
    result = Ranker(X).fit(s, reviewed)
    assert result.posterior is not None and found_on_top(result.scores, y, s, reviewed) > 0.3


@pytest.mark.parametrize(("draw", "helps"), [(clusters, True), (cut_across, False)])
def test_neighbours_count_where_they_help(draw, helps):
    X, s, _ = draw()
    ranker = Ranker(X, neighbour_graph(X))
    ranker.fit(s, np.zeros_like(s))
    assert (ranker.neighbour_weight > 0) == helps


def test_neighbours_are_weighed_when_positives_have_doubled(pile, graph):
    X, y = pile
    ranker = Ranker(X, graph)
    due = []
    for positives in (3, 4, 7, 8, 15, 16):
        due.append(ranker.choice_is_due(*labels(y, positives)))
        ranker.fit(*labels(y, positives))
    assert due == [False, True, False, True, False, True]
    assert not Ranker(X).choice_is_due(*labels(y, 16))


def test_neighbours_are_weighed_by_the_labels_from_before_the_review(pile, graph):
    X, y = pile
    s, reviewed = labels(y, 20)
    begun, resumed = (Ranker(X, graph) for _ in range(2))
    begun.fit(s, reviewed)
    reviewed[np.flatnonzero(y & (s == 0))[:60]] = 1
    assert not begun.choice_is_due(s, reviewed) and resumed.choice_is_due(s, reviewed)
    resumed.fit(s, reviewed)
    assert resumed.neighbour_weight == begun.neighbour_weight


def test_groups_stay_in_one_fold_and_positives_are_spread():
    group = np.repeat(np.arange(30), 2)
    folds = RankingFolds(group, seed=0)
    positive = np.zeros(60, bool)
    for row in range(0, 40, 4):
        positive[row : row + 2] = True
        folds.assign(positive)
    np.testing.assert_array_equal(folds.of_all[::2], folds.of_all[1::2])
    assert (np.bincount(folds.of_all[positive], minlength=5) == 4).all()
    before = folds.of_all.copy()
    folds.assign(positive)
    np.testing.assert_array_equal(folds.of_all, before)


def test_the_same_calls_give_the_same_results(pile, graph):
    X, y = pile
    rankings = []
    for _ in range(2):
        ranker = Ranker(X, graph, seed=3)
        rankings.append([ranker.fit(*labels(y, count, count)).scores for count in (5, 6, 12)])
    np.testing.assert_array_equal(*rankings)


# --- features ----------------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["kept", "from the cache"])
def features(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(ranker_module, "_KEPT_BYTES", 0)
    monkeypatch.setattr(ranker_module, "_BLOCK_ROWS", 33)
    X = (np.random.default_rng(0).normal(size=(500, 12)) * np.arange(1, 13) + 3).astype(np.float16)
    features = PileFeatures(row_source(X), np.random.default_rng(0))
    assert features.keeps_all == request.param
    return features, X


def test_margins_are_those_of_the_projected_rows(features):
    features, _ = features
    draw = np.random.default_rng(1)
    coef, intercept = draw.normal(size=(3, 12)).astype(np.float32), draw.normal(size=3).astype(np.float32)
    expected = features.take(np.arange(500)) @ coef.T + intercept
    np.testing.assert_allclose(features.margins(coef, intercept), expected, atol=1e-4)


def test_all_directions_keep_the_distances(features):
    """As many directions as dimensions: rows are turned, centred and scaled alike."""
    features, X = features
    Z, centred = features.take(np.arange(500)), X.astype(np.float64) - X.astype(np.float64).mean(0)
    gram = centred @ centred.T / np.square(centred).sum(1).mean()
    np.testing.assert_allclose(Z @ Z.T, gram, atol=1e-3)


def test_similarities_are_inner_products_of_centred_unit_rows(features):
    features, X = features
    query = np.random.default_rng(2).normal(size=12).astype(np.float32)
    expected = features.whitening.centred_units(X) @ query
    np.testing.assert_allclose(features.similarities(query), expected, atol=1e-4)


@pytest.mark.parametrize("sample", [500, 100])
def test_rows_that_are_not_finite_are_named(monkeypatch, sample):
    monkeypatch.setattr(ranker_module, "SAMPLE_ROWS", sample)
    X = np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)
    X[77, 2] = np.nan
    with pytest.raises(ValueError, match="row 77"):
        assert 77 in PileFeatures(row_source(X), np.random.default_rng(1)).all


@pytest.mark.parametrize("X", [np.ones((20, 3)), np.ones((1, 3)), np.eye(3), np.zeros((5, 1))])
def test_degenerate_rows(X):
    features = PileFeatures(row_source(X.astype(np.float32)), np.random.default_rng(0))
    assert np.isfinite(features.all).all() and np.isfinite(features.similarities(np.ones(X.shape[1], np.float32))).all()


def test_many_dimensions_give_the_same_directions(monkeypatch):
    X = (np.random.default_rng(0).normal(size=(300, 8)) * np.arange(8, 0, -1)).astype(np.float32)
    whole = PileFeatures(row_source(X), np.random.default_rng(0))
    monkeypatch.setattr(ranker_module, "_MOST_DIMENSIONS", 4)
    randomized = PileFeatures(row_source(X), np.random.default_rng(0))
    np.testing.assert_allclose(whole.whitening.variances, randomized.whitening.variances, rtol=1e-3)
    np.testing.assert_allclose(np.abs(whole.all), np.abs(randomized.all), atol=1e-2)
