"""The file of a model: its tensors and its state, sealed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ModelError
from ..storage import tensor_file
from ..version import __version__

FORMAT, VERSION = "pucache-model", 3
MAX_BYTES = 1 << 30  # a model is a few numbers a dimension; what is larger is another file


def write(path: str | Path, tensors: dict[str, np.ndarray], state: dict[str, Any]) -> None:
    """Write tensors and JSON-able state under a temporary name, then rename.

    Raises
    ------
    OutputError
        `path` cannot be written.
    """
    tensor_file.write(path, _kind(), tensors, state)


def read(path: str | Path, expected: tuple[str, ...]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read the tensors of the `expected` names, and the state.

    Raises
    ------
    ModelError
        Missing, not a pucache model, of another version, or damaged.
    """
    tensors, state = tensor_file.read(path, _kind(), max_bytes=MAX_BYTES)
    if set(tensors) != set(expected):
        raise ModelError(f"{path} holds other tensors than a model of pucache {__version__}; train the model again")
    return tensors, state


def _kind() -> tensor_file.Kind:
    return tensor_file.Kind(
        format=FORMAT,
        version=VERSION,
        noun="model",
        error=ModelError,
        expected="what train-pu wrote",
        remedy="train the model again",
    )
