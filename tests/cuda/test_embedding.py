"""Embedding on CUDA gives what the CPU gives."""

import numpy as np
import pytest
import timm
import torch
from helpers.tiny import HALF, SIDE, save_image, tiny_encoder

from pucache import EmbeddingCache, Encoder, open_source
from pucache.embedding.embed import EmbedOptions, run_embedding
from pucache.encoders.inference import Runtime

CPU, BATCH = torch.device("cpu"), 8


def network():
    torch.manual_seed(0)
    return timm.create_model("test_resnet", num_classes=0)


def runtime(device, model=None, precision="fp32", name="torch", batch_size=BATCH):
    settings = {"device": device, "precision": precision, "runtime": name, "batch_size": batch_size}
    return Runtime(network() if model is None else model, HALF, HALF, input_size=(SIDE, SIDE), **settings)


def pixels(count):
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (count, SIDE, SIDE, 3), np.uint8))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_embeddings_are_those_of_the_cpu(cuda, precision):
    expected = runtime(CPU)(pixels(3 * BATCH + 5))
    run = runtime(cuda, precision=precision)
    X = run(pixels(3 * BATCH + 5))
    np.testing.assert_allclose(X, expected, atol=3e-2 * np.abs(expected).max())
    assert run.cosine is None if precision == "fp32" else run.cosine > 0.99


def test_a_folder_gives_the_cache_of_the_cpu(cuda, tmp_path):
    folder = tmp_path / "images"
    for number in range(20):
        save_image(folder / f"{number:02}.{'jpg' if number % 3 else 'png'}", number)
    (folder / "broken.jpg").write_bytes(b"hello")

    def embedded(device):
        made = tiny_encoder()
        encoder = Encoder(made.spec, made.preprocess, runtime(device, made.runtime.network().network))
        path = tmp_path / f"{device.type}.h5"
        report = run_embedding(open_source(folder), path, encoder, workers=0, options=EmbedOptions(dtype="float32"))
        return np.asarray(EmbeddingCache(path).X), report.failures

    (X, failures), (expected, expected_failures) = embedded(cuda), embedded(CPU)
    assert failures == expected_failures and list(failures) == ["broken.jpg"]
    np.testing.assert_allclose(X, expected, atol=2e-2 * np.abs(expected).max())
