"""Heads on a GPU are those of the CPU."""

import numpy as np
import pytest
import torch
from helpers.planted import planted

from pucache.heads.minibatch import SGDSettings
from pucache.heads.risks import RISKS, PURisk
from pucache.heads.solve import fit_heads, fit_soft_targets

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.usefixtures("one_thread"),
]
EVERY = [*map(PURisk, sorted(RISKS)), PURisk("imbnnpu", "logistic")]


@pytest.fixture(scope="module")
def data():
    X, s, _ = planted(3000, 60, 300, 0.1, seed=0)
    return X.astype(np.float16), s


@pytest.mark.parametrize("solver", ["batch", "sgd"])
@pytest.mark.parametrize("risk", EVERY, ids=str)
def test_heads_of_a_risk(data, risk, solver):
    settings = SGDSettings(epochs=5, min_steps=0, batch_size=128, learning_rate=0.01)
    options = {"prior": [0.05, 0.4, 0.9], "penalty": 0.01, "sgd_settings": settings, "risk": risk, "solver": solver}
    expected, heads = (fit_heads(*data, device=device, **options) for device in ("cpu", "cuda"))
    for name in ("coef", "intercept", "risk"):
        np.testing.assert_allclose(getattr(heads, name), getattr(expected, name), rtol=0.01, atol=0.01)


def test_heads_of_soft_targets(data):
    targets = np.random.default_rng(0).random((3000, 3))
    expected, heads = (fit_soft_targets(data[0], targets, tolerance=1e-4, device=device) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(heads.margins(data[0]), expected.margins(data[0]), rtol=0.01, atol=0.01)
