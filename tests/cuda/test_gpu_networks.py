"""Encoders and probes on a GPU: what the emulated device cannot show, such as streams and cuDNN."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import timm
import torch
from helpers.tiny import HALF

from pucache.encoders.inference import Runtime
from pucache.pretraining import probe

CPU, CUDA, BATCH, SIDE = torch.device("cpu"), torch.device("cuda"), 32, 64
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.usefixtures("one_thread"),
]


def network():
    torch.manual_seed(0)
    return timm.create_model("test_resnet", num_classes=0)


def runtime(device, precision="fp32", name="torch"):
    settings = {"device": device, "precision": precision, "runtime": name, "batch_size": BATCH}
    return Runtime(network(), HALF, HALF, input_size=(SIDE, SIDE), **settings)


def pixels(count, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (count, SIDE, SIDE, 3), np.uint8))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_embeddings_are_those_of_the_cpu(precision):
    expected = runtime(CPU)(pixels(3 * BATCH + 5))
    X = runtime(CUDA, precision)(pixels(3 * BATCH + 5))
    np.testing.assert_allclose(X, expected, atol=3e-2 * np.abs(expected).max())


def test_a_pass_waits_for_its_own_stream_alone():
    run, images = runtime(CUDA, "fp16"), pixels(3 * BATCH)
    expected = run(images)
    torch.cuda.set_sync_debug_mode("error")
    try:
        X = run(images)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    np.testing.assert_allclose(X, expected, atol=1e-2 * np.abs(expected).max())


def test_a_compiled_runtime_compiles_once():
    pytest.importorskip("triton")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    run = runtime(CUDA, "fp16", "compile")
    with ThreadPoolExecutor(1) as thread:  # torch compiles for the calling thread
        found = [thread.submit(run, images).result() for images in (pixels(BATCH), pixels(3), pixels(BATCH))]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    np.testing.assert_allclose(found[0], found[2], atol=1e-2 * np.abs(found[0]).max())


def test_a_probe_is_that_of_the_cpu():
    generator = np.random.default_rng(0)
    classes = np.arange(600) % 3
    X = generator.standard_normal((600, 48)).astype(np.float32)
    X[:, :3] += 1.5 * np.eye(3, dtype=np.float32)[classes]
    s, here, there = (classes == 1).astype(np.int8), torch.from_numpy(X), torch.from_numpy(X).to(CUDA)
    assert probe.held_out_auc(X, s, "cuda") == pytest.approx(probe.held_out_auc(X, s), abs=2e-3)
    assert probe.effective_rank(there) == pytest.approx(probe.effective_rank(here), rel=1e-4)
    labels = torch.from_numpy(classes)
    assert probe.knn_accuracy(there, labels) == pytest.approx(probe.knn_accuracy(here, labels), abs=1e-2)
