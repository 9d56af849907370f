"""Files that are not what an import expects: what they are by their content, and how to make embeddings of them."""

from __future__ import annotations

import contextlib
import zipfile
from pathlib import Path

from ..errors import CacheError
from ..storage.file_kinds import (
    ARRAY,
    BINARY,
    CACHE,
    FAISS,
    PARQUETS,
    PICKLE,
    PICTURES,
    SAFETENSORS,
    TABLE,
    TEXT,
    ZIP,
    kind_of,
)

_ENDINGS = {ARRAY: ".npy", SAFETENSORS: ".safetensors", **dict.fromkeys(PARQUETS, ".parquet")}
_ROWS = {  # Python that gives the rows of a file of this name
    FAISS: "faiss.read_index({0!r}).reconstruct_n()",
    CACHE: "h5py.File({0!r})['embeddings'][:]",
    "an Arrow file": "numpy.stack(pyarrow.feather.read_table({0!r})['embedding'].to_numpy())",
    PICKLE: "pickle.load(open({0!r}, 'rb'))",
    TABLE: "numpy.loadtxt({0!r}, delimiter=',')",
    TEXT: "numpy.loadtxt({0!r})",
    "an archive of arrays (.npz)": "numpy.load({0!r})[{1!r}]",
    "a file of torch.save": "torch.load({0!r}).numpy()",
}


def require_kind(path: Path, *expected: str) -> None:
    """Raise `CacheError` where a file is of a known kind that is none of those `expected`."""
    kind = kind_of(path)
    if kind in (*expected, BINARY):  # what a reader says of the latter
        return
    if kind in _ENDINGS:
        raise CacheError(f"{path} is {kind}; rename it so that it ends in {_ENDINGS[kind]}")
    if kind in PICTURES:
        raise CacheError(f"{path} is {kind}, where {expected[0]} is expected; pictures are for pucache embed")
    kind, member = _inside(path) if kind == ZIP else (kind, "")
    name = "an HDF5 file" if kind == CACHE else kind
    remedy = "write one with numpy.save"
    if rows := _ROWS.get(kind):
        remedy = f"make one: numpy.save('embeddings.npy', {rows.format(path.name, member)})"
        remedy += ", where you trust its source" if kind == PICKLE else ""
    raise CacheError(f"{path} is {name}, where {expected[0]} is expected; {remedy}")


def _inside(path: Path) -> tuple[str, str]:
    """What a ZIP archive holds, and the name of its first array."""
    with contextlib.suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        members = archive.namelist()
        if any(member.endswith("/data.pkl") for member in members):
            return "a file of torch.save", ""
        if arrays := [member.removesuffix(".npy") for member in members if member.endswith(".npy")]:
            return "an archive of arrays (.npz)", arrays[0]
    return ZIP, ""
