"""The encoder file that `pretrain` writes: weights of a network, and how images are preprocessed for it."""

from __future__ import annotations

import dataclasses
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import EncoderError
from ..images.decoding import DECODER, Decoding
from ..images.preprocessing import preprocessing
from ..storage import tensor_file
from ..storage.atomic import format_of

if TYPE_CHECKING:
    import torch

NAME = "encoder.safetensors"  # within the folder of a run
PREFIX = "pretrained:"  # of encoder names in caches
FILE_FORMAT = tensor_file.FileFormat(
    format="pucache-encoder",
    version=1,
    noun="encoder",
    error=EncoderError,
    expected="a folder that pretrain wrote",
    remedy="run pretrain again",
)
MAX_BYTES = 1 << 34
LARGEST = 2048  # side of images, in pixels
_MAX_STATISTIC = 1e6  # more than any mean or 1 / std of pixels in [0, 1]; NaN fails the comparison too


@dataclass(frozen=True)
class Description:
    """Architecture and preprocessing of a network."""

    architecture: str  # name of a timm model
    stem: str  # standard or small, see `pucache.encoders.backbones.untrained`
    size: int  # side of the square input, in pixels, to which images are squashed
    mean: list[float]  # per channel, of pixels in [0, 1], as `std`
    std: list[float]
    interpolation: str  # bilinear or bicubic
    steps: int  # training steps that were taken
    decoder: str = DECODER  # the recipe from bytes to pixels, as in `EncoderSpec`

    @property
    def encoder_name(self) -> str:
        """Name of the encoder in caches."""
        return PREFIX + self.architecture + ("-small" if self.stem == "small" else "")

    def preprocessing(self) -> dict[str, Any]:
        """Preprocessing in timm's terms."""
        config = preprocessing(self.size, self.mean, self.std, self.interpolation, "squash")
        return config | {"decoder": self.decoder}


def write(path: str | Path, model: torch.nn.Module, description: Description) -> None:
    """Write the weights of `model` and its description; raises `OutputError` where `path` cannot be written."""
    tensors = {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in model.state_dict().items()}
    state = dataclasses.asdict(description)
    if description.decoder == DECODER:  # which files that were written before it could be chosen lack
        del state["decoder"]
    tensor_file.write(path, FILE_FORMAT, tensors, state)


def is_pretrained(path: str | Path) -> bool:
    """Whether `path` is an encoder file by its first bytes, or a folder that holds one."""
    return FILE_FORMAT.format in (format_of(path), format_of(Path(path, NAME)))


def read(file_or_folder: str | Path) -> tuple[dict[str, np.ndarray], Description]:
    """Read an encoder file, or that of a folder, without torch; raises `EncoderError` where it is not a sound one."""
    path = Path(file_or_folder)
    if os.path.isdir(path):
        path = path / NAME
        if path.with_name("run.json").exists() and not path.exists():
            raise EncoderError(f"{file_or_folder} has trained nothing yet; run the same pretrain again, which goes on")
        if not path.exists():
            expected = "a folder that pretrain wrote, or one as the hub has them, with config.json"
            raise EncoderError(f"{file_or_folder} holds no {NAME}; expected {expected}")
    tensors, state = tensor_file.read(path, FILE_FORMAT, max_bytes=MAX_BYTES)
    try:
        return tensors, _check(Description(**state))
    except (TypeError, ValueError) as error:
        raise EncoderError(f"{path} does not describe an encoder ({str(error)[:120]}); run pretrain again") from error


def load(file_or_folder: str | Path) -> tuple[Any, dict[str, Any], str]:
    """Load an encoder file: the network, its preprocessing in timm's terms, and the encoder's name in caches.

    Raises `EncoderError` where the file is missing, foreign, damaged, or of an architecture that this timm lacks.
    """
    return build(file_or_folder, *read(file_or_folder))


def build(
    file_or_folder: str | Path, tensors: dict[str, np.ndarray], description: Description
) -> tuple[Any, dict[str, Any], str]:
    """Build the network of which `read` gave weights and description; returns what `load` does."""
    import torch

    from .backbones import untrained  # imports timm
    from .checkpoints import require_finite

    state = {name: torch.from_numpy(values) for name, values in tensors.items()}
    architecture, stem = description.architecture, description.stem
    try:
        with torch.device("meta"):  # takes no memory: a foreign file may name a network of many gigabytes
            expected = untrained(architecture, stem=stem).state_dict()
    except ValueError as error:
        raise EncoderError(f"{file_or_folder} cannot be built: {error}; run pretrain again") from error
    if _shapes(state) != _shapes(expected):
        raise EncoderError(f"{file_or_folder} does not fit {architecture} as this timm builds it; run pretrain again")
    model = untrained(architecture, stem=stem)
    model.load_state_dict(state)
    require_finite(model, file_or_folder)
    return model, description.preprocessing(), description.encoder_name


def _shapes(state: dict[str, torch.Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}


def _check(description: Description) -> Description:
    """Return a description that makes sense; a stranger may have written it."""
    mean, std, size, steps = description.mean, description.std, description.size, description.steps
    for numbers in (mean, std):
        if not isinstance(numbers, list) or len(numbers) != 3 or not all(type(x) in (float, int) for x in numbers):
            raise ValueError("mean and std are not three numbers each")
    if not all(abs(x) <= _MAX_STATISTIC for x in mean) or not all(
        1 / _MAX_STATISTIC <= x <= _MAX_STATISTIC for x in std
    ):
        raise ValueError("mean and std are not those of pixels in [0, 1]")
    if type(size) is not int or not 0 < size <= LARGEST:
        raise ValueError(f"the size is not between 1 and {LARGEST} pixels")
    if type(steps) is not int or steps < 0:
        raise ValueError("the steps are no count")
    if description.stem not in ("standard", "small") or description.interpolation not in ("bilinear", "bicubic"):
        raise ValueError("an unknown stem or interpolation")
    if not isinstance(description.decoder, str) or Decoding.of(description.decoder).decoder != description.decoder:
        raise ValueError("an unknown decoder")
    name = description.architecture
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.]{1,100}", name):
        raise ValueError("the architecture is no name")
    return description
