import numpy as np
import pytest
from helpers import plain
from helpers.planted import planted, write_cache

from pucache.labels.labels import PULabels
from pucache.retrieval.similarity import SIMILARITIES, TOP, Similarity

N = 300
X, S, Y = planted(N, labelled=30)


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
