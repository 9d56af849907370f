"""The file of a model: tensors and a JSON header in safetensors, with a checksum over every byte; no pickle."""

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

FORMAT, VERSION = "pucache-model", 3
MAX_BYTES = 1 << 30  # a model is a few numbers a dimension; what is larger is another file
_BLANK = b"0" * 64  # stands for the checksum where the file is hashed


def write(path: str | Path, tensors: dict[str, np.ndarray], state: dict[str, Any]) -> None:
    """Write tensors and JSON-able state under a temporary name, then rename.

    Raises
    ------
    OutputError
        `path` cannot be written.
    """
    header = {
        "checksum": _BLANK.decode(),
        "format": FORMAT,
        "version": str(VERSION),
        "pucache_version": __version__,
        "state": json.dumps(state, sort_keys=True, default=np.generic.item),
    }
    # one entry, because safetensors writes several in random order
    data = safetensors.numpy.save(tensors, {FORMAT: json.dumps(header, sort_keys=True)})
    with replacing(check_writable(path)) as temporary:
        temporary.write_bytes(data.replace(_BLANK, hashlib.sha256(data).hexdigest().encode(), 1))


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
        data = _bounded(path)
        header = json.loads(_metadata(data).get(FORMAT, "{}"))
        _check_format(path, header)
        stated = str(header["checksum"]).encode()
        whole = data.count(stated) == 1 and hashlib.sha256(data.replace(stated, _BLANK)).hexdigest().encode() == stated
        if not whole:
            raise ModelError(f"{path} is damaged: content and checksum disagree; train the model again")
        tensors, state = safetensors.numpy.load(data), json.loads(header["state"])
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    except (safetensors.SafetensorError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read as safetensors ({str(error)[:120]}); train the model again") from error
    if set(tensors) != set(expected) or not isinstance(state, dict):
        raise ModelError(f"{path} holds other tensors than a model of pucache {__version__}; train the model again")
    return tensors, state


def _bounded(path: Path) -> bytes:
    with path.open("rb") as stream:
        data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ModelError(f"{path} is larger than any model ({MAX_BYTES:,} bytes); pass what train-pu wrote")
    return data


def _metadata(data: bytes) -> dict[str, str]:
    length = int.from_bytes(data[:8], "little")
    if not 0 < length <= len(data) - 8:
        raise ValueError("no header")
    return json.loads(data[8 : 8 + length]).get("__metadata__") or {}


def _check_format(path: Path, header: dict[str, str]) -> None:
    if header.get("format") != FORMAT:
        raise ModelError(f"{path} is a safetensors file but not a pucache model; pass what train-pu wrote")
    if header.get("version") != str(VERSION):
        raise ModelError(
            f"{path} is a model of format version {header.get('version')}; this pucache {__version__} reads "
            f"version {VERSION}: upgrade pucache, or train again"
        )
