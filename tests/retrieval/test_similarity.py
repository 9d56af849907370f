import numpy as np
import pytest
from helpers import plain
from helpers.planted import planted, write_cache

from pucache.labels.labels import Labels
from pucache.retrieval.similarity import SIMILARITIES, TOP, Similarity

N = 300
X, S, Y = planted(N, labelled=30)


def score(cache, positive, kind):
    return Similarity(kind, "cpu")(cache, Labels.of(positive.astype(np.int8))).values


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("labelled", [1, 30, 120])
@pytest.mark.parametrize("kind", SIMILARITIES)
def test_scores_are_those_of_the_definition(opened, kind, labelled, dtype):
    rows = X.astype(dtype)
    positive = np.zeros(N, bool)
    positive[np.flatnonzero(Y)[:labelled]] = True
    labelled = positive.sum()
    assert labelled == 1 or (labelled < TOP) == (labelled < 100)
    got = score(opened(rows), positive, kind)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, plain.similarity(kind, rows, positive), atol=2e-4 if kind == "whitened" else 1e-5)


@pytest.mark.parametrize("kind", SIMILARITIES)
def test_the_kinds_differ(tmp_path, kind):
    cache = write_cache(tmp_path / "cache.h5", X)
    others = [score(cache, Y == 1, other) for other in SIMILARITIES if other != kind]
    assert all(np.abs(score(cache, Y == 1, kind) - other).max() > 0.01 for other in others)


@pytest.mark.parametrize("kind", SIMILARITIES)
def test_confirmed_positives_count_as_labelled_ones_and_negatives_do_not_count(tmp_path, kind):
    cache = write_cache(tmp_path / "cache.h5", X)
    reviewed = np.zeros(N, np.int8)
    reviewed[np.flatnonzero((Y == 1) & (S == 0))[:9]] = 1
    reviewed[np.flatnonzero(Y == 0)[:9]] = -1
    got = Similarity(kind, "cpu")(cache, Labels(S, reviewed)).values
    assert (got == score(cache, (S == 1) | (reviewed == 1), kind)).all()
    assert (got != score(cache, S == 1, kind)).any()


@pytest.mark.parametrize("kind", ["whitened", "centroid"])
def test_equal_rows_score_equally_wherever_they_stand(opened, kind):
    of = np.random.default_rng(0).integers(0, 40, N)
    scores = score(opened(X[of]), S == 1, kind)
    assert all(len(set(scores[of == row])) == 1 for row in set(of))


@pytest.mark.parametrize("kind", SIMILARITIES)
def test_rows_without_a_direction_score_zero(opened, kind):
    assert (score(opened(np.ones((N, 4), np.float32)), np.arange(N) == 7, kind) == 0).all()


def test_of_few_positives_whitened_is_the_centroid_and_of_many_the_discriminant(tmp_path):
    scale = np.geomspace(5, 0.2, 6).astype(np.float32)
    cache = write_cache(tmp_path / "cache.h5", X * scale)
    Z = plain.unit(X * scale)
    few, many = np.arange(N) == np.flatnonzero(Y)[0], Y == 1
    discriminant = Z @ np.linalg.solve(Z.T @ Z / N, Z[many].mean(0))
    assert np.corrcoef(score(cache, few, "whitened"), score(cache, few, "centroid"))[0, 1] > 0.95
    apart = [1 - np.corrcoef(score(cache, many, kind), discriminant)[0, 1] for kind in ("whitened", "centroid")]
    assert apart[0] < 0.05 and apart[0] < apart[1] / 3


def test_an_unknown_kind_is_refused_and_each_has_a_name():
    with pytest.raises(ValueError, match="unknown similarity 'cosine'; use whitened, centroid, topk, max"):
        Similarity("cosine")
    assert [Similarity(kind).name for kind in SIMILARITIES] == [f"similarity ({kind})" for kind in SIMILARITIES]
