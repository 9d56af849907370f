"""A tiny deterministic encoder and tiny images, for tests and for the scripts that tests start."""

import os

import numpy as np
import torch
from PIL import Image

from pucache import Encoder, EncoderSpec
from pucache.encoders.inference import Runtime
from pucache.images.decoding import DECODER
from pucache.images.preprocessing import Preprocess

DIM, SIDE = 8, 32
HALF = (0.5, 0.5, 0.5)


class CountingRuntime(Runtime):
    """A runtime that knows how many images it has embedded."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self._counted = []  # appending is safe from several threads
        self.compute = super().__call__  # may be replaced

    @property
    def rows(self):
        return sum(self._counted)

    def __call__(self, pixels):
        self._counted.append(len(pixels))
        return self.compute(pixels)


def tiny_encoder(name="tiny", seed=0):
    """Make a real encoder without any weights file; one name and seed give one and the same."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        convolution = torch.nn.Conv2d(3, DIM, 5, stride=4)
    model = torch.nn.Sequential(convolution, torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    size = (SIDE, SIDE)
    runtime = CountingRuntime(
        model, HALF, HALF, input_size=size, device=torch.device("cpu"), precision="fp32", batch_size=8
    )
    spec = EncoderSpec(
        name, str(seed) * 64, size, HALF, HALF, "bilinear", 1.0, "squash", DECODER, "avg", DIM, "fp32", "torch"
    )
    config = {"input_size": (3, *size), "interpolation": "bilinear", "crop_pct": 1.0, "crop_mode": "squash"}
    return Encoder(spec, Preprocess(config, None), runtime)


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
