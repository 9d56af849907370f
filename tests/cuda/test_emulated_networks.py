"""Encoders on a device that is emulated: embeddings are those of the CPU, and a batch waits once for the device."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import timm
import torch
from helpers.emulated_cuda import emulated_cuda
from helpers.tiny import HALF, SIDE, save_image, tiny_encoder

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.embedding.embed import EmbedOptions, run_embedding
from pucache.encoders.encoder import Encoder
from pucache.encoders.inference import Runtime
from pucache.images.source import open_source

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, on which test_gpu.py runs"),
    pytest.mark.usefixtures("one_thread"),
]

CPU, CUDA, BATCH = torch.device("cpu"), torch.device("cuda"), 8


def plain():
    torch.manual_seed(0)
    convolution = torch.nn.Conv2d(3, 8, 5, stride=4)
    return torch.nn.Sequential(convolution, torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())


def resnet():
    torch.manual_seed(0)
    return timm.create_model("test_resnet", num_classes=0)


def runtime(network, device, precision="fp32", name="torch", batch_size=BATCH):
    settings = {"device": device, "precision": precision, "runtime": name, "batch_size": batch_size}
    return Runtime(network, HALF, HALF, input_size=(SIDE, SIDE), **settings)


def pixels(count=4 * BATCH):
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (count, SIDE, SIDE, 3), np.uint8))


# --- passes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("network", [plain, resnet])
def test_embeddings_are_those_of_the_cpu(network, precision):
    expected = runtime(network(), CPU)(pixels())
    with emulated_cuda(as_cpu=True):
        run = runtime(network(), CUDA, precision)
        X = run(pixels())
    np.testing.assert_allclose(X, expected, atol=2e-2 * np.abs(expected).max())
    assert run.cosine is None if precision == "fp32" else run.cosine > 0.99


def test_a_batch_waits_once():
    with emulated_cuda(as_cpu=True) as device:
        run = runtime(plain(), CUDA, "fp16")
        run(pixels(BATCH))  # starts, and compares with float32
        images = run.joined([pixels(5 * BATCH)])
        device.counts.clear()
        run(images)
        assert device.counts.waited <= 5, str(device.counts)


def test_joined_pixels_go_up_without_another_copy():
    pieces = pixels(BATCH).split(3)
    with emulated_cuda(as_cpu=True) as device:
        run = runtime(plain(), CUDA)
        run.start()
        batch = run.joined(pieces)
        assert batch.is_pinned() and torch.equal(batch, pixels(BATCH))
        device.counts.clear()
        X = run(batch)
        assert device.counts.waited == 1
        np.testing.assert_array_equal(run(pixels(BATCH)), X)


class Watched(torch.nn.Module):
    """Averages each channel, and remembers the batches that came and how cuDNN was set."""

    def __init__(self, room=1 << 20):
        super().__init__()
        self.room, self.seen = room, []

    def __deepcopy__(self, memo):
        twin = Watched(self.room)
        twin.seen = self.seen
        return twin

    def forward(self, x):
        self.seen.append((len(x), torch.backends.cudnn.benchmark))
        if len(x) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")
        return x.mean((2, 3))


def test_cudnn_times_its_kernels_for_batches_of_the_one_shape_alone(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    network = Watched()
    with emulated_cuda(as_cpu=True):
        run = runtime(network, CUDA, "fp16", batch_size=None)
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(run, [pixels(20)] * 6))
    assert run.batch_size == 512
    tried, *embedded = [timed for size, timed in network.seen if size == 512]
    assert not tried and len(embedded) == 6 and all(embedded)
    assert torch.backends.cudnn.benchmark is False


@pytest.fixture
def compilations(monkeypatch):
    """The kinds of tensors that torch would compile for, one by one."""
    kinds = []

    def compile(model, **options):
        def run(batch):
            kind = (tuple(batch.shape), batch.dtype, batch.device.type, batch.is_inference(), torch.is_grad_enabled())
            if kind not in kinds:
                kinds.append(kind)
            return model(batch)

        return run

    monkeypatch.setattr(torch, "compile", compile)
    return kinds


def test_a_compiled_runtime_compiles_once(compilations):
    with emulated_cuda(as_cpu=True):
        run = runtime(plain(), CUDA, "fp16", "compile")
        X = run(pixels(3))
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(run, [pixels(BATCH), pixels(20), pixels(1)]))
    np.testing.assert_allclose(X, runtime(plain(), CPU)(pixels(3)), atol=1e-2)
    assert len(compilations) == 1, compilations


def test_a_batch_that_is_too_large_to_begin_with_is_halved(compilations, caplog):
    with emulated_cuda(as_cpu=True):
        run = runtime(Watched(room=3), CUDA, "fp16", "compile")
        run.start()
    assert run.batch_size == 2
    assert "out of memory on cuda with batches of 8; going on with batches of 4 (--batch-size" in caplog.text


# --- whole runs --------------------------------------------------------------------------------


def encoder(device):
    """The tiny encoder on a device."""
    made = tiny_encoder()
    return Encoder(made.spec, made.preprocess, runtime(plain(), device))


def test_a_folder_gives_the_cache_of_the_cpu(tmp_path):
    folder = tmp_path / "images"
    for number in range(20):
        save_image(folder / f"{number:02}.{'jpg' if number % 3 else 'png'}", number)
    (folder / "broken.jpg").write_bytes(b"hello")
    options = EmbedOptions(dtype="float32")

    def embedded(encoder, path):
        report = run_embedding(open_source(folder), path, encoder, workers=0, options=options)
        return np.asarray(EmbeddingCache(path).X), report.failures

    expected, failures = embedded(encoder(CPU), tmp_path / "cpu.h5")
    on_device = encoder(CUDA)
    with emulated_cuda(as_cpu=True):
        X, failures_there = embedded(on_device, tmp_path / "cuda.h5")
    assert failures_there == failures and list(failures) == ["broken.jpg"]
    np.testing.assert_allclose(X, expected, atol=2e-2)
