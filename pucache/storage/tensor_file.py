"""Tensors and JSON in one safetensors file, with a checksum over every byte; no pickle."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from ..errors import PUCacheError
from ..version import __version__
from .atomic import check_writable, replacing

_BLANK = b"0" * 64  # stands for the checksum where the file is hashed
_LONGEST_HEADER = 1 << 24  # bytes; as Python's objects it takes many times that


@dataclass(frozen=True)
class Kind:
    """A kind of file, and how its errors speak of it.

    Attributes
    ----------
    format, version : str, int
        What its header says.
    noun : str
        "model", say.
    error : type
        Raised where it cannot be read.
    maker : str
        What to pass instead of a foreign file: "what train-pu wrote".
    remedy : str
        What to do about a damaged one: "train the model again".
    """

    format: str
    version: int
    noun: str
    error: type[PUCacheError]
    maker: str
    remedy: str


def write(path: str | Path, kind: Kind, tensors: dict[str, np.ndarray], state: dict[str, Any]) -> None:
    """Write tensors and JSON-able state under a temporary name, then rename.

    Raises
    ------
    OutputError
        `path` cannot be written.
    """
    header = {
        "checksum": _BLANK.decode(),
        "format": kind.format,
        "version": str(kind.version),
        "pucache_version": __version__,
        "state": json.dumps(state, sort_keys=True, default=np.generic.item),
    }
    # one entry, because safetensors writes several in random order
    data = safetensors.numpy.save(tensors, {kind.format: json.dumps(header, sort_keys=True)})
    place = data.index(_BLANK)
    with replacing(check_writable(path)) as temporary, temporary.open("wb") as stream:
        stream.write(data[:place])
        stream.write(_checksum(data, place))
        stream.write(memoryview(data)[place + len(_BLANK) :])


def read(path: str | Path, kind: Kind, *, most: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read tensors and state, of a file of at most so many bytes.

    Raises
    ------
    PUCacheError
        `kind.error`: missing, of another kind or version, too large, or damaged.
    """
    path = Path(path)
    if not os.path.isfile(path):  # unlike that of a Path, it takes names of any length
        raise kind.error(f"no such {kind.noun}: {path}")
    try:
        data = _bounded(path, kind, most)
        length = _header_length(data)
        header = json.loads((json.loads(data[8 : 8 + length]).get("__metadata__") or {}).get(kind.format, "{}"))
        _check_format(path, kind, header)
        stated = str(header["checksum"]).encode()
        place = data.find(stated, 0, 8 + length) if len(stated) == len(_BLANK) else -1
        if place < 0 or _checksum(data, place) != stated:
            raise kind.error(f"{path} is damaged: content and checksum disagree; {kind.remedy}")
        tensors, state = safetensors.numpy.load(data), json.loads(header["state"])
    except OSError as error:
        raise kind.error(f"cannot read {path}: {error.strerror or error}") from error
    except (safetensors.SafetensorError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise kind.error(f"{path} cannot be read as safetensors ({str(error)[:120]}); {kind.remedy}") from error
    if not isinstance(state, dict):
        raise kind.error(f"{path} holds no state of pucache {__version__}; {kind.remedy}")
    return tensors, state


def format_of(path: str | Path) -> str:
    """The format by which a file of this kind begins, before any of it is checked; empty where it is another file."""
    if not os.path.isfile(path):
        return ""
    try:
        with open(path, "rb") as stream:
            found = re.match(rb'.{8}\{"__metadata__":\{"(pucache-[a-z]+)":', stream.read(64), re.DOTALL)
    except OSError:  # whoever reads all of it will say so
        return ""
    return found[1].decode() if found else ""


def _checksum(data: bytes, place: int) -> bytes:
    """Hash of everything, with blanks where the checksum stands; 64 hexadecimal digits."""
    state = hashlib.sha256(memoryview(data)[:place])
    state.update(_BLANK)
    state.update(memoryview(data)[place + len(_BLANK) :])
    return state.hexdigest().encode()


def _bounded(path: Path, kind: Kind, most: int) -> bytes:
    size = path.stat().st_size
    if size > most:
        raise kind.error(f"{path} is larger than any {kind.noun} ({most:,} bytes); pass {kind.maker}")
    with path.open("rb") as stream:
        return stream.read(size)  # Python takes the memory for as many bytes as it is asked for, there or not


def _header_length(data: bytes) -> int:
    length = int.from_bytes(data[:8], "little")
    if not 0 < length <= min(len(data) - 8, _LONGEST_HEADER):
        raise ValueError("no header")
    return length


def _check_format(path: Path, kind: Kind, header: dict[str, str]) -> None:
    if header.get("format") != kind.format:
        raise kind.error(f"{path} is a safetensors file but not a pucache {kind.noun}; pass {kind.maker}")
    if header.get("version") != str(kind.version):
        raise kind.error(
            f"{path} is a {kind.noun} of format version {header.get('version')}; this pucache {__version__} reads "
            f"version {kind.version}: upgrade pucache, or {kind.remedy}"
        )
