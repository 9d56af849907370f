"""Ranking by the labels of a sitting."""

import numpy as np
import pytest

from pucache.neighbours.graph import neighbour_graph
from pucache.reviewing.ranker import Ranker

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


def labels(y, positives=5, negatives=0):
    s, reviewed = np.zeros(N, np.int8), np.zeros(N, np.int8)
    s[np.flatnonzero(y)[:positives]] = 1
    reviewed[np.flatnonzero(~y)[:negatives]] = -1
    return s, reviewed


def found_on_top(scores, y, s, reviewed):
    unknown = np.flatnonzero((s == 0) & (reviewed == 0))
    top = unknown[np.argsort(-scores[unknown], kind="stable")[:30]]
    return y[top].mean()


@pytest.mark.parametrize("positives", [1, 2, 5, 20])
@pytest.mark.parametrize("negatives", [0, 1, 50])
def test_positives_rank_high(pile, positives, negatives):
    X, y = pile
    s, reviewed = labels(y, positives, negatives)
    ranker = Ranker(X, neighbour_graph(X))
    for result in (ranker.similarity(s, reviewed), ranker.fit(s, reviewed)):
        assert result.scores.shape == (N,) and result.scores.dtype == np.float32 and np.isfinite(result.scores).all()
        assert found_on_top(result.scores, y, s, reviewed) > (0.3 if positives > 1 else 0.2)


def test_posterior_is_a_probability_from_ten_positives_on(pile):
    X, y = pile
    few, many = (Ranker(X).fit(*labels(y, positives, 10)) for positives in (9, 10))
    assert few.posterior is None and np.isnan(few.expected)
    assert many.posterior is not None and (many.posterior >= 0).all() and (many.posterior <= 1).all()
    assert 0 < many.expected < 1


def test_the_same_calls_give_the_same_results(pile):
    X, y = pile
    graph = neighbour_graph(X)
    sittings = []
    for _ in range(2):
        ranker = Ranker(X, graph, seed=3)
        sittings.append([ranker.fit(*labels(y, count, count)).scores for count in (5, 6, 12)])
    for one, other in zip(*sittings, strict=True):
        np.testing.assert_array_equal(one, other)
