"""What is trained: a backbone, and the projector that is thrown away afterwards."""

from __future__ import annotations

import os
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

_OUT = 128  # dimensions in which views are compared
_WIDEST = 2048  # of the projector's hidden layer
_SMALL = 32  # pixels a side, by default, with a small stem


class Network(torch.nn.Module):
    """Views to projections.

    Parameters
    ----------
    backbone : Module
        Normalised (b, 3, H, W) to (b, d).
    description : Description
    norm : bool
        Whether the projector has a batch norm.
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, backbone: torch.nn.Module, description: Description, *, norm: bool):
        super().__init__()
        self.backbone, self.description = backbone, description
        with torch.no_grad():
            rows: Any = backbone.eval()(torch.zeros(1, 3, description.size, description.size))
        if not isinstance(rows, torch.Tensor) or rows.ndim != 2:
            raise EncoderError(f"{description.architecture} does not give one vector per image; choose a pooled model")
        self.dim = rows.shape[1]
        hidden = min(self.dim, _WIDEST)
        self.projector = torch.nn.Sequential(
            torch.nn.Linear(self.dim, hidden, bias=False),
            torch.nn.BatchNorm1d(hidden) if norm else torch.nn.Identity(),
            torch.nn.ReLU(),
            torch.nn.Linear(hidden, _OUT, bias=False),
        )
        self.register_buffer("mean", torch.tensor(description.mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(description.std).view(3, 1, 1), persistent=False)

    def features(self, views: torch.Tensor) -> torch.Tensor:
        """Embeddings of views in [0, 1]: (b, 3, H, W) -> (b, d)."""
        x = (views - self.mean) / self.std
        return self.backbone(x.contiguous(memory_format=torch.channels_last))

    def forward(self, views: torch.Tensor) -> torch.Tensor:
        """Projections of views in [0, 1]: (b, 3, H, W) -> (b, 128)."""
        return self.projector(self.features(views))


def build(architecture: str, *, stem: str, size: int | None, weights: str | None, norm: bool, seed: int) -> Network:
    """Build a network, and draw or load the weights that training begins with.

    Parameters
    ----------
    architecture : str
        Of timm, or ``bundled``.
    stem : {"standard", "small"}
    size : int, optional
        Side of the views in pixels; by default that of the earlier run, else what timm's configuration says,
        or 32 with a small stem.
    weights : str, optional
        A file, the folder of an earlier run, or ``hub`` for timm's pretrained ones; random ones by default.
    norm : bool
    seed : int
        Of the random weights.

    Raises
    ------
    EncoderError
        An unknown architecture, or weights that do not fit it.
    ValueError
        A size that it cannot take.
    """
    architecture = architecture.removeprefix("timm:")
    torch.manual_seed(seed)
    backbone, config = _backbone(architecture, stem, weights)
    if config["input_size"][0] != 3:
        raise EncoderError(f"{architecture} takes {config['input_size'][0]} channels; only RGB models are supported")
    if size is None:
        size = max(config["input_size"][1:])
    if not 0 < size <= LARGEST:
        raise ValueError(f"images of {size} pixels; use a --size from 1 to {LARGEST}")
    name = getattr(backbone, "default_cfg", {}).get("architecture", architecture)
    interpolation = config["interpolation"] if config["interpolation"] in ("bilinear", "bicubic") else "bicubic"
    told = Description(name, stem, size, list(config["mean"]), list(config["std"]), interpolation, 0)
    try:
        return Network(backbone, told, norm=norm)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"{architecture} cannot take images of {size} pixels ({one_line(error)[:100]}); use another --size"
        ) from error


def _backbone(architecture: str, stem: str, weights: str | None) -> tuple[Any, dict[str, Any]]:
    """The network, and how images are brought to it, in timm's terms."""
    if weights not in (None, "hub") and (os.path.isdir(weights) or pretrained_file.is_pretrained(weights)):
        return _earlier(architecture, stem, weights)
    if architecture == BUNDLED:
        if weights is not None:
            raise EncoderError("the bundled network has its own weights; leave out --weights, or name a --backbone")
        model = bundled()
    elif weights is not None:
        model = from_timm(architecture, None if weights == "hub" else weights)
    else:
        model = untrained(architecture)
    config = configuration(model)
    if stem == "small":
        make_stem_small(model, architecture)
        config["input_size"] = (config["input_size"][0], _SMALL, _SMALL)
    return model, config


def _earlier(architecture: str, stem: str, weights: str) -> tuple[Any, dict[str, Any]]:
    """What an earlier run learned, if it is of that architecture."""
    tensors, told = pretrained_file.read(weights)
    wanted = BUNDLED_ARCHITECTURE if architecture == BUNDLED else architecture.partition(".")[0]
    if (told.architecture, told.stem) != (wanted, stem):
        raise EncoderError(
            f"{weights} holds {told.architecture} with a {told.stem} stem; "
            f"pass --backbone {told.architecture} --stem {told.stem}"
        )
    model, config, _ = pretrained_file.build(weights, tensors, told)
    return model, config
