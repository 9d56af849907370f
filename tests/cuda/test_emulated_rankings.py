"""Rankings on a device that is emulated: results are the CPU's, and no devices are mixed."""

import numpy as np
import pytest
import torch
from helpers.emulated_cuda import emulated_cuda
from helpers.planted import planted, write_cache

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.pu.train import train_pu
from pucache.retrieval.model_scorers import Fused
from pucache.retrieval.retrieve import rank_unlabelled
from pucache.retrieval.similarity import Similarity

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, on which test_gpu.py runs"),
    pytest.mark.usefixtures("one_thread"),
]


@pytest.fixture(scope="module")
def rows():
    X, s, _ = planted(600, 24, 60, 0.1, seed=0)
    return X, s


@pytest.fixture
def cache(rows, tmp_path):
    write_cache(tmp_path / "cache.h5", rows[0])
    return EmbeddingCache(tmp_path / "cache.h5")


@pytest.mark.parametrize("by", [Similarity, Fused])
def test_a_ranking_is_that_of_the_cpu(rows, cache, by):
    model = train_pu(cache, rows[1], device="cpu") if by is Fused else None
    arguments = (model,) if by is Fused else ("whitened",)
    expected = rank_unlabelled(cache, rows[1], k=50, scorer=by(*arguments, device="cpu"))
    with emulated_cuda():
        ranking = rank_unlabelled(cache, rows[1], k=50, scorer=by(*arguments, device="cuda"))
    assert ranking.keys == expected.keys
    np.testing.assert_allclose(ranking.scores, expected.scores, rtol=1e-5)
