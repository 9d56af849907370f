"""Files of tensors and JSON in safetensors format, with a checksum over every byte; no pickles."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from ..errors import PUCacheError
from ..version import __version__
from .atomic import CACHE_FORMAT, format_of, open_regular, replacing
from .file_kinds import tensor_kind
from .outputs import check_output

_BLANK = b"0" * 64  # replaces the checksum while the file is hashed
_MAX_HEADER_BYTES = 1 << 24  # as Python objects it takes many times as much memory


@dataclass(frozen=True)
class FileFormat:
    """A file format, and the words of its errors."""

    format: str  # in the header, as `version`
    version: int
    noun: str  # what the file is called in errors, such as "model"
    error: type[PUCacheError]  # raised where a file cannot be read
    expected: str  # instead of a file of another format, such as "what train-pu wrote"
    remedy: str  # for a damaged file, such as "train the model again"

    @property
    def a_noun(self) -> str:
        """The noun with its article."""
        return f"{'an' if self.noun[0] in 'aeiou' else 'a'} {self.noun}"


def write(path: str | Path, form: FileFormat, tensors: dict[str, np.ndarray], state: dict[str, Any]) -> None:
    """Write tensors and state atomically; the state must be representable as JSON, but for numpy scalars.

    Raises `OutputError` where a file of another kind is there.
    """
    header = {
        "checksum": _BLANK.decode(),
        "format": form.format,
        "version": str(form.version),
        "pucache_version": __version__,
        "state": json.dumps(state, sort_keys=True, default=np.generic.item),
    }
    # a single metadata entry, because safetensors writes several in random order
    data = safetensors.numpy.save(tensors, {form.format: json.dumps(header, sort_keys=True)})
    offset = data.index(_BLANK)
    with (
        replacing(check_output(path, tensor_kind(form.format))) as temporary,
        temporary.open("wb") as stream,
    ):
        stream.write(data[:offset])
        stream.write(_checksum(data, offset))
        stream.write(memoryview(data)[offset + len(_BLANK) :])


def read(path: str | Path, form: FileFormat, *, max_bytes: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read tensors and state, and verify the checksum.

    Raises `form.error` where the file is missing, of another format or version, larger than `max_bytes`, or damaged.
    """
    path = Path(path)
    try:
        if format_of(path) == CACHE_FORMAT:
            raise form.error(f"{path} is a cache, not {form.a_noun}; pass {form.expected}")
        size = path.stat().st_size
        if size > max_bytes:
            raise form.error(f"{path} is larger than any {form.noun} ({max_bytes:,} bytes); pass {form.expected}")
        with open_regular(path) as stream:
            data = stream.read(size)  # Python allocates as many bytes as are requested, so not `max_bytes`
        length = int.from_bytes(data[:8], "little")
        if not 0 < length <= min(len(data) - 8, _MAX_HEADER_BYTES):
            raise ValueError("no header")
        header = json.loads((json.loads(data[8 : 8 + length]).get("__metadata__") or {}).get(form.format, "{}"))
        _check_format(path, form, header)
        stated = str(header["checksum"]).encode()
        offset = data.find(stated, 0, 8 + length) if len(stated) == len(_BLANK) else -1
        if offset < 0 or _checksum(data, offset) != stated:
            raise form.error(f"{path} is damaged: content and checksum disagree; {form.remedy}")
        tensors, state = safetensors.numpy.load(data), json.loads(header["state"])
    except FileNotFoundError as error:
        raise form.error(f"no such {form.noun}: {path}; pass {form.expected}") from error
    except OSError as error:
        raise form.error(f"cannot read {path}: {error.strerror or error}") from error
    except (safetensors.SafetensorError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise form.error(f"{path} cannot be read as safetensors ({str(error)[:120]}); {form.remedy}") from error
    if not isinstance(state, dict):
        raise form.error(f"{path} holds no state of pucache {__version__}; {form.remedy}")
    return tensors, state


def _checksum(data: bytes, offset: int) -> bytes:
    """SHA-256 of the file with blanks in place of the checksum at ``offset``; 64 hexadecimal digits."""
    state = hashlib.sha256(memoryview(data)[:offset])
    state.update(_BLANK)
    state.update(memoryview(data)[offset + len(_BLANK) :])
    return state.hexdigest().encode()


def _check_format(path: Path, form: FileFormat, header: dict[str, str]) -> None:
    if header.get("format") != form.format:
        raise form.error(f"{path} is a safetensors file but not a pucache {form.noun}; pass {form.expected}")
    if header.get("version") != str(form.version):
        raise form.error(
            f"{path} is {form.a_noun} of format version {header.get('version')}; this pucache {__version__} reads "
            f"version {form.version}: upgrade pucache, or {form.remedy}"
        )
