"""File of an approximate index.

The file holds faiss's own bytes and a trailer: JSON (`Trailer`), its length (8 bytes, little-endian), the sha256
of all bytes before, and `_MAGIC`. faiss reads the beginning and ignores the rest. Nothing is read before the hash
has been verified.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from ..cache.embedding_cache import EmbeddingCache
from ..errors import CacheError
from ..storage.atomic import check_writable, replacing
from .backends import require_faiss
from .paths import beside
from .whitening import Whitening

_MAGIC = b"PUINDEX1"
_LENGTH_BYTES = 8
_END_BYTES = _LENGTH_BYTES + 32 + len(_MAGIC)  # length, sha256, magic
_HASH_BLOCK = 1 << 24


@dataclass(frozen=True)
class Trailer:
    """Description of an index; the fields are the keys of its JSON.

    Attributes
    ----------
    kind : str
    checksums : list of str
        Of the cache files, in their order.
    n, d : int
    storage : str
        ``float16``, ``8 bit`` or ``64-byte codes``.
    effort : int
        Cells visited (ivf, ivfpq), or candidates kept while the graph is followed (hnsw).
    recall : float
        Share of the true nearest neighbours found, mean over the sample.
    sample : int
        Rows that the recall was measured on.
    space : str
        `Whitening.to_text` of the indexed rows.
    faiss : str
        Version that wrote it.
    candidates : int
        Rows that an ivfpq index finds for each neighbour that is wanted; else 1.
    """

    kind: str
    checksums: list[str]
    n: int
    d: int
    storage: str
    effort: int
    recall: float
    sample: int
    space: str
    faiss: str = field(default_factory=lambda: str(require_faiss().__version__))
    candidates: int = 1


def index_path(cache: EmbeddingCache, kind: str) -> Path:
    """Path of a cache's index: beside its first file."""
    return beside(cache, kind)


def read_index(path: Path) -> tuple[Any, Trailer] | None:
    """Read a faiss index and its trailer; None where there is no file.

    Raises
    ------
    CacheError
        The file is damaged, of another version, or cannot be read.
    """
    try:
        with path.open("rb") as stream:
            trailer = _read_trailer(stream, path)
            return _read_faiss(stream), trailer
    except FileNotFoundError:
        return None
    except (OSError, RuntimeError, ValueError) as error:
        raise CacheError(f"cannot read {path}: {str(error).splitlines()[0][:200]}") from error


def write_index(index: Any, trailer: Trailer, path: Path) -> None:
    """Write a faiss index and its trailer, whole or not at all.

    Raises
    ------
    OutputError
        The file cannot be written.
    """
    with replacing(check_writable(path)) as temporary:
        try:
            require_faiss().write_index(index, str(temporary))
        except RuntimeError as error:  # faiss does not give the reason
            raise OSError(f"faiss could not write it ({str(error).splitlines()[-1][:120]})") from error
        with temporary.open("rb+") as stream:
            text = json.dumps(asdict(trailer)).encode()
            size = stream.seek(0, os.SEEK_END) + stream.write(text + len(text).to_bytes(_LENGTH_BYTES, "little"))
            digest = _sha256(stream, size)
            stream.seek(size)
            stream.write(digest + _MAGIC)


def _read_trailer(stream: BinaryIO, path: Path) -> Trailer:
    """Read the trailer of an index file whose hash is right."""
    json_end = os.fstat(stream.fileno()).st_size - _END_BYTES
    stream.seek(max(json_end, 0))
    end = stream.read(_END_BYTES)
    length = int.from_bytes(end[:_LENGTH_BYTES], "little")
    if end[-len(_MAGIC) :] != _MAGIC or not 0 < length <= json_end:
        raise CacheError(f"{path} is no index of pucache, or is truncated")
    if _sha256(stream, json_end + _LENGTH_BYTES) != end[_LENGTH_BYTES : -len(_MAGIC)]:
        raise CacheError(f"{path} is damaged: its bytes are not as they were written")
    stream.seek(json_end - length)
    try:
        trailer = Trailer(**json.loads(stream.read(length)))
        Whitening.from_text(trailer.space, trailer.d)
    except (TypeError, ValueError) as error:
        raise CacheError(f"{path} is an index of another version of pucache") from error
    return trailer


def _read_faiss(stream: BinaryIO) -> Any:
    """Read the faiss index from the open file: another file may have taken its name since it was hashed."""
    faiss = require_faiss()
    descriptor = f"/proc/self/fd/{stream.fileno()}"
    if os.path.exists(descriptor):
        return faiss.read_index(descriptor)
    stream.seek(0)
    return faiss.read_index(faiss.PyCallbackIOReader(stream.read))


def _sha256(stream: BinaryIO, size: int) -> bytes:
    """Hash the first `size` bytes."""
    digest, left = hashlib.sha256(), size
    stream.seek(0)
    while left and (block := stream.read(min(left, _HASH_BLOCK))):
        digest.update(block)
        left -= len(block)
    return digest.digest()
