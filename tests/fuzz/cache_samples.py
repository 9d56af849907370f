"""Small cache files, whole and sealed anew after damage, as somebody who means harm would hand them over."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import os
import random
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from helpers.tiny import tiny_encoder

from fuzz.mutators import mutate
from pucache.cache.keys import encode_keys
from pucache.cache.reader import CacheFile
from pucache.cache.writer import Rows, write_file

SPEC = tiny_encoder().spec
FAILURES = {"broken.png": "not an image in a known format", "gone/é.png": "cannot be read: Permission denied"}
KEYS = ["a.png", "b/é.png", "c\nd.png", "e.png", "f.png"]
MANY = [f"{row:05}.png" for row in range(600)]


def rows_of(keys: list[str], dtype: str = "float16", seed: int = 0) -> Rows:
    draw = np.random.default_rng(seed)
    X = draw.normal(size=(len(keys), SPEC.dim)).astype(dtype)
    digests = draw.integers(0, 256, (len(keys), 32)).astype(np.uint8)
    return Rows(encode_keys(sorted(keys)), X, digests, draw.integers(0, 1 << 40, (len(keys), 2)))


def written(
    names: list[str], /, dtype: str = "float16", *, failures: dict[str, str] | None = None, **changed: Any
) -> bytes:
    """Bytes of a cache of these rows; `changed` replaces columns, whatever they hold."""
    os.environ.setdefault("SOURCE_DATE_EPOCH", "1700000000")
    rows = dataclasses.replace(rows_of(names, dtype), **changed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cache.h5")
        shape = (len(rows.keys), rows.keys.itemsize, np.dtype(dtype))
        write_file(path, SPEC, "photos", [rows], shape=shape, failures=failures or {})
        return path.read_bytes()


@cache
def caches() -> dict[str, bytes]:
    """Name to bytes; every one of them is whole."""
    return {
        "float16.h5": written(KEYS, failures=FAILURES),
        "float32.h5": written(KEYS, "float32"),
        "one-row.h5": written(["a.png"]),
        "no-row.h5": written([], failures=FAILURES),
        "many.h5": written(MANY),
        "long-keys.h5": written(["é" * 500, "b"], failures={"x" * 300: "y" * 200}),
    }


@cache
def contents() -> list[list[Any]]:
    """What each whole cache says."""
    with tempfile.TemporaryDirectory() as folder:
        return [content(_placed(Path(folder, name), data)) for name, data in caches().items()]


def _placed(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def content(path: Path) -> list[Any]:
    """Everything that a cache file says, once every byte of it was checked."""
    file = CacheFile(path)
    file.verify()
    columns = [file.raw_keys, file.X, file.digests, file.size_mtime]
    said = [file.encoder, file.source, file.created, file.pucache_version, file.failures]
    return [(column.tobytes(), column.shape, column.dtype) for column in columns] + said


# --- sealed anew -------------------------------------------------------------------------------

SEALED = importlib.util.find_spec("pucache.cache.checksums") is not None  # the first version of the format has no seal


def body(data: bytes) -> bytes:
    """The HDF5 bytes of a cache file, without its seal."""
    if not SEALED:
        return data
    with tempfile.TemporaryFile() as stream:
        stream.write(data)
        stream.flush()
        return data[: _checksum_table().read(stream).size]


def columns(data: bytes) -> dict[str, tuple[int, int, int]]:
    """Name of each dataset that a whole cache file seals, to offset, size and block in bytes."""
    if not SEALED:
        return {}
    with tempfile.TemporaryFile() as stream:
        stream.write(data)
        stream.flush()
        read = _checksum_table().read(stream).columns
        return {name: (column.offset, column.size, column.block) for name, column in read.items()}


def reseal(hdf5: bytes, places: dict[str, tuple[int, int, int]]) -> bytes:
    """Seal HDF5 bytes as if they were whole; places that the bytes do not reach are cut."""
    if not SEALED:
        return hdf5
    from pucache.cache import checksums

    sealed = {}
    for name, (offset, size, block) in places.items():
        hasher = checksums.ColumnHasher(block)
        hasher.update(memoryview(hdf5[offset : offset + size]))
        sealed[name] = hasher.checksums(min(offset, len(hdf5)))
    with tempfile.TemporaryDirectory() as folder:
        path = _placed(Path(folder, "cache.h5"), hdf5)
        checksums.append_table(path, sealed)
        return path.read_bytes()


def _checksum_table() -> Any:
    from pucache.cache.checksums import ChecksumTable

    return ChecksumTable


def mutate_within(data: bytes, other: bytes, draw: random.Random) -> bytes:
    """Damage the HDF5 part alone and seal it anew, or write a seal that lies."""
    places = columns(data)
    if SEALED and draw.random() < 0.2:
        return _lying(data, draw)
    return reseal(mutate(body(data), body(other), draw), places)


def _lying(data: bytes, draw: random.Random) -> bytes:
    """The seal's own JSON damaged, with the right hash over it."""
    hdf5 = body(data)
    text = data[len(hdf5) : data.rindex(b"\n", 0, len(data) - 1)]
    text = mutate(text, text, draw)
    return hdf5 + text + b"\npucache-seal %012d %s\n" % (len(text), hashlib.sha256(text).hexdigest().encode())


# --- built by hand -----------------------------------------------------------------------------


def _replace(file: h5py.File, name: str, **options: Any) -> None:
    del file[name]
    file.create_dataset(name, **options)


def _chunked(file: h5py.File) -> None:
    _replace(file, "embeddings", data=np.zeros((5, SPEC.dim), "<f2"), chunks=(1, SPEC.dim), compression="gzip")


def _huge(file: h5py.File) -> None:
    for name, shape, dtype in (
        ("embeddings", (1 << 40, SPEC.dim), "<f2"),
        ("keys", (1 << 40,), "S8"),
        ("digests", (1 << 40, 32), "u1"),
    ):
        _replace(file, name, shape=shape, dtype=dtype)


def _filter_bomb(file: h5py.File) -> None:
    _replace(file, "keys", shape=(1 << 28,), dtype="S8", chunks=(1 << 20,), compression="gzip", fillvalue=b"a")


def _virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((5, SPEC.dim), "<f2")
    layout[:] = h5py.VirtualSource("other.h5", "embeddings", shape=(5, SPEC.dim))
    del file["embeddings"]
    file.create_virtual_dataset("embeddings", layout)


def _external(file: h5py.File) -> None:
    _replace(file, "keys", shape=(5,), dtype="S8", external=[("../../outside/secret.png", 0, 40)])


def _link(target: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file["keys"]
        file["keys"] = target

    return change


def _loop(file: h5py.File) -> None:
    del file["embeddings"]
    file["embeddings"], file["again"] = h5py.SoftLink("/again"), h5py.SoftLink("/embeddings")


def _itself(file: h5py.File) -> None:
    del file["failures"]
    file["failures"] = file["/"]


def _attribute(name: str, value: Any) -> Callable[[h5py.File], None]:
    return lambda file: file.attrs.__setitem__(name, value)


def _encoder(**fields: Any) -> Callable[[h5py.File], None]:
    text = json.dumps({**dataclasses.asdict(SPEC), **fields})
    return _attribute("encoder", np.bytes_(text))


_BY_HAND: dict[str, Callable[[h5py.File], None]] = {
    "chunked and compressed": _chunked,
    "a million million rows": _huge,
    "keys that unpack without end": _filter_bomb,
    "a virtual dataset": _virtual,
    "bytes of another file": _external,
    "a link to another file": _link(h5py.ExternalLink("../../outside/secret.png", "/keys")),
    "a link to a pipe": _link(h5py.ExternalLink("../../outside/pipe", "/keys")),
    "a link to nothing": _link(h5py.SoftLink("/nothing")),
    "links in a circle": _loop,
    "a group within itself": _itself,
    "a number for keys": lambda file: _replace(file, "keys", data=np.arange(5)),
    "keys of any width": lambda file: _replace(file, "keys", data=["a"] * 5, dtype=h5py.string_dtype()),
    "a group for keys": lambda file: (file.__delitem__("keys"), file.create_group("keys")),
    "a scalar for keys": lambda file: _replace(file, "keys", data=np.bytes_(b"a")),
    "doubles": lambda file: _replace(file, "embeddings", data=np.zeros((5, SPEC.dim))),
    "the other byte order": lambda file: _replace(file, "embeddings", data=np.zeros((5, SPEC.dim), ">f2")),
    "one axis too few": lambda file: _replace(file, "embeddings", data=np.zeros(5, "<f2")),
    "fields": lambda file: _replace(file, "digests", data=np.zeros((5, 32), [("a", "u1"), ("b", "u1")])),
    "references": lambda file: _replace(file, "size_mtime", shape=(5, 2), dtype=h5py.ref_dtype),
    "no failures": lambda file: file.__delitem__("failures"),
    "reasons that are not UTF-8": lambda file: _replace(file, "failures/reasons", data=np.array([b"a\xff", b"b"])),
    "encoder of any width": _attribute("encoder", SPEC.to_json()),
    "encoder as an array": _attribute("encoder", np.array([b"{}", b"{}"])),
    "encoder nested deeply": _attribute("encoder", np.bytes_(b"[" * 60_000)),
    "encoder with a long number": _attribute("encoder", np.bytes_(b"1" * 50_000)),
    "encoder that is not text": _attribute("encoder", np.bytes_(b"\xff\xfe{")),
    "encoder of no dimensions": _encoder(dim=0),
    "encoder of -1 dimensions": _encoder(dim=-1),
    "encoder of 2^80 dimensions": _encoder(dim=1 << 80),
    "encoder of true dimensions": _encoder(dim=True),
    "encoder with lists in lists": _encoder(mean=[[]], input_size=["a"]),
    "encoder with NaN": _encoder(crop_pct=float("nan")),
    "encoder with an escape": _encoder(name="\x1b[31mred\n"),
    "version as text": _attribute("version", np.bytes_(b"1")),
    "version of 2^64-1": _attribute("version", np.uint64((1 << 64) - 1)),
    "format as a number": _attribute("format", 1),
    "source with an escape": _attribute("source", np.bytes_(b"\x1b]0;title\x07\n\r\x9b")),
    "created with an escape": _attribute("created", np.bytes_(b"\x1b[2J")),
}


def _by_hand(change: Callable[[h5py.File], None]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = _placed(Path(folder, "cache.h5"), body(caches()["float16.h5"]))
        with h5py.File(path, "r+", libver="earliest") as file:
            change(file)
        places = {}
        with h5py.File(path, "r") as file:
            for name in ("embeddings", "keys", "digests", "size_mtime", "failures/keys", "failures/reasons"):
                found = file.get(name) if isinstance(file.get(name, getlink=True), h5py.HardLink | None) else None
                if isinstance(found, h5py.Dataset) and found.id.get_offset() is not None:
                    places[name] = (found.id.get_offset(), found.id.get_storage_size(), _block(found))
        return reseal(path.read_bytes(), places)


def _block(dataset: h5py.Dataset) -> int:
    """Bytes that a seal hashes together in a column."""
    if not SEALED or not dataset.shape or not dataset.size:
        return 1 << 20
    from pucache.cache import checksums

    rows = dataset.shape[0]
    return checksums.rows_per_hash(rows) * (dataset.id.get_storage_size() // rows)


@cache
def hostile() -> dict[str, bytes]:
    """Caches that no pucache wrote: odd structure, or odd rows in good structure, sealed as if whole."""
    five = encode_keys(sorted(KEYS))
    X = rows_of(KEYS).X.copy()
    X[1, 2] = np.nan
    return {
        **{name: _by_hand(change) for name, change in _BY_HAND.items()},
        "keys out of order": written(KEYS, keys=five[::-1]),
        "keys twice": written(KEYS, keys=five[[0, 0, 1, 2, 3]]),
        "keys that are not UTF-8": written(KEYS, keys=np.sort(np.array([b"a", b"b\xff\xfe", b"c\xc3", b"d", b"e"]))),
        "empty key": written(KEYS, keys=np.array([b"", b"b", b"c", b"d", b"e"])),
        "keys with escapes": written(
            ["\x1b[31ma.png", "b\x07\r.png", "=cmd()", "\x9bc", "d\u202e"], failures={"\x1b[2J.png": "\x1b[2Jno\nline"}
        ),
        "embeddings that are no numbers": written(KEYS, X=X),
        "failures that are rows": written(KEYS, failures={"a.png": "yes"}),
    }
