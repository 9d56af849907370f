"""Frozen encoders: images in, embeddings out.

Images are preprocessed as timm's configuration of the network says, or as they were when `pretrain`
trained it, so a network sees images as in its training.
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
        Runs the network.
    forward : callable
        uint8 pixels (b, H, W, 3) to embeddings, float32 (b, d); the runtime itself.
    decoder : DeviceDecoder or None
        Decodes JPEG files on the device that runs the encoder.
    """

    def __init__(
        self, spec: EncoderSpec, preprocess: Preprocess, runtime: Runtime, decoder: DeviceDecoder | None = None
    ):
        self.spec = spec
        self.preprocess = preprocess
        self.runtime = runtime
        self.decoder = decoder
        self.forward: Callable[[torch.Tensor], np.ndarray] = runtime

    def load(self) -> Encoder:
        """Return the encoder itself; a `DeferredEncoder` loads one here."""
        return self

    def __call__(self, images: Iterable[Image.Image]) -> np.ndarray:
        """Embed PIL images.

        Parameters
        ----------
        images : iterable of PIL.Image.Image
            RGB.

        Returns
        -------
        ndarray of float32, (n, d)
        """
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
        ``bundled`` (ImageNet EfficientNet-Lite0 from an installed package, needs no network), ``timm:NAME``
        (any model of timm), or the folder that `pucache.pretraining.pretrain.pretrain` wrote.
    weights : path, optional
        Safetensors file, or a state dict saved by torch; read without executing pickled code. By default
        timm fetches the pretrained weights from its hub. For an encoder named ``pretrained:NAME`` in a
        cache: the folder that `pretrain` wrote.
    device, precision, runtime : str
        See `pucache.devices`. ``auto`` is the fastest choice that is not measurably less accurate. A
        `torch.device` is not checked, because it may be a device of another machine.
    decode : {"auto", "host", "device"}
        Where JPEG files are decoded: on the host by Pillow, or in batches by torchvision on the device that
        runs the encoder. ``auto`` is ``host``. Other formats are always decoded by Pillow.
    batch_size : int, optional
        Images per forward pass. By default 16 on the CPU, 4 with OpenVINO, and what fits on CUDA.
    like : EncoderSpec, optional
        Encoder of an existing cache. Where precision, runtime and decode are ``auto``, its settings are
        used if this machine supports them, so that the cache can be continued.

    Returns
    -------
    Encoder

    Raises
    ------
    EncoderError
        The name is unknown, or the weights are missing or of another model.
    ValueError
        The device, precision, runtime or batch size cannot be used.
    """
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch size must be at least 1, got {batch_size}")
    chosen_device = choose_device(device)
    chosen_precision, chosen_runtime = _precision_and_runtime(precision, runtime, chosen_device, like)
    on_device = _decodes_on_device(decode, like)
    model, config, encoder_name = _network(os.fspath(name), weights)
    spec = _spec(
        model,
        config,
        name=encoder_name,
        decoder=DEVICE_DECODER if on_device else DECODER,
        precision=chosen_precision,
        runtime=chosen_runtime,
    )
    forward = Runtime(
        model,
        spec.mean,
        spec.std,
        input_size=(spec.input_size[0], spec.input_size[1]),
        device=chosen_device,
        precision=chosen_precision,
        runtime=chosen_runtime,
        batch_size=batch_size,
    )
    preprocess = Preprocess(config, transform(config))
    if on_device and not preprocess.fast:
        raise ValueError(
            f"{encoder_name} resizes in a way that only the host can ({spec.interpolation}); use --decode host"
        )
    return Encoder(spec, preprocess, forward, DeviceDecoder(preprocess, chosen_device) if on_device else None)


def _decodes_on_device(decode: str, like: EncoderSpec | None) -> bool:
    if decode not in ("auto", "host", "device"):
        raise ValueError(f"unknown place to decode {decode!r}; use auto, host or device")
    return decode == "device" or (decode == "auto" and like is not None and like.decoder == DEVICE_DECODER)


def _spec(
    model: torch.nn.Module, config: dict[str, Any], *, name: str, decoder: str, precision: str, runtime: str
) -> EncoderSpec:
    """Describe a network; to be called before the runtime folds and converts its weights."""
    channels, height, width = config["input_size"]
    if channels != 3:
        raise EncoderError(f"{name} takes {channels} channels; only RGB models are supported")
    dim = _dim(model, name, height, width)
    return EncoderSpec(
        name=name,
        weights=digest(model),
        input_size=(height, width),
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        interpolation=config["interpolation"],
        crop_pct=config["crop_pct"],
        crop_mode=config["crop_mode"],
        decoder=decoder,
        pooling=_pooling(model),
        dim=dim,
        precision=precision,
        runtime=runtime,
    )


def _network(name: str, weights: str | Path | None) -> tuple[Any, dict[str, Any], str]:
    """Network, preprocessing in timm's terms, and name of the encoder in caches."""
    if name == BUNDLED:
        model = bundled(weights)
        return model, configuration(model), name
    if name.startswith("timm:"):
        if weights is not None and pretrained_file.is_pretrained(weights):
            raise EncoderError(f"{weights} is an encoder that pretrain wrote; pass it as --encoder, without --weights")
        model = from_timm(name.removeprefix("timm:"), weights)
        return model, configuration(model), name
    if name.startswith(pretrained_file.PREFIX):
        return _pretrained(name, weights)
    if os.path.lexists(name):
        if weights is not None:
            raise EncoderError(f"{name} has its own weights; leave out --weights")
        return pretrained_file.load(name)
    raise EncoderError(
        f"unknown encoder {name!r}; use 'bundled', 'timm:NAME' such as timm:resnet50, or a folder that pretrain wrote"
    )


def _pretrained(name: str, folder: str | Path | None) -> tuple[Any, dict[str, Any], str]:
    if folder is None:
        raise EncoderError(f"{name} lies in the folder that pretrain wrote; pass that folder as --weights")
    model, config, stored_name = pretrained_file.load(folder)
    if stored_name != name:
        raise EncoderError(f"{folder} holds {stored_name}, not {name}; pass the folder of {name} as --weights")
    return model, config, stored_name


def _precision_and_runtime(
    precision: str, runtime: str, device: torch.device, like: EncoderSpec | None
) -> tuple[str, str]:
    def choose(choice: Callable[[str, torch.device], str], requested: str, existing: str | None) -> str:
        if requested == "auto" and existing:
            with contextlib.suppress(ValueError):  # a GPU's precision, say, or a runtime that is not installed
                return choice(existing, device)
        return choice(requested, device)

    return (
        choose(choose_precision, precision, like.precision if like else None),
        choose(choose_runtime, runtime, like.runtime if like else None),
    )


def _dim(model: torch.nn.Module, name: str, height: int, width: int) -> int:
    """Length of an embedding, from one black image; on a CPU a whole batch may take a large model a minute."""
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
