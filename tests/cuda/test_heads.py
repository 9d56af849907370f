"""Heads and classifiers trained on CUDA are those of the CPU."""

import numpy as np
import pytest
import torch
from helpers.planted import planted

from pucache.heads.design_matrix import DesignMatrix
from pucache.heads.minibatch import SGDSettings
from pucache.heads.risks import PURisk
from pucache.heads.solve import SoftTargetTrainer, fit_heads

QUICK = SGDSettings(epochs=1, min_steps=0, batch_size=64)
SCARCE = 40_000  # bytes: less than X takes


@pytest.fixture(scope="module")
def rows():
    X, s, _ = planted(600, 24, 60, 0.1, seed=0)
    return X.astype(np.float16), s


def margins(rows, solver, device):
    X, s = rows
    draw = np.random.default_rng(1)
    if solver == "soft targets":
        options = {"penalty": [1e-5, 1e-3, 0.1], "tolerance": 1e-4}
        trainer = SoftTargetTrainer(DesignMatrix(X, s, None, torch.device(device)), **options)
        return trainer.fit(draw.random((len(s), 3))).margins(X)
    weights = draw.integers(0, 3, (len(s), 3)).astype(np.float32)
    options = {"prior": [0.05, 0.1, 0.2], "penalty": 1e-2, "sgd_settings": QUICK, "risk": PURisk("imbnnpu")}
    return fit_heads(X, s, device=device, solver=solver, weights=weights, **options).margins(X)


def report_scarce_memory(monkeypatch):
    """On a real card torch also holds memory for later tensors, which counts as free."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *device: (SCARCE, 1 << 34))
    for held in ("memory_reserved", "memory_allocated"):
        monkeypatch.setattr(torch.cuda, held, lambda *device: 0)


@pytest.mark.parametrize("solver", ["batch", "sgd", "soft targets"])
def test_heads_are_those_of_the_cpu_also_where_rows_are_uploaded_in_every_pass(cuda, rows, solver, monkeypatch, caplog):
    expected = margins(rows, solver, "cpu")
    close = {"rtol": 2e-3, "atol": 2e-3 * np.abs(expected).max()}
    np.testing.assert_allclose(margins(rows, solver, "cuda"), expected, **close)
    assert "does not fit" not in caplog.text
    report_scarce_memory(monkeypatch)
    np.testing.assert_allclose(margins(rows, solver, "cuda"), expected, **close)
    assert "does not fit" in caplog.text and "uploaded again in every pass" in caplog.text
