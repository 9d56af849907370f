"""The file of an encoder that was learned here: its weights, and how images are brought to it."""

from __future__ import annotations

import dataclasses
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import EncoderError
from ..storage import tensor_file
from .backbones import untrained

NAME = "encoder.safetensors"  # within the folder of a run
PREFIX = "pretrained:"  # of the names by which caches know such encoders
KIND = tensor_file.Kind(
    format="pucache-encoder",
    version=1,
    noun="encoder",
    error=EncoderError,
    expected="a folder that pretrain wrote",
    remedy="run pretrain again",
)
MAX_BYTES = 1 << 34
LARGEST = 2048  # side of images, in pixels
_FAR = 1e6  # beyond any mean or spread of pixels in [0, 1]; NaN is not within it


@dataclass(frozen=True)
class Description:
    """What a network is, but for its weights.

    Attributes
    ----------
    architecture : str
        Of timm.
    stem : {"standard", "small"}
    size : int
        Side of the images it takes, in pixels.
    mean, std : list of float
        Per channel, of pixels in [0, 1].
    interpolation : str
        Images are squashed to `size` by it.
    steps : int
        Of training.
    """

    architecture: str
    stem: str
    size: int
    mean: list[float]
    std: list[float]
    interpolation: str
    steps: int


def write(path: str | Path, model: torch.nn.Module, description: Description) -> None:
    """Write an encoder.

    Raises
    ------
    OutputError
        `path` cannot be written.
    """
    tensors = {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in model.state_dict().items()}
    tensor_file.write(path, KIND, tensors, dataclasses.asdict(description))


def is_one(where: str | Path) -> bool:
    """Whether `where` is such a file by its first bytes, or the folder of one."""
    return KIND.format in (tensor_file.format_of(where), tensor_file.format_of(Path(where, NAME)))


def read(where: str | Path) -> tuple[dict[str, np.ndarray], Description]:
    """Read the weights and the description, from a file or from the folder that it lies in.

    Raises
    ------
    EncoderError
        Missing, foreign or damaged.
    """
    path = Path(where)
    if os.path.isdir(path):
        path = path / NAME
        if not path.exists():
            raise EncoderError(f"{where} holds no {NAME}; expected a folder that pretrain wrote")
    tensors, state = tensor_file.read(path, KIND, max_bytes=MAX_BYTES)
    try:
        return tensors, _checked(Description(**state))
    except (TypeError, ValueError) as error:
        raise EncoderError(f"{path} does not describe an encoder ({str(error)[:120]}); run pretrain again") from error


def load(where: str | Path) -> tuple[Any, dict[str, Any], str]:
    """Load a network, how images are brought to it (in timm's terms), and what caches call it.

    Raises
    ------
    EncoderError
        Missing, foreign, damaged, or of an architecture that timm does not have (any more).
    """
    return assemble(where, *read(where))


def assemble(where: str | Path, tensors: dict[str, np.ndarray], told: Description) -> tuple[Any, dict[str, Any], str]:
    """What `load` returns, of what `read` has read there."""
    state = {name: torch.from_numpy(values) for name, values in tensors.items()}
    with torch.device("meta"):  # without memory: a stranger's file may name a network of many gigabytes
        expected = untrained(told.architecture, stem=told.stem).state_dict()
    if _shapes(state) != _shapes(expected):
        raise EncoderError(f"{where} does not fit {told.architecture} as this timm builds it; run pretrain again")
    model = untrained(told.architecture, stem=told.stem)
    model.load_state_dict(state)
    config = {
        "input_size": (3, told.size, told.size),
        "mean": tuple(told.mean),
        "std": tuple(told.std),
        "interpolation": told.interpolation,
        "crop_pct": 1.0,
        "crop_mode": "squash",
    }
    return model, config, PREFIX + told.architecture + ("-small" if told.stem == "small" else "")


def _shapes(state: dict[str, torch.Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}


def _checked(told: Description) -> Description:
    for numbers in (told.mean, told.std):
        if not isinstance(numbers, list) or len(numbers) != 3 or not all(type(x) in (float, int) for x in numbers):
            raise ValueError("mean and std are not three numbers each")
    if not all(abs(x) <= _FAR for x in told.mean) or not all(1 / _FAR <= x <= _FAR for x in told.std):
        raise ValueError("mean and std are not those of pixels in [0, 1]")
    if type(told.size) is not int or not 0 < told.size <= LARGEST:
        raise ValueError(f"the size is not between 1 and {LARGEST} pixels")
    if type(told.steps) is not int or told.steps < 0:
        raise ValueError("the steps are no count")
    if told.stem not in ("standard", "small") or told.interpolation not in ("bilinear", "bicubic"):
        raise ValueError("an unknown stem or interpolation")
    if not isinstance(told.architecture, str) or not re.fullmatch(r"[A-Za-z0-9_.]{1,100}", told.architecture):
        raise ValueError("the architecture is no name")
    return told
