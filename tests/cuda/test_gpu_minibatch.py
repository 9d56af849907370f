"""The minibatch solver on a GPU: heads of the CPU, as CUDA graphs, with no wait but that for an earlier epoch."""

import numpy as np
import pytest
import torch
from helpers.planted import planted

from pucache.heads import minibatch
from pucache.heads.minibatch import SGDSettings
from pucache.heads.minibatch_rows import Lag
from pucache.heads.risks import RISKS, PURisk
from pucache.heads.solve import fit_heads

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.usefixtures("one_thread"),
]
N, D = 3000, 60
EVERY = [*map(PURisk, sorted(RISKS)), PURisk("imbnnpu", "logistic")]


@pytest.fixture(scope="module")
def data():
    X, s, _ = planted(N, D, 300, 0.1, seed=0)
    return X.astype(np.float16), s


def fit(data, device, weights=None, heads=3, **options):
    settings = SGDSettings(epochs=5, min_steps=0, batch_size=128, learning_rate=0.01)
    prior = np.linspace(0.05, 0.9, heads)
    options = {"prior": prior, "penalty": 0.01, "sgd_settings": settings, "weights": weights} | options
    return fit_heads(*data, solver="sgd", device=device, **options)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("risk", EVERY, ids=str)
def test_heads_are_those_of_the_cpu(data, monkeypatch, caplog, risk, weighted):
    monkeypatch.setattr(minibatch, "multiplies_bfloat16", lambda device: False)
    weights = np.random.default_rng(1).integers(0, 3, (N, 3)).astype(np.float32) if weighted else None
    expected, heads = (fit(data, device, weights, risk=risk) for device in ("cpu", "cuda"))
    for name in ("coef", "intercept", "risk"):
        np.testing.assert_allclose(getattr(heads, name), getattr(expected, name), rtol=0.01, atol=0.01)
    assert not caplog.records  # the graph is used


def test_many_heads_are_those_of_the_cpu(data, monkeypatch):
    monkeypatch.setattr(minibatch, "multiplies_bfloat16", lambda device: False)
    expected, heads = (fit(data, device, heads=200, column=np.zeros(200, int)) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(heads.coef, expected.coef, rtol=0.01, atol=0.01)


def test_a_device_that_captures_no_graph_trains_to_the_same_heads(data, monkeypatch, caplog):
    graphed = fit(data, "cuda")

    def refused(*settings, **more):
        raise RuntimeError("no graphs here")

    monkeypatch.setattr(torch.cuda, "graph", refused)
    np.testing.assert_allclose(fit(data, "cuda").coef, graphed.coef, rtol=1e-3, atol=1e-4)
    assert "no graphs here" in caplog.text


def test_epochs_after_the_first_never_wait_for_the_device(data, monkeypatch):
    """But for an event, which torch does not report."""
    marks, mark = [], Lag.mark

    def watched(lag):
        mark(lag)
        marks.append(lag)
        torch.cuda.set_sync_debug_mode("error" if len(marks) < 5 else "default")

    monkeypatch.setattr(Lag, "mark", watched)
    try:
        fit(data, "cuda", np.ones((N, 3), np.float32), risk=PURisk("imbnnpu"))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(marks) == 5
