"""Heads and classifiers on a device that is emulated: results are the CPU's, and no devices are mixed."""

import numpy as np
import pytest
import torch
from helpers.emulated_cuda import emulated_cuda
from helpers.planted import planted, write_cache

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.heads.fit import fit_heads
from pucache.heads.minibatch import SGDSettings
from pucache.heads.risks import RISKS, PURisk
from pucache.pu.train import train_pu

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, on which test_gpu.py runs"),
    pytest.mark.usefixtures("one_thread"),
]
EPOCHS = 3


@pytest.fixture(scope="module")
def rows():
    X, s, _ = planted(600, 24, 60, 0.1, seed=0)
    return X, s


def heads(rows, device, **settings):
    X, s = rows
    options = {"prior": np.array([0.05, 0.1, 0.2]), "penalty": 1e-3, "risk": PURisk()} | settings
    return fit_heads(X, s, device=device, **options).margins(X)


def weights(rows):
    return np.random.default_rng(1).integers(0, 3, (len(rows[1]), 3)).astype(np.float32)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("risk", sorted(RISKS))
@pytest.mark.parametrize("solver", ["batch", "sgd"])
def test_heads_are_those_of_the_cpu(rows, solver, risk, weighted):
    settings = {"solver": solver, "risk": PURisk(risk), "weights": weights(rows) if weighted else None}
    if solver == "sgd":
        settings["sgd_settings"] = SGDSettings(epochs=EPOCHS, min_steps=0)
    expected = heads(rows, "cpu", **settings)
    with emulated_cuda():
        margins = heads(rows, "cuda", **settings)
    np.testing.assert_allclose(margins, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


@pytest.fixture
def cache(rows, tmp_path):
    write_cache(tmp_path / "cache.h5", rows[0])
    return EmbeddingCache(tmp_path / "cache.h5")


@pytest.mark.parametrize("method", ["linear", "distilled"])
def test_a_classifier_is_that_of_the_cpu(rows, cache, method):
    expected = train_pu(cache, rows[1], method=method, device="cpu")
    with emulated_cuda():
        model = train_pu(cache, rows[1], method=method, device="cuda")
    assert model.method_ == expected.method_ and model.penalty_ == expected.penalty_
    assert model.prior_ == pytest.approx(expected.prior_, rel=1e-3)
    margins = expected.margins(rows[0])
    np.testing.assert_allclose(model.margins(rows[0]), margins, atol=5e-3 * np.abs(margins).max())
