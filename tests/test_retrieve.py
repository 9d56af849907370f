import csv
import dataclasses

import numpy as np
import pytest
from planted import planted, write_cache
from tiny import tiny_encoder

from pucache.cache import EmbeddingCache
from pucache.classifier import PULinearClassifier
from pucache.errors import ModelError, OutputError
from pucache.labels import find_keys
from pucache.retrieve import SIMILARITIES, Ranking, retrieve

N = 300
X, S, Y = planted(N, labelled=30)
ODD = ['a,"b".png', "c\nd.png", "e\r\nf.png", "g\rh.png", "i\u2028j.png", " k .png", "é🦊.png", "'l'.png", '"m".png']


@pytest.fixture(params=["one block", "small blocks", "small blocks of three files"])
def opened(request, tmp_path, monkeypatch):
    """Open rows as a cache, in one block or in many."""
    if request.param != "one block":
        monkeypatch.setattr("pucache.cache_file.BLOCK_BYTES", 1000)

    def make(X):
        parts = np.array_split(np.arange(len(X)), 3 if "files" in request.param else 1)
        for number, rows in enumerate(parts):
            write_cache(tmp_path / f"{number}.h5", X[rows], [f"{row:04}.png" for row in rows])
        cache = EmbeddingCache(tmp_path)
        assert (len(list(cache.blocks())) > 3) == (request.param != "one block")
        return cache

    return make


def cosines(X, s):
    """Of each row to each labelled one, centred, in float64."""
    centred = X.astype(float) - X.astype(float).mean(0)
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    return centred @ centred[s == 1].T


def ranked(scores, s, k):
    """Unlabelled rows by falling score, ties by row."""
    rows = np.lexsort((np.arange(len(s)), -scores))
    return rows[s[rows] == 0][:k]


# --- by similarity -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("k", [1, 50, 10**6])
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_the_ranking_is_that_of_all_cosines(opened, similarity, k, dtype):
    rows = X.astype(dtype)
    scores = getattr(cosines(rows, S), "mean" if similarity == "centroid" else "max")(1)
    result = retrieve(opened(rows), S, k=k, similarity=similarity)
    np.testing.assert_allclose(result.scores, scores[ranked(scores, S, k)], atol=1e-5)
    np.testing.assert_allclose(result.scores, scores[result.rows], atol=1e-5)
    assert len(set(result.rows)) == len(result.rows) == min(k, N - 30) and (S[result.rows] == 0).all()
    assert (np.diff(result.scores) <= 0).all()
    assert result.keys == [f"{row:04}.png" for row in result.rows]


def test_hidden_positives_come_first(opened):
    result = retrieve(opened(X), S, k=50)
    assert Y[result.rows].mean() > 0.95


@pytest.mark.parametrize("labelled", [1, 3, 40])
@pytest.mark.parametrize("k", [1, 5, 130, 250])
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_of_equal_scores_the_earlier_row_comes_first(opened, similarity, k, labelled):
    kinds = np.array([[3, 0, 0], [0, 2, 0], [1, 1, 1]], np.float32)
    of_kind = np.arange(N) % 3
    s = (np.arange(N) % 3 == 0) & (np.arange(N) >= N - 3 * labelled)
    scores = cosines(kinds[of_kind], s).max(1).round(6)
    result = retrieve(opened(kinds[of_kind]), s.astype(np.int8), k=k, similarity=similarity)
    assert result.rows.tolist() == ranked(scores, s, k).tolist()


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_rows_without_a_direction_score_zero(opened, similarity):
    s = (np.arange(N) == 7).astype(np.int8)
    result = retrieve(opened(np.ones((N, 4), np.float32)), s, k=120, similarity=similarity)
    assert (result.scores == 0).all() and result.rows.tolist() == [row for row in range(121) if row != 7]


# --- by a model --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    return PULinearClassifier(prior=0.3, device="cpu").fit(X, S)


@pytest.mark.parametrize("k", [1, 50, 10**6])
def test_a_model_ranks_by_its_margins(opened, model, k):
    rows = np.repeat(X[:100], 3, axis=0)  # with ties
    result, margins = retrieve(opened(rows), S, k=k, model=model), model.margins(rows)
    expected = ranked(margins, S, k)
    np.testing.assert_allclose(result.scores, margins[expected], rtol=1e-5, atol=1e-5)
    assert (S[result.rows] == 0).all() and len(set(result.rows)) == len(expected)


def test_a_model_of_another_encoder_is_refused(tmp_path, model):
    spec = dataclasses.replace(tiny_encoder().spec, dim=6)
    other = PULinearClassifier(prior=0.3, device="cpu").fit(X, S)
    other.encoder_ = spec
    with pytest.raises(ModelError, match="holds embeddings of imported:planted"):
        retrieve(write_cache(tmp_path / "cache.h5", X), S, model=other)


@pytest.mark.parametrize(
    "bad, message",
    [
        ({"k": 0}, "k must be at least 1, got 0"),
        ({"similarity": "cosine"}, "unknown similarity 'cosine'; use centroid or max"),
        ({"s": 0 * S}, "no labelled positives"),
        ({"s": 0 * S + 1}, "all 300 rows"),
        ({"s": S[:-1]}, "299 labels, but .* has 300 rows"),
        ({"s": np.append(S, 1)}, "301 labels, but .* has 300 rows"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(tmp_path, bad, message):
    with pytest.raises(ValueError, match=message):
        retrieve(write_cache(tmp_path / "cache.h5", X), **{"s": S} | bad)


# --- the file ----------------------------------------------------------------------------------


def test_a_ranking_comes_back_from_its_file_and_serves_as_positives(tmp_path):
    keys = [*ODD, "labelled.png"]
    cache = write_cache(tmp_path / "cache.h5", X[: len(keys)], keys)
    s = np.array([key == "labelled.png" for key in cache.keys], np.int8)
    ranking = retrieve(cache, s)
    ranking.save(tmp_path / "out" / "ranked.csv")
    with (tmp_path / "out" / "ranked.csv").open(newline="", encoding="utf-8") as stream:
        table = list(csv.DictReader(stream, strict=True))
    assert [list(row) for row in table] == [["rank", "key", "score"]] * len(ODD)
    assert [int(row["rank"]) for row in table] == list(range(1, len(ODD) + 1))
    assert [row["key"] for row in table] == ranking.keys and sorted(ranking.keys) == sorted(ODD)
    np.testing.assert_allclose([float(row["score"]) for row in table], ranking.scores, rtol=1e-5)
    assert find_keys(cache.keys, tmp_path / "out" / "ranked.csv").tolist() == np.flatnonzero(s == 0).tolist()


def test_plain_keys_are_written_plainly(tmp_path):
    Ranking(np.array([4, 2]), ["b.png", "a b.png"], np.array([0.5, -1e-7], np.float32)).save(tmp_path / "ranked.csv")
    assert (tmp_path / "ranked.csv").read_bytes() == b"rank,key,score\n1,b.png,0.5\n2,a b.png,-1e-07\n"


def test_a_ranking_that_cannot_be_written_is_an_output_error(tmp_path):
    with pytest.raises(OutputError, match="is a directory"):
        Ranking(np.array([0]), ["a"], np.array([1.0])).save(tmp_path)
