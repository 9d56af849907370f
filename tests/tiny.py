"""A tiny deterministic encoder and tiny images, for tests and for the scripts that tests start."""

import os

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import Compose, PILToTensor, Resize

from pucache.decoding import DECODER
from pucache.encoder_spec import EncoderSpec
from pucache.encoders import Encoder
from pucache.runtime import Runtime

DIM, SIDE = 8, 32
HALF = (0.5, 0.5, 0.5)


class CountingRuntime(Runtime):
    """A runtime that knows how many images it has embedded."""

    rows = 0

    def __call__(self, pixels):
        self.rows += len(pixels)
        return super().__call__(pixels)


def tiny_encoder(name="tiny", seed=0):
    """Make a real encoder without any weights file; one name and seed give one and the same."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        convolution = torch.nn.Conv2d(3, DIM, 5, stride=4)
    model = torch.nn.Sequential(convolution, torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    runtime = CountingRuntime(model, HALF, HALF, device=torch.device("cpu"), precision="fp32", batch_size=8)
    spec = EncoderSpec(
        name, str(seed) * 64, (SIDE, SIDE), HALF, HALF, "bilinear", 1.0, "squash", DECODER, "avg", DIM, "fp32"
    )
    return Encoder(spec, Compose([Resize((SIDE, SIDE)), PILToTensor()]), runtime)


def save_image(path, number):
    """Write the tiny image of this number; different numbers give different images."""
    pixels = np.random.default_rng(number).integers(0, 256, (9, 12, 3), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, "PNG" if path.suffix == ".png" else None)
    return path


def touch(path, seconds=10):
    """Move the modification time of a file."""
    when = path.stat().st_mtime_ns + seconds * 10**9
    os.utime(path, ns=(when, when))
