import dataclasses

import numpy as np
import pytest
from helpers import plain
from helpers.planted import planted, write_cache
from helpers.tiny import tiny_encoder
from scipy.special import logit

from pucache.errors import CacheError, ModelError
from pucache.pu.classifier import PULinearClassifier
from pucache.pu.labels import Labels
from pucache.retrieval import model_scorers
from pucache.retrieval.model_scorers import Fused, Margins, neighbours
from pucache.retrieval.retrieve import rank_unlabelled

pytestmark = pytest.mark.usefixtures("one_thread")
N = 300
X, S, Y = planted(N, labelled=30)
REVIEWED = np.zeros(N, np.int8)
REVIEWED[np.flatnonzero((Y == 1) & (S == 0))[:8]] = 1
REVIEWED[np.flatnonzero(Y == 0)[:12]] = -1
LABELS = Labels(S, REVIEWED)


@pytest.fixture(scope="module")
def model():
    return PULinearClassifier(prior=0.3, penalty=1e-3, device="cpu").fit(X, S)


def fused(model, X, labels, asked):
    """The definition, row by row."""
    margins = model.margins(X).astype(float)
    posterior = model.posterior(margins)
    W = plain.whitened(X)
    scores = np.array(model.tilt_.log_ratio(margins), float)
    for row in range(len(X)):
        if not asked[row]:
            scores[row] += 2 * logit(1e-3)
            continue
        near = [other for other in np.argsort(-W @ W[row], kind="stable") if other != row][:30]
        total = said = 0.0
        for other in near:
            weight = np.exp(W[other] @ W[row] / 0.1)
            told = 1 if labels.positive[other] else 0 if labels.negative[other] else posterior[other]
            total, said = total + weight, said + weight * told
        scores[row] += 2 * logit(min(max(said / total, 1e-3), 1 - 1e-3))
    return scores


# --- margins -----------------------------------------------------------------------------------


def test_scores_are_margins_and_the_posterior_is_the_models(opened, model):
    scores = Margins(model)(opened(X), LABELS)
    assert (scores.values == model.margins(X)).all() and scores.values.dtype == np.float32
    rows = np.array([5, 250, 0])
    assert (scores.posterior(rows) == model.posterior(model.margins(X))[rows]).all()


@pytest.mark.parametrize("scorer", [Margins, lambda model: Fused(model, "cpu")])
def test_a_model_of_another_encoder_is_refused(tmp_path, scorer):
    other = PULinearClassifier(prior=0.3, penalty=1e-3, device="cpu").fit(X, S)
    other.encoder_ = dataclasses.replace(tiny_encoder().spec, dim=6)
    with pytest.raises(ModelError, match="holds embeddings of imported:planted"):
        scorer(other)(write_cache(tmp_path / "cache.h5", X), LABELS)


@pytest.mark.parametrize("scorer", [Margins, lambda model: Fused(model, "cpu")])
def test_rows_that_are_not_finite_are_named(tmp_path, model, scorer):
    bad = X.copy()
    bad[7, 2] = np.nan
    with pytest.raises(CacheError, match=r"'00007.png'"):
        scorer(model)(write_cache(tmp_path / "cache.h5", bad), LABELS)


# --- fused -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_fused_scores_are_those_of_the_definition(opened, model, dtype):
    rows = X.astype(dtype)
    scores = Fused(model, "cpu")(opened(rows), LABELS)
    expected = fused(model, rows, LABELS, LABELS.unlabelled)
    np.testing.assert_allclose(scores.values, expected, atol=0.02 if dtype == np.float16 else 5e-3)
    assert (scores.posterior(np.arange(N)) == model.posterior(model.margins(rows))).all()


def test_what_a_review_told_counts_in_the_neighbourhood(tmp_path, model):
    cache = write_cache(tmp_path / "cache.h5", X)
    flipped = Labels(S, -REVIEWED)
    got, other = (Fused(model, "cpu")(cache, labels).values for labels in (LABELS, flipped))
    both = LABELS.unlabelled
    assert np.abs(got - other)[both].max() > 0.5
    np.testing.assert_allclose(other, fused(model, X, flipped, both), atol=5e-3)


@pytest.mark.parametrize("pairs, least, pool", [(1, 50, 50), (60 * N, 1, 60), (1, 1, 1), (1 << 34, 2000, 250)])
def test_rows_beyond_the_pool_come_after_it_in_the_order_of_their_margins(
    opened, model, monkeypatch, pairs, least, pool
):
    monkeypatch.setattr(model_scorers, "_MAX_PAIRS", pairs)
    monkeypatch.setattr(model_scorers, "_MIN_CANDIDATES", least)
    cache, margins = opened(X), model.margins(X)
    order = plain.ranked(margins, LABELS.unlabelled, N)
    asked = np.isin(np.arange(N), order[:pool])
    result = rank_unlabelled(cache, LABELS, k=None, scorer=Fused(model, "cpu"), twins=None)
    assert set(result.rows[:pool]) == set(order[:pool]) and result.rows[pool:].tolist() == order[pool:].tolist()
    assert (np.diff(result.scores) <= 0).all()
    np.testing.assert_allclose(result.scores, fused(model, X, LABELS, asked)[result.rows], atol=5e-3)
    assert (result.posterior == model.posterior(margins)[result.rows]).all()


@pytest.mark.parametrize("n", [2, 5, 31])
def test_fewer_rows_than_neighbours_do_too(tmp_path, model, n):
    rows = X[np.argsort(-Y, kind="stable")[:n]]
    labels = Labels.of(np.arange(n) == 0)
    scores = Fused(model, "cpu")(write_cache(tmp_path / "cache.h5", rows), labels)
    np.testing.assert_allclose(scores.values, fused(model, rows, labels, labels.unlabelled), atol=5e-3)


def test_equal_rows_have_finite_scores(opened, model):
    scores = Fused(model, "cpu")(opened(np.ones((N, 6), np.float32)), LABELS).values
    assert np.isfinite(scores).all()


# --- neighbours --------------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [1, 40, 1 << 16])
@pytest.mark.parametrize("k", [1, 30, 299, 400])
def test_neighbours_are_those_of_all_cosines(opened, monkeypatch, k, at_once):
    monkeypatch.setattr(model_scorers, "_ROWS_PER_SEARCH", at_once)
    wanted = np.array([0, 7, 150, 299])
    cosines, rows = neighbours(opened(X), wanted, k, device="cpu")
    W = plain.whitened(X)
    every = W[wanted] @ W.T
    every[np.arange(4), wanted] = -np.inf
    expected = -np.sort(-every, axis=1)[:, : min(k, N - 1)]
    assert cosines.shape == rows.shape == (4, k)
    np.testing.assert_allclose(cosines[:, : N - 1], expected, atol=1e-3)
    found = rows[:, : N - 1]
    np.testing.assert_allclose(np.take_along_axis(every, found, 1), expected, atol=1e-3)
    assert all(len(set(some)) == len(some) for some in found.tolist()) and not (found == wanted[:, None]).any()
    assert (rows[:, N - 1 :] == -1).all() and (cosines[:, N - 1 :] == -np.inf).all()


def test_a_row_is_not_its_own_neighbour_among_its_copies(opened):
    copies = X[np.arange(N) % 3]
    _, rows = neighbours(opened(copies), np.arange(N), 30, device="cpu")
    assert not (rows == np.arange(N)[:, None]).any() and (rows % 3 == np.arange(N)[:, None] % 3).all()
    assert all(len(set(some)) == 30 for some in rows.tolist())


def test_neighbours_are_sought_for_so_many_rows_as_the_wanted_ones_ask_for(tmp_path, monkeypatch, model):
    monkeypatch.setattr("pucache.retrieval.model_scorers._MIN_CANDIDATES", 1)
    monkeypatch.setattr("pucache.retrieval.model_scorers._CANDIDATES_PER_ROW", 3)
    cache, sought = write_cache(tmp_path / "cache.h5", X), []
    genuine = model_scorers.neighbours

    def counted(cache, wanted, *given, **named):
        sought.append(len(wanted))
        return genuine(cache, wanted, *given, **named)

    monkeypatch.setattr(model_scorers, "neighbours", counted)
    for count in (10, None):
        Fused(model, "cpu")(cache, LABELS, count)
    assert sought == [30, LABELS.unlabelled.sum()]
