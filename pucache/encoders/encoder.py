"""Frozen encoders: images in, embeddings out.

Images are preprocessed as timm's configuration of the network says, or as they were when `pretrain`
trained it, so a network sees images as in its training.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from ..devices import choose_device, choose_precision, choose_runtime
from ..errors import EncoderError, UnknownEncoderError
from ..images.decoding import DECODER, Decoding
from ..images.preprocessing import Preprocess
from ..images.regions import check_tiles
from . import image_text, pretrained_file
from .backbones import bundled, configuration, digest, from_timm, transform
from .inference import Runtime
from .spec import BUNDLED, EncoderSpec, preprocessing_fields, uncropped


class Encoder:
    """A frozen encoder, ready to run.

    Attributes
    ----------
    spec : EncoderSpec
    preprocess : Preprocess
        PIL image to uint8 pixels, (H, W, 3).
    runtime : Runtime
        uint8 pixels (b, H, W, 3) to embeddings, float32 (b, d).
    """

    def __repr__(self) -> str:
        return f"Encoder({self.spec})"

    def __init__(self, spec: EncoderSpec, preprocess: Preprocess, runtime: Runtime):
        self.spec, self.preprocess, self.runtime = spec, preprocess, runtime

    def load(self) -> Encoder:
        """Return the encoder itself; a `DeferredEncoder` loads one here."""
        return self

    def __call__(self, images: Iterable[Image.Image]) -> np.ndarray:
        """Embed RGB images of PIL; returns float32, (n, d)."""
        pixels = [self.preprocess(image) for image in images]
        return self.runtime(torch.stack(pixels)) if pixels else np.empty((0, self.spec.dim), np.float32)


def load_encoder(
    name: str | Path = BUNDLED,
    *,
    weights: str | Path | None = None,
    device: str | torch.device = "auto",
    precision: str = "auto",
    runtime: str = "auto",
    batch_size: int | None = None,
    decoding: Decoding | None = None,
    tiles: str = "",
    like: EncoderSpec | None = None,
) -> Encoder:
    """Load a frozen encoder.

    Parameters
    ----------
    name : str or path
        ``bundled`` (ImageNet EfficientNet-Lite0 from an installed package, needs no network), ``timm:NAME``
        (any model of timm), ``open_clip:MODEL:TAG`` (image-text models), or the folder that
        `pucache.pretraining.pretrain.pretrain` wrote.
    weights : path, optional
        Safetensors file, or a state dict saved by torch; read without executing pickled code. By default
        timm and open_clip fetch the pretrained weights from their hub. For ``open_clip:MODEL`` also a folder with
        its configuration and weights. For an encoder named ``pretrained:NAME`` in a
        cache: the folder that `pretrain` wrote.
    device, precision, runtime : str
        See `pucache.devices`. ``auto`` is the fastest choice that is not measurably less accurate. A
        `torch.device` is not checked, because it may be a device of another machine.
    batch_size : int, optional
        Images per forward pass. By default 16 on the CPU, 4 with OpenVINO, and on CUDA 512 or what fits.
    decoding : Decoding, optional
        Choices on the way from bytes to pixels, such as the white level of 16-bit images; by default the usual ones, or
        those that an encoder from `pretrain` was trained with. Embeddings of other choices are never mixed.
    tiles : str
        How images are cut into parts, each of which becomes a row: rows and columns such as ``3x3``, a side in pixels
        such as ``512`` or ``512 overlap 64``, or ``boxes`` for those of a manifest. By default images are whole.
    like : EncoderSpec, optional
        Encoder of an existing cache. Where precision and runtime are ``auto``, its settings are
        used if this machine supports them, so that the cache can be continued.

    Returns
    -------
    Encoder

    Raises
    ------
    EncoderError
        The name is unknown, or the weights are missing or of another model.
    ValueError
        The device, precision, runtime, batch size or tiles cannot be used.
    """
    check_tiles(tiles)
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch size must be at least 1, got {batch_size}")
    chosen = choose_device(device)
    precision = _follow(like.precision if like else None, choose_precision, precision, chosen)
    runtime = _follow(like.runtime if like else None, choose_runtime, runtime, chosen)
    model, config, name = _network(os.fspath(name), weights)
    decoder, configuration = config.pop("decoder", DECODER), config.pop("configuration", "")
    weights_digest = digest(model)  # of an image-text model both towers', before the runtime folds and converts them
    model = model.visual if configuration else model
    config = uncropped(config, tiles)
    spec = EncoderSpec(
        name=name,
        weights=weights_digest,
        **preprocessing_fields(config),
        decoder=decoding.decoder if decoding else decoder,
        pooling=_pooling(model),
        dim=_dim(model, name, config["input_size"]),
        precision=precision,
        runtime=runtime,
        configuration=configuration,
        tiles=tiles,
    )
    if batch_size is not None:
        _check_memory(batch_size, spec.input_size)
    settings: dict[str, Any] = {"device": chosen, "precision": precision, "runtime": runtime, "batch_size": batch_size}
    built = Runtime(model, spec.mean, spec.std, input_size=config["input_size"][1:], **settings)
    return Encoder(spec, Preprocess(config, transform(config)), built)


def _check_memory(batch_size: int, input_size: tuple[int, ...]) -> None:
    """Raise `ValueError` where the pixels of a batch, in float32, are more than the memory of this machine."""
    needed, memory = (
        batch_size * 3 * math.prod(input_size) * 4,
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )
    if needed > memory:
        raise ValueError(
            f"batch size {batch_size:,} is too large: the pixels alone take {needed / 1e9:,.0f} GB, this machine has "
            f"{memory / 1e9:,.0f}; use a smaller one"
        )


def _follow(
    existing: str | None, choose: Callable[[str, torch.device], str], requested: str, device: torch.device
) -> str:
    """Choose what is requested; for ``auto`` what an existing cache has, where this machine supports it."""
    if requested == "auto" and existing:
        with contextlib.suppress(ValueError):  # a GPU's precision, say, or a runtime that is not installed
            return choose(existing, device)
    return choose(requested, device)


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
    if name.startswith(image_text.PREFIX):
        model, config = image_text.load(name, weights)
        return model, config, name
    if name.startswith(pretrained_file.PREFIX):
        if weights is None:
            raise EncoderError(f"{name} lies in the folder that pretrain wrote; pass that folder as --weights")
        model, config, stored_name = pretrained_file.load(weights)
        if stored_name != name:
            raise EncoderError(f"{weights} holds {stored_name}, not {name}; pass the folder of {name} as --weights")
        return model, config, name
    if os.path.lexists(name):
        if weights is not None:
            raise EncoderError(f"{name} has its own weights; leave out --weights")
        return pretrained_file.load(name)
    raise UnknownEncoderError(
        f"unknown encoder {name!r}; use 'bundled', 'timm:NAME' such as timm:resnet50, 'open_clip:MODEL:TAG' such as "
        "open_clip:ViT-B-32:laion2b_s34b_b79k, or a folder that pretrain wrote"
    )


def _dim(model: torch.nn.Module, name: str, input_size: tuple[int, ...]) -> int:
    """Length of an embedding, from one black image; on a CPU a whole batch may take a large model a minute."""
    if input_size[0] != 3:
        raise EncoderError(f"{name} takes {input_size[0]} channels; only RGB models are supported")
    with torch.inference_mode():
        row = model.eval()(torch.zeros(1, *input_size))
    if not isinstance(row, torch.Tensor) or row.ndim != 2:
        raise EncoderError(f"{name} does not give one vector per image; choose a pooled model")
    return row.shape[1]


def _pooling(model: torch.nn.Module) -> str:
    """Name of the pooling in timm's terms (``avg``, ``token``, ...), or ``model`` where it has no choice."""
    pool = getattr(model, "global_pool", None)
    name = pool if isinstance(pool, str) else getattr(pool, "pool_type", None)
    return name or "model"
