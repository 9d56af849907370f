"""Heads and classifiers on a device that is emulated: results are the CPU's, and no devices are mixed."""

import numpy as np
import pytest
import torch
from helpers.emulated_cuda import emulated_cuda
from helpers.planted import planted, write_cache

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.heads.design_matrix import DesignMatrix
from pucache.heads.minibatch import SGDSettings
from pucache.heads.risks import PURisk
from pucache.heads.solve import fit_heads, fit_soft_targets
from pucache.training.train_on_cache import train_pu

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, on which test_gpu_heads.py runs"),
    pytest.mark.usefixtures("one_thread"),
]
QUICK = SGDSettings(epochs=3, min_steps=0, batch_size=64)
SCARCE = 40_000  # bytes: less than X takes


@pytest.fixture(scope="module")
def rows():
    X, s, _ = planted(600, 24, 60, 0.1, seed=0)
    return X.astype(np.float16), s


def weights(rows):
    return np.random.default_rng(1).integers(0, 3, (len(rows[1]), 3)).astype(np.float32)


def risk_margins(rows, device, **settings):
    options = {"prior": [0.05, 0.1, 0.2], "penalty": 1e-3, "sgd_settings": QUICK} | settings
    return fit_heads(*rows, device=device, weights=weights(rows), **options).margins(rows[0])


def soft_margins(rows, device):
    targets = np.random.default_rng(0).random((len(rows[1]), 3))
    return fit_soft_targets(rows[0], targets, device=device, penalty=[1e-5, 1e-3, 0.1], tolerance=1e-4).margins(rows[0])


@pytest.mark.parametrize("solver", ["batch", "sgd", "soft"])
@pytest.mark.parametrize("free", [1 << 34, SCARCE])
def test_heads_are_those_of_the_cpu_also_where_x_is_larger_than_the_device(rows, solver, free, caplog):
    def margins(device):
        if solver == "soft":
            return soft_margins(rows, device)
        return risk_margins(rows, device, solver=solver, risk=PURisk("imbnnpu"))

    expected = margins("cpu")
    with emulated_cuda(free=free):
        on_device = margins("cuda")
    np.testing.assert_allclose(on_device, expected, rtol=2e-3, atol=2e-3 * np.abs(expected).max())
    assert ("does not fit" in caplog.text and "uploaded again in every pass" in caplog.text) == (free == SCARCE)


def test_moments_directions_and_margins_are_those_of_the_cpu(rows):
    X, s = rows
    expected = DesignMatrix(X, s, None, torch.device("cpu"))
    heads = fit_heads(expected, prior=0.1)
    with emulated_cuda():
        design = DesignMatrix(X, s, None, torch.device("cuda"))
        np.testing.assert_allclose(design.leading.variances.cpu(), expected.leading.variances, rtol=1e-4)
        np.testing.assert_allclose(design.margins(heads), expected.margins(heads), rtol=1e-4, atol=1e-4)
        half = np.flatnonzero(np.arange(len(s)) % 2)
        taken = design.take(half, s[half]).margins(heads)
    np.testing.assert_allclose(taken, expected.margins(heads)[half], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", ["linear", "distilled"])
@pytest.mark.slow
def test_a_classifier_is_that_of_the_cpu(rows, tmp_path, method):
    write_cache(tmp_path / "cache.h5", rows[0])
    cache = EmbeddingCache(tmp_path / "cache.h5")
    expected = train_pu(cache, rows[1], method=method, device="cpu")
    with emulated_cuda():
        model = train_pu(cache, rows[1], method=method, device="cuda")
    assert model.method_ == expected.method_ and model.penalty_ == expected.penalty_
    assert model.prior_ == pytest.approx(expected.prior_, rel=1e-3)
    margins = expected.margins(rows[0])
    np.testing.assert_allclose(model.margins(rows[0]), margins, atol=5e-3 * np.abs(margins).max())
