"""Frozen encoders: how pixels become embeddings.

The preprocessing is the one that timm's own configuration of the network names, or that it was
pretrained with here, so a network always sees images as it was trained to.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from ..devices import choose_device, choose_precision, choose_runtime
from ..errors import EncoderError
from ..images.decoding import DECODER, DEVICE_DECODER
from ..images.device_decoding import DeviceDecoder
from ..images.preprocessing import Preprocess
from . import pretrained_file
from .backbones import bundled, configuration, digest, from_timm, transform
from .inference import Runtime
from .spec import BUNDLED, EncoderSpec


class Encoder:
    """A frozen encoder, ready to run.

    Attributes
    ----------
    spec : EncoderSpec
    preprocess : Preprocess
        PIL image to uint8 pixels, (H, W, 3).
    runtime : Runtime
        How it runs, and how many passes at once.
    forward : callable
        uint8 pixels (b, H, W, 3) to embeddings, float32 (b, d); the runtime itself.
    decoder : DeviceDecoder, optional
        Decodes JPEG files where the encoder runs.
    """

    def __init__(
        self, spec: EncoderSpec, preprocess: Preprocess, runtime: Runtime, decoder: DeviceDecoder | None = None
    ):
        self.spec = spec
        self.preprocess = preprocess
        self.runtime = runtime
        self.decoder = decoder
        self.forward: Callable[[torch.Tensor], np.ndarray] = runtime

    def __call__(self, images: Iterable[Image.Image]) -> np.ndarray:
        """Embed PIL images; gives float32 (n, d)."""
        pixels = [self.preprocess(image) for image in images]
        return self.forward(torch.stack(pixels)) if pixels else np.empty((0, self.spec.dim), np.float32)


def load_encoder(
    name: str | Path = BUNDLED,
    *,
    weights: str | Path | None = None,
    device: str | torch.device = "auto",
    precision: str = "auto",
    runtime: str = "auto",
    decode: str = "auto",
    batch_size: int | None = None,
    like: EncoderSpec | None = None,
) -> Encoder:
    """Load a frozen encoder.

    Parameters
    ----------
    name : str or path
        ``bundled`` (ImageNet EfficientNet-Lite0 from an installed package, no network), ``timm:NAME``
        (any model of timm), or the folder that `pucache.pretraining.pretrain.pretrain` wrote.
    weights : path, optional
        Safetensors, or a state dict as torch saves it; read without unpickling code. Without it
        timm fetches the pretrained weights from its hub. For an encoder that a cache calls
        ``pretrained:NAME``: the folder that it lies in.
    device, precision, runtime : str
        See `pucache.devices`; ``auto`` is the fastest that is not measurably worse. A `torch.device` is taken
        as it is: it may be one of another machine, on which the encoder will run.
    decode : {"auto", "host", "device"}
        Where JPEG files are decoded: by Pillow, or by torchvision where the encoder runs, a batch at a
        time; ``auto`` is ``host``. Everything else is always decoded by Pillow.
    batch_size : int, optional
        By default 16 on the CPU, 4 with OpenVINO, and what fits on CUDA.
    like : EncoderSpec, optional
        Where precision, runtime and decode are ``auto``, take those of an earlier encoder if they can
        be had here: a cache that is taken up again stays one of its kind.

    Returns
    -------
    Encoder
        On its device, ready to run.

    Raises
    ------
    EncoderError
        Unknown name, weights out of reach or of another model.
    ValueError
        Unusable device, precision or batch size.
    """
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch size must be at least 1, got {batch_size}")
    where = choose_device(device)
    numbers, engine = _settings(precision, runtime, where, like)
    if decode not in ("auto", "host", "device"):
        raise ValueError(f"unknown place to decode {decode!r}; use auto, host or device")
    if decode == "auto" and like is not None and like.decoder == DEVICE_DECODER:
        decode = "device"
    model, config, name = _network(os.fspath(name), weights)
    if config["input_size"][0] != 3:
        raise EncoderError(f"{name} takes {config['input_size'][0]} channels; only RGB models are supported")
    height, width = config["input_size"][1:]
    dim = _dim(model, name, height, width)
    weights_digest = digest(model)  # before the runtime folds and converts them
    spec = EncoderSpec(
        name=name,
        weights=weights_digest,
        input_size=(height, width),
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        interpolation=config["interpolation"],
        crop_pct=config["crop_pct"],
        crop_mode=config["crop_mode"],
        decoder=DEVICE_DECODER if decode == "device" else DECODER,
        pooling=_pooling(model),
        dim=dim,
        precision=numbers,
        runtime=engine,
    )
    forward = Runtime(
        model,
        spec.mean,
        spec.std,
        input_size=(height, width),
        device=where,
        precision=numbers,
        runtime=engine,
        batch_size=batch_size,
    )
    preprocess = Preprocess(config, transform(config))
    if decode == "device" and not preprocess.fast:
        raise ValueError(f"{name} resizes in a way that only the host can ({spec.interpolation}); use --decode host")
    return Encoder(spec, preprocess, forward, DeviceDecoder(preprocess, where) if decode == "device" else None)


def _network(name: str, weights: str | Path | None) -> tuple[Any, dict[str, Any], str]:
    """The network called `name`, how images are brought to it, and what caches call it."""
    if name == BUNDLED:
        model = bundled(weights)
        return model, configuration(model), name
    if name.startswith("timm:"):
        if weights is not None and pretrained_file.is_pretrained(weights):
            raise EncoderError(f"{weights} is an encoder that pretrain wrote; pass it as --encoder, without --weights")
        model = from_timm(name.removeprefix("timm:"), weights)
        return model, configuration(model), name
    own = name.startswith(pretrained_file.PREFIX)
    if own and weights is None:
        raise EncoderError(f"{name} lies in the folder that pretrain wrote; pass that folder as --weights")
    if own and weights is not None:
        model, config, called = pretrained_file.load(weights)
        if called != name:
            raise EncoderError(f"{weights} holds {called}, not {name}; pass the folder of {name} as --weights")
        return model, config, called
    if os.path.lexists(name):
        if weights is not None:
            raise EncoderError(f"{name} has its own weights; leave out --weights")
        return pretrained_file.load(name)
    raise EncoderError(
        f"unknown encoder {name!r}; use 'bundled', 'timm:NAME' such as timm:resnet50, or a folder that pretrain wrote"
    )


def _settings(precision: str, runtime: str, device: torch.device, like: EncoderSpec | None) -> tuple[str, str]:
    def choose(pick: Callable[[str, torch.device], str], asked: str, earlier: str | None) -> str:
        if asked == "auto" and earlier:
            with contextlib.suppress(ValueError):  # a GPU's precision, say, or an engine that is not installed
                return pick(earlier, device)
        return pick(asked, device)

    return (
        choose(choose_precision, precision, like.precision if like else None),
        choose(choose_runtime, runtime, like.runtime if like else None),
    )


def _dim(model: torch.nn.Module, name: str, height: int, width: int) -> int:
    """Length of an embedding, from one black image: a whole batch would take a large model a minute on the CPU."""
    with torch.inference_mode():
        row = model.eval()(torch.zeros(1, 3, height, width))
    if not isinstance(row, torch.Tensor) or row.ndim != 2:
        raise EncoderError(f"{name} does not give one vector per image; choose a pooled model")
    return row.shape[1]


def _pooling(model: torch.nn.Module) -> str:
    """Name of the pooling in timm's terms (``avg``, ``token``, ...), or ``model`` where it has no choice."""
    pool = getattr(model, "global_pool", None)
    name = pool if isinstance(pool, str) else getattr(pool, "pool_type", None)
    return name or "model"
