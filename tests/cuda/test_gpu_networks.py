"""Encoders and probes on a GPU: what the emulated device cannot show, such as streams, cuDNN and nvJPEG."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import timm
import torch
from helpers.pictures import encode
from helpers.tiny import HALF
from PIL import Image

from pucache.encoders.inference import Runtime
from pucache.images.device_decoding import DeviceDecoder
from pucache.images.preprocessing import Preprocess
from pucache.pretraining import probe

CPU, CUDA, BATCH, SIDE = torch.device("cpu"), torch.device("cuda"), 32, 64
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:The image decoding and encoding capabilities:DeprecationWarning"),
]
PREPROCESS = Preprocess(
    {"input_size": (3, SIDE, SIDE), "interpolation": "bicubic", "crop_pct": 0.875, "crop_mode": "center"}, None
)


def network():
    torch.manual_seed(0)
    return timm.create_model("test_resnet", num_classes=0)


def runtime(device, precision="fp32", name="torch"):
    settings = {"device": device, "precision": precision, "runtime": name, "batch_size": BATCH}
    return Runtime(network(), HALF, HALF, input_size=(SIDE, SIDE), **settings)


def pixels(count, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (count, SIDE, SIDE, 3), np.uint8))


def jpeg(seed, size):
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 4, 3), np.uint8)
    return encode(Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC), "JPEG", quality=95)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_embeddings_are_those_of_the_cpu(precision):
    expected = runtime(CPU)(pixels(3 * BATCH + 5))
    X = runtime(CUDA, precision)(pixels(3 * BATCH + 5))
    np.testing.assert_allclose(X, expected, atol=3e-2 * np.abs(expected).max())


@pytest.mark.parametrize("decoded_on", [CPU, CUDA])
def test_a_pass_waits_for_its_own_stream_alone(decoded_on):
    run, images = runtime(CUDA, "fp16"), pixels(3 * BATCH).to(decoded_on)
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
        found = [thread.submit(run, images).result() for images in (pixels(BATCH), pixels(3), pixels(BATCH).to(CUDA))]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    np.testing.assert_allclose(found[0], found[2], atol=1e-2 * np.abs(found[0]).max())


def test_files_are_decoded_alike_while_other_threads_compute():
    files = [jpeg(number, (200 + 7 * number, 400 - 3 * number)) for number in range(80)]
    expected, _ = DeviceDecoder(PREPROCESS, CPU)(files)
    decoder, run = DeviceDecoder(PREPROCESS, CUDA), runtime(CUDA, "fp16")
    run.start()

    def decoded_and_embedded(number):
        images, failures = decoder(files)
        return images.cpu(), failures, run(images)

    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(decoded_and_embedded, range(20)))
    first, _, X = found[0]
    # nvJPEG rounds and enlarges the colours otherwise than libjpeg, but every time alike
    assert (first.int() - expected.int()).abs().float().mean() < 2
    for images, failures, rows in found:
        assert failures == {} and torch.equal(images, first)
        np.testing.assert_allclose(rows, X, atol=1e-2 * np.abs(X).max())


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
