"""Encoders and pretraining on a device that is emulated: results are the CPU's, and no devices are mixed."""

import numpy as np
import pytest
import torch
from helpers.emulated_cuda import emulated_cuda
from helpers.tiny import HALF, SIDE
from helpers.training_parts import recipe, state, train, training, with_norms

from pucache.encoders.inference import Runtime

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, on which test_gpu.py runs"),
    pytest.mark.usefixtures("one_thread"),
]


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
