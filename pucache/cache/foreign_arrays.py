"""Files and arrays that an import does not read: what they are, and the Python that makes them arrays of floats."""

from __future__ import annotations

import csv
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import CacheError
from ..storage.atomic import open_regular
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
from ..storage.table_columns import KEY_NAMES, LABEL_NAMES, find_column
from . import hdf5
from .layout import FORMAT

EMBEDDING_NAMES = ("embedding", "embeddings", "emb", "vector")  # tried in this order
_FEATURES = (*EMBEDDING_NAMES, "features", "feats", "feature", "X")  # datasets of HDF5 files, by pathology tools too
_RIGHT_ENDINGS = {ARRAY: ".npy", SAFETENSORS: ".safetensors", **dict.fromkeys(PARQUETS, ".parquet")}
_ROWS_OF = {  # Python that gives the rows of another kind of file, of this name
    FAISS: "faiss.read_index({0!r}).reconstruct_n()",
    "an Arrow file": "numpy.stack(pyarrow.feather.read_table({0!r})['embedding'].to_numpy())",
    PICKLE: "pickle.load(open({0!r}, 'rb'))",
    "an archive of arrays (.npz)": "numpy.load({0!r})[{1}]",
    "a file of torch.save": "torch.load({0!r}).numpy()",
}
_TEXT_BYTES = 1 << 16  # of the first lines of a text


def require_kind(path: Path, *expected: str) -> None:
    """Raise `CacheError` where a file is of a known kind that is none of those `expected`."""
    kind = kind_of(path)
    if kind in (*expected, BINARY):  # what a reader says of the latter
        return
    if kind in _RIGHT_ENDINGS:
        raise CacheError(f"{path} is {kind}; rename it so that it ends in {_RIGHT_ENDINGS[kind]}")
    if kind in PICTURES:
        raise CacheError(f"{path} is {kind}, where {expected[0]} is expected; pictures are for pucache embed")
    rows, member = "", ""
    if kind == CACHE:
        kind, rows = "an HDF5 file", _of_hdf5(path)
    elif kind in (TABLE, TEXT):
        rows = _of_text(path)
    elif kind == ZIP:
        kind, member = _inside(path)
    rows = rows or _ROWS_OF.get(kind, "").format(path.name, member)
    remedy = f"make one: numpy.save('embeddings.npy', {rows})" if rows else "write one with numpy.save"
    remedy += ", where you trust its source" if kind == PICKLE else ""
    remedy += ", with the NAME of its dataset of rows" if "[NAME]" in rows else ""
    raise CacheError(f"{path} is {kind}, where {expected[0]} is expected; {remedy}")


def as_floats(dtype: Any, shape: tuple[int, ...], given: str) -> str:
    """How an array of another type becomes one of floats, as a remedy; "" for a shape that has no rows.

    `given` is Python that gives it.
    """
    if len(shape) != 2 or 0 in shape:
        return ""
    if dtype.kind == "V" and dtype.itemsize == 2:  # as numpy.save writes bfloat16
        rows = f"({given}.view('u2').astype('u4') << 16).view('f4')"
        return f"; of bfloat16 make it one: numpy.save('embeddings.npy', {rows})"
    if dtype.kind not in "biu":
        return ""
    bits = f", or of bits that are packed numpy.unpackbits({given}, 1).astype('f4')" if dtype == "u1" else ""
    return f"; make it one: numpy.save('embeddings.npy', {given}.astype('f4')){bits}"


def _of_hdf5(path: Path) -> str:
    """Python for the dataset of embeddings, which goes by a usual name; raises `CacheError` for a cache."""
    for name in _FEATURES:
        with suppress(*hdf5.DAMAGE), open_regular(path) as stream:
            attributes, extents = hdf5.read(stream, ("format",), (name,))
            shape = extents[name].shape
            if attributes["format"] == FORMAT:
                break
            if len(shape) == 2 or (len(shape) == 3 and shape[0] == 1):
                return f"h5py.File({path.name!r})[{name!r}]{'[:]' if len(shape) == 2 else '[0]'}.astype('f4')"
    else:
        return f"h5py.File({path.name!r})[NAME][:].astype('f4')"
    raise CacheError(f"{path} is a cache already; name it where a command takes one, or pucache export writes its rows")


def _of_text(path: Path) -> str:
    """Python that reads the longest run of numbers in a text's lines, without a line of names; "" for none.

    A column of keys or labels by its name, or of whole numbers at an end of decimals, is no part of it.
    """
    with open_regular(path) as stream:
        lines = stream.read(_TEXT_BYTES).decode("utf-8-sig", errors="replace").splitlines()[:2]
    mark = next((mark for mark in "\t;," if any(mark in line for line in lines)), None)
    rows = [next(csv.reader([line], delimiter=mark), []) if mark else line.split() for line in lines]
    *before, cells = rows or [[]]
    is_number = list(map(_is_number, cells))
    names = next((row for row in before if is_number != list(map(_is_number, row))), [])
    for number, name in enumerate(names[: len(cells)]):
        is_number[number] &= find_column([name], (*KEY_NAMES, *LABEL_NAMES), path.name) is None
    runs = "".join(" x"[yes] for yes in is_number)
    first = runs.find(max(runs.split(), key=len, default="x"))
    last = (runs + " ").find(" ", first)
    if first < 0:
        return ""
    if last - first > 2 and all("." in cell for cell in cells[first + 1 : last - 1]):
        first, last = first + cells[first].strip().isdecimal(), last - cells[last - 1].strip().isdecimal()
    options = f", delimiter={mark!r}" if mark else ""
    options += ", skiprows=1" if names else ""
    options += f", usecols=range({first}, {last})" if last - first < len(cells) else ""
    return f"numpy.loadtxt({path.name!r}{options})"


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _inside(path: Path) -> tuple[str, str]:
    """What a ZIP archive holds, and Python for the name of its embeddings, a usual one or the only one."""
    with suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        members = archive.namelist()
        if any(member.endswith("/data.pkl") for member in members):
            return "a file of torch.save", ""
        if arrays := [member.removesuffix(".npy") for member in members if member.endswith(".npy")]:
            usual = [name for name in _FEATURES if name in arrays] or arrays
            return "an archive of arrays (.npz)", "NAME" if usual is arrays and len(arrays) > 1 else repr(usual[0])
    return ZIP, ""
