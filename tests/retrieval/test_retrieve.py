import csv

import numpy as np
import pytest
from helpers import plain
from helpers.planted import ODD_KEYS, planted, write_cache
from hypothesis import given, settings
from hypothesis import strategies as st

from pucache import PULabels, PULinearClassifier
from pucache.labels.read_labels import open_labels
from pucache.retrieval.ranking import select_diverse
from pucache.retrieval.retrieve import rank_unlabelled
from pucache.retrieval.scorers import SIMILARITIES, TOP, Fused, Margins, Similarity

pytestmark = pytest.mark.usefixtures("one_thread")
N = 300
X, S, Y = planted(N, labelled=30)


@pytest.fixture(scope="module")
def model():
    return PULinearClassifier(prior=0.3, penalty=1e-3, device="cpu").fit(X, S)


# --- the order ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SIMILARITIES)
def test_the_best_unlabelled_rows_come_in_order(opened, kind):
    cache, scores = opened(X), plain.similarity(kind, X, S == 1)
    for k in (1, 50, 10**6, None):
        result = rank_unlabelled(cache, S, k=k, scorer=Similarity(kind, "cpu"))
        expected = plain.ranked(scores, S == 0, k)
        np.testing.assert_allclose(result.scores, scores[expected], atol=2e-4)
        np.testing.assert_allclose(result.scores, scores[result.rows], atol=2e-4)
        assert len(set(result.rows)) == len(result.rows) == len(expected) and (S[result.rows] == 0).all()
        assert (np.diff(result.scores) <= 0).all() and result.posterior is None
        assert result.keys == [f"{row:04}.png" for row in result.rows]


@pytest.mark.parametrize("kind", SIMILARITIES)
def test_of_equal_scores_the_earlier_row_comes_first(opened, kind):
    kinds, of_kind = np.array([[3, 0, 0], [0, 2, 0], [1, 1, 1]], np.float32), np.arange(N) % 3
    cache = opened(kinds[of_kind])
    for labelled in (1, 40):
        positive = (of_kind == 0) & (np.arange(N) >= N - 3 * labelled)
        s, scores = positive.astype(np.int8), plain.similarity(kind, kinds[of_kind], positive).round(6)
        for k in (5, 130, 250):
            result = rank_unlabelled(cache, s, k=k, scorer=Similarity(kind, "cpu"), twins=None)
            assert result.rows.tolist() == plain.ranked(scores, ~positive, k).tolist(), (labelled, k)


# --- what is left out --------------------------------------------------------------------------


def scorers(model):
    return [Similarity("topk", "cpu"), Margins(model), Fused(model, "cpu")]


def test_twins_of_what_is_known_are_left_out_by_every_scorer(opened, model):
    digests = np.random.default_rng(0).integers(0, 256, (N, 32), np.uint8)
    labelled, confirmed, negative = np.flatnonzero(S)[0], *np.flatnonzero(S == 0)[:2]
    reviewed = np.zeros(N, np.int8)
    reviewed[[confirmed, negative]] = 1, -1
    a, b, c, d, e, f = np.flatnonzero((S == 0) & (reviewed == 0))[:6]
    rows = X.copy()
    rows[a], rows[b], rows[c] = rows[labelled], 2 * rows[confirmed], 3 * rows[negative]
    for twin, of in ((d, labelled), (e, confirmed), (f, negative)):
        digests[twin] = digests[of]
    cache, labels = opened(rows, digests), PULabels(S, reviewed)
    for scorer in scorers(model):
        everything = set(np.flatnonzero(labels.unlabelled))
        assert set(rank_unlabelled(cache, labels, k=None, scorer=scorer).rows) == everything - {a, b, c, d, e, f}
        for limit in (None, 1.5):
            found = set(rank_unlabelled(cache, labels, k=None, scorer=scorer, twins=limit).rows)
            assert found == everything - {d, e, f}


def test_twins_in_the_first_places_make_room_for_what_comes_next(opened, monkeypatch):
    rows = X.copy()
    copies = np.flatnonzero(S == 0)[:60]
    rows[copies] = rows[np.flatnonzero(S)[0]] * np.linspace(1, 2, 60, dtype=np.float32)[:, None]
    s = (np.arange(N) == np.flatnonzero(S)[0]).astype(np.int8)
    new = (s == 0) & ~np.isin(np.arange(N), copies)
    cache, scores = opened(rows), plain.similarity("topk", rows, s == 1)
    for spare in (0, 3, 1 << 12):
        monkeypatch.setattr("pucache.retrieval.retrieve._SPARE", spare)
        for k in (1, 20, 250):
            result = rank_unlabelled(cache, s, k=k, scorer=Similarity("topk", "cpu"))
            assert len(result.rows) == min(k, new.sum()) and new[result.rows].all()
            np.testing.assert_allclose(result.scores, scores[plain.ranked(scores, new, k)], atol=1e-5)


# --- spread out --------------------------------------------------------------------------------


def test_a_spread_out_selection_is_made_of_ten_times_as_many_best(opened):
    cache, by = opened(X), Similarity("topk", "cpu")
    for k, weight in ((5, 0.5), (20, 0.9), (20, 1.0), (300, 0.3)):
        pool = rank_unlabelled(cache, S, k=10 * min(k, N), scorer=by)
        expected = pool.rows[select_diverse(plain.unit(X)[pool.rows].astype(np.float32), k, weight)]
        result = rank_unlabelled(cache, S, k=k, scorer=by, diverse=weight)
        assert result.rows.tolist() == expected.tolist()
        of = dict(zip(pool.rows.tolist(), pool.scores, strict=True))
        assert [of[row] for row in result.rows.tolist()] == result.scores.tolist()
        assert result.keys == [cache.keys[int(row)] for row in result.rows]


# --- the file ----------------------------------------------------------------------------------


def test_a_ranking_comes_back_from_its_file_and_serves_as_positives(tmp_path):
    keys = [*ODD_KEYS, "labelled.png"]
    cache = write_cache(tmp_path / "cache.h5", X[: len(keys)], keys)
    s = np.array([key == "labelled.png" for key in cache.keys], np.int8)
    ranking = rank_unlabelled(cache, s)
    ranking.save(tmp_path / "out" / "ranked.csv")
    with (tmp_path / "out" / "ranked.csv").open(newline="", encoding="utf-8") as stream:
        table = list(csv.DictReader(stream, strict=True))
    assert [list(row) for row in table] == [["rank", "key", "score"]] * len(ODD_KEYS)
    assert [int(row["rank"]) for row in table] == list(range(1, len(ODD_KEYS) + 1))
    assert [row["key"] for row in table] == ranking.keys and sorted(ranking.keys) == sorted(ODD_KEYS)
    np.testing.assert_allclose([float(row["score"]) for row in table], ranking.scores, rtol=1e-5)
    listed = open_labels(cache, tmp_path / "out" / "ranked.csv").only
    np.testing.assert_array_equal(listed.s, 1 - s)


# --- similarity -----------------------------------------------------------------------------------


def score(cache, positive, kind):
    return Similarity(kind, "cpu")(cache, PULabels.of(positive.astype(np.int8))).values


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("labelled", [1, 30, 120])
def test_scores_are_those_of_the_definition(opened, labelled, dtype):
    rows = X.astype(dtype)
    positive = np.zeros(N, bool)
    positive[np.flatnonzero(Y)[:labelled]] = True
    assert (positive.sum() < TOP) == (labelled < 100)
    cache = opened(rows)
    for kind in SIMILARITIES:
        got, expected = score(cache, positive, kind), plain.similarity(kind, rows, positive)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, expected, atol=2e-4 if kind == "whitened" else 1e-5, err_msg=kind)


def test_confirmed_positives_count_as_labelled_ones_and_negatives_do_not_count(tmp_path):
    cache = write_cache(tmp_path / "cache.h5", X)
    reviewed = np.zeros(N, np.int8)
    reviewed[np.flatnonzero((Y == 1) & (S == 0))[:9]] = 1
    reviewed[np.flatnonzero(Y == 0)[:9]] = -1
    for kind in SIMILARITIES:
        got = Similarity(kind, "cpu")(cache, PULabels(S, reviewed)).values
        assert (got == score(cache, (S == 1) | (reviewed == 1), kind)).all(), kind
        assert (got != score(cache, S == 1, kind)).any(), kind


@pytest.mark.parametrize("kind", ["centroid", "max", "cosine", ""])
def test_what_there_is_no_more_is_named_with_what_replaces_it(kind):
    with pytest.raises(ValueError, match=r"use whitened .for centroid. or topk .for max"):
        Similarity(kind)


# --- mmr ------------------------------------------------------------------------------------------


def unit_rows(m, d, seed):
    Z = np.random.default_rng(seed).normal(size=(m, d)).astype(np.float32)
    return Z / np.linalg.norm(Z, axis=1, keepdims=True)


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 80), st.floats(0, 1), st.integers(0, 99))
def test_each_row_taken_is_the_best_of_those_left(m, k, weight, seed):
    Z = unit_rows(m, 4, seed)
    taken = select_diverse(Z, k, weight)
    assert len(taken) == len(set(taken)) == min(k, m) and taken.dtype == np.int64
    if weight < 1:
        assert taken[0] == 0, "nothing is like nothing taken"
    relevance = np.linspace(1, 0, m)
    for number, chosen in enumerate(taken):
        likest = (Z.astype(float) @ Z[taken[:number]].T.astype(float)).max(1, initial=-1)
        value = (1 - weight) * relevance - weight * likest
        value[taken[:number]] = -np.inf
        assert value[chosen] >= value.max() - 1e-5
