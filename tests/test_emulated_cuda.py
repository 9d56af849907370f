"""CUDA paths on a device that is emulated: results are the CPU's, and no devices are mixed."""

import numpy as np
import pytest
import torch
from helpers.emulated_cuda import CudaTensor, emulated_cuda
from helpers.planted import planted, write_cache
from helpers.tiny import HALF, SIDE
from helpers.training_parts import recipe, state, train, training, with_norms

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.encoders.inference import Runtime
from pucache.heads.fit import fit_heads
from pucache.heads.minibatch import SGDSettings
from pucache.heads.risks import RISKS, PURisk
from pucache.pu.train import train_pu
from pucache.retrieval.model_scorers import Fused
from pucache.retrieval.retrieve import rank_unlabelled
from pucache.retrieval.similarity import Similarity

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, on which tests/test_cuda.py runs"),
    pytest.mark.usefixtures("one_thread"),
]
EPOCHS = 3


# --- the device itself -----------------------------------------------------------------------------


def test_tensors_of_both_devices_cannot_meet():
    with emulated_cuda():
        there, here = torch.ones(3, device="cuda"), torch.ones(3)
        assert isinstance(there, CudaTensor) and there.device.type == "cuda" and here.device.type == "cpu"
        with pytest.raises(RuntimeError, match="on one device, but found cuda:0 and cpu"):
            there + here
        with pytest.raises(TypeError, match="can't convert cuda:0"):
            there.numpy()
        assert (there + there).cpu().tolist() == [2, 2, 2]


def test_a_generator_of_the_host_does_not_draw_on_the_device():
    with emulated_cuda(), pytest.raises(RuntimeError, match="expected a generator of cuda, got one of cpu"):
        torch.rand(3, device="cuda", generator=torch.Generator())


@pytest.mark.parametrize(
    ("work", "waits"),
    [
        (lambda x: x.sum(), 0),
        (lambda x: x.sum().item(), 1),
        (lambda x: x[x > 0], 1),
        (lambda x: x.nonzero(), 1),
        (lambda x: torch.where(x > 0, x, 0), 0),
        (lambda x: x.cpu(), 1),
        (lambda x: torch.ones(3).to("cuda"), 1),
        (lambda x: torch.ones(3).to("cuda", non_blocking=True), 1),  # the memory is pageable
        (lambda x: torch.ones(3).pin_memory().to("cuda", non_blocking=True), 0),
        (lambda x: torch.cuda.synchronize(), 1),
    ],
)
def test_waits_of_the_host_are_counted(work, waits):
    with emulated_cuda() as device:
        x = torch.zeros(3, device="cuda")
        device.counts.clear()
        work(x)
        assert device.counts.waited == waits, device.counts


# --- heads -----------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("by", [Similarity, Fused])
def test_a_ranking_is_that_of_the_cpu(rows, cache, by):
    model = train_pu(cache, rows[1], device="cpu") if by is Fused else None
    arguments = (model,) if by is Fused else ("whitened",)
    expected = rank_unlabelled(cache, rows[1], k=50, scorer=by(*arguments, device="cpu"))
    with emulated_cuda():
        ranking = rank_unlabelled(cache, rows[1], k=50, scorer=by(*arguments, device="cuda"))
    assert ranking.keys == expected.keys
    np.testing.assert_allclose(ranking.scores, expected.scores, rtol=1e-5)


# --- networks --------------------------------------------------------------------------------------


def network():
    torch.manual_seed(0)
    convolution = torch.nn.Conv2d(3, 8, 5, stride=4)
    return torch.nn.Sequential(convolution, torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())


def embeddings(pixels, device, precision):
    runtime = Runtime(
        network(), HALF, HALF, input_size=(SIDE, SIDE), device=torch.device(device), precision=precision, batch_size=8
    )
    return runtime(pixels)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_embeddings_are_those_of_the_cpu(precision):
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (32, SIDE, SIDE, 3), np.uint8))
    expected = embeddings(pixels, "cpu", "fp32")
    with emulated_cuda(as_cpu=True):
        X = embeddings(pixels, "cuda", precision)
    np.testing.assert_allclose(X, expected, atol=2e-2 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["modern", "impulses"])
def test_steps_of_pretraining_are_those_of_the_cpu(name):
    expected = training(with_norms(), recipe(name))
    losses = train(expected, steps=3)
    with emulated_cuda(as_cpu=True):
        run = training(with_norms(), recipe(name), device=torch.device("cuda"))
        assert train(run, steps=3) == pytest.approx(losses, rel=1e-3)
        trained = {key: tensor.cpu() for key, tensor in state(run.network).items()}
    for key, tensor in state(expected.network).items():
        torch.testing.assert_close(trained[key], tensor, rtol=1e-2, atol=1e-3)
