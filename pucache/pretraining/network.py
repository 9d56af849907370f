"""The network that is trained: a backbone, and a projector that is discarded after training."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Any

import torch

from ..encoders import pretrained_file
from ..encoders.backbones import (
    BUNDLED_ARCHITECTURE,
    bundled,
    configuration,
    from_timm,
    make_stem_small,
    untrained,
)
from ..encoders.pretrained_file import LARGEST, Description
from ..encoders.spec import BUNDLED
from ..errors import EncoderError, one_line
from ..images.decoding import DECODER, Decoding

_PROJECTION_DIM = 128
_MAX_HIDDEN = 2048  # width of the projector's hidden layer
SMALL_VIEWS = 64  # pixels a side of the largest views for which the stem is small
_MAX_SEED = 1 << 63


@dataclass(frozen=True)
class NetworkConfig:
    """The network that is trained, and the weights from which training starts.

    Attributes
    ----------
    backbone : str
        Name of a timm model, or ``bundled``.
    size : int, optional
        Side of the views in pixels. By default that of the earlier run in `weights`, else the one in timm's
        configuration. Up to 64, the first convolution of a network is replaced by one of 3 x 3 without stride,
        and the pooling after it is left out: its stem is small.
    weights : str, optional
        A file, the folder of an earlier run, or ``hub`` for timm's pretrained weights. By default the weights
        are random; the ``bundled`` network always has its own.
    decoding : Decoding, optional
        Choices on the way from bytes to pixels. By default those of the earlier run in `weights`, else the usual ones.
        Caches and models of the encoder record them.
    """

    backbone: str = "resnet50"
    size: int | None = None
    weights: str | None = None
    decoding: Decoding | None = None

    @property
    def has_random_weights(self) -> bool:
        """Whether training starts from random weights."""
        return self.weights is None and self.backbone != BUNDLED

    @property
    def initial_weights(self) -> str:
        """Name of the weights from which training starts, for the user."""
        return "random weights" if self.has_random_weights else f"weights of {self.weights or self.backbone}"


class Network(torch.nn.Module):
    """Backbone and projector, with a batch norm where `norm`: normalised views (b, 3, H, W) to projections.

    Raises `EncoderError` where the backbone does not return one vector per image.
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, backbone: torch.nn.Module, description: Description, *, norm: bool):
        super().__init__()
        self.backbone, self.description = backbone, description
        with torch.no_grad():
            features: Any = backbone.eval()(torch.zeros(1, 3, description.size, description.size))
        if not isinstance(features, torch.Tensor) or features.ndim != 2:
            raise EncoderError(f"{description.architecture} does not give one vector per image; choose a pooled model")
        self.dim = features.shape[1]
        hidden = min(self.dim, _MAX_HIDDEN)
        self.projector = torch.nn.Sequential(
            torch.nn.Linear(self.dim, hidden, bias=False),
            torch.nn.BatchNorm1d(hidden) if norm else torch.nn.Identity(),
            torch.nn.ReLU(),
            torch.nn.Linear(hidden, _PROJECTION_DIM, bias=False),
        )
        self.register_buffer("mean", torch.tensor(description.mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(description.std).view(3, 1, 1), persistent=False)

    def features(self, views: torch.Tensor) -> torch.Tensor:
        """Embeddings of views with values in [0, 1]: (b, 3, H, W) -> (b, d)."""
        x = (views - self.mean) / self.std
        return self.backbone(x.contiguous(memory_format=torch.channels_last))

    def forward(self, views: torch.Tensor) -> torch.Tensor:
        """Projections of views with values in [0, 1]: (b, 3, H, W) -> (b, 128)."""
        return self.projector(self.features(views))


def build_network(config: NetworkConfig, *, norm: bool, seed: int, stem: str | None = None) -> Network:
    """Build a network with the weights from which training starts; `seed`, below 2**63, is that of random ones.

    `stem`, standard or small, is that of the run that goes on. A new one has that of the run in `weights`, else a small
    one for small views.

    Raises `EncoderError` where the architecture is unknown or the weights do not fit it, and `ValueError` where the
    network cannot take images of that size.
    """
    if not 0 <= seed < _MAX_SEED:
        raise ValueError(f"the seed must be at least 0 and below 2 to the 63rd, got {seed}")
    architecture = config.backbone.removeprefix("timm:")
    torch.manual_seed(seed)
    backbone, timm_config, learned_stem = _build_backbone(architecture, config.weights)
    channels, *sides = timm_config["input_size"]
    if channels != 3:
        raise EncoderError(f"{architecture} takes {channels} channels; only RGB models are supported")
    size = max(sides) if config.size is None else config.size
    if not 0 < size <= LARGEST:
        raise ValueError(f"images of {size} pixels; use a --size from 1 to {LARGEST}")
    interpolation = timm_config["interpolation"]
    description = Description(
        architecture=getattr(backbone, "default_cfg", {}).get("architecture", architecture),
        stem=learned_stem or _fit_stem(backbone, architecture, size, stem),
        size=size,
        mean=list(timm_config["mean"]),
        std=list(timm_config["std"]),
        interpolation=interpolation if interpolation in ("bilinear", "bicubic") else "bicubic",
        steps=0,
        decoder=config.decoding.decoder if config.decoding else timm_config.get("decoder", DECODER),
    )
    try:
        return Network(backbone, description, norm=norm)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"{architecture} cannot take images of {size} pixels ({one_line(error, 100)}); use another --size"
        ) from error


def _build_backbone(architecture: str, weights: str | None) -> tuple[Any, dict[str, Any], str | None]:
    """Backbone, its preprocessing as timm's configuration, and its stem where an earlier run has settled it."""
    if weights not in (None, "hub") and (os.path.isdir(weights) or pretrained_file.is_pretrained(weights)):
        return _load_earlier_run(architecture, weights)
    if architecture == BUNDLED:
        if weights is not None:
            raise EncoderError("the bundled network has its own weights; leave out --weights, or name a --backbone")
        model = bundled()
    elif weights is not None:
        model = from_timm(architecture, None if weights == "hub" else weights)
    else:
        model = untrained(architecture)
    return model, configuration(model), None


def _fit_stem(model: Any, architecture: str, size: int, stem: str | None) -> str:
    """Give a network for small views a small stem, unless it begins with patches, and return the name of its stem."""
    if (stem or ("small" if size <= SMALL_VIEWS else "standard")) == "small":
        with contextlib.suppress(EncoderError):  # it has no convolution over pixels
            make_stem_small(model, architecture)
            return "small"
    return "standard"


def _load_earlier_run(architecture: str, weights: str) -> tuple[Any, dict[str, Any], str]:
    """Backbone that an earlier run trained, which must be of the same architecture."""
    tensors, description = pretrained_file.read(weights)
    expected = BUNDLED_ARCHITECTURE if architecture == BUNDLED else architecture.partition(".")[0]
    if description.architecture != expected:
        raise EncoderError(f"{weights} holds {description.architecture}; pass --backbone {description.architecture}")
    model, config, _ = pretrained_file.build(weights, tensors, description)
    return model, config, description.stem
