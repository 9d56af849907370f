"""The file of a model: tensors and a JSON header in safetensors, with a checksum; no pickle."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from . import __version__
from .durable import check_writable, replacing
from .errors import ModelError

FORMAT, VERSION = "pucache-model", 2


def write(path: str | Path, tensors: dict[str, np.ndarray], state: dict[str, Any]) -> None:
    """Write tensors and JSON-able state under a temporary name, then rename.

    Raises
    ------
    OutputError
        `path` cannot be written.
    """
    header = {
        "format": FORMAT,
        "version": str(VERSION),
        "pucache_version": __version__,
        "state": json.dumps(state, sort_keys=True, default=np.generic.item),
    }
    header["checksum"] = _checksum(tensors, header)
    with replacing(check_writable(path)) as temporary:
        # one entry, because safetensors writes several in random order
        safetensors.numpy.save_file(tensors, temporary, {FORMAT: json.dumps(header, sort_keys=True)})


def read(path: str | Path, expected: tuple[str, ...]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read the tensors of the `expected` names, and the state.

    Raises
    ------
    ModelError
        Missing, not a pucache model, of another version, or damaged.
    """
    path = Path(path)
    if not path.is_file():
        raise ModelError(f"no such model: {path}")
    try:
        with safetensors.safe_open(path, "numpy") as file:
            header = json.loads((file.metadata() or {}).get(FORMAT, "{}"))
            _check_format(path, header)
            names = set(file.keys())
            tensors = {name: file.get_tensor(name) for name in expected if name in names}
    except (safetensors.SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} cannot be read as safetensors ({str(error)[:120]}); train the model again") from error
    stated = header.pop("checksum", "")
    if names != set(expected) or _checksum(tensors, header) != stated:
        raise ModelError(f"{path} is damaged: content and checksum disagree; train the model again")
    return tensors, json.loads(header["state"])


def _check_format(path: Path, header: dict[str, str]) -> None:
    if header.get("format") != FORMAT:
        raise ModelError(f"{path} is a safetensors file but not a pucache model; pass what train-pu wrote")
    if header.get("version") != str(VERSION):
        raise ModelError(
            f"{path} is a model of format version {header.get('version')}; this pucache {__version__} reads "
            f"version {VERSION}: upgrade pucache, or train again"
        )


def _checksum(tensors: dict[str, np.ndarray], header: dict[str, str]) -> str:
    state = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        state.update(f"{name}{tensors[name].dtype}{tensors[name].shape}".encode())
        state.update(np.ascontiguousarray(tensors[name]).tobytes())
    return state.hexdigest()
