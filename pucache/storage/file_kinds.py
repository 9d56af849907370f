"""What a file is: its kind, by its content, and by its ending where the content is plain text.

A kind is a phrase for messages. A few bytes of the file are read, and no library is needed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from ..version import __version__
from .atomic import CACHE_FORMAT, format_in, open_regular

MARK = f"pucache {__version__}"  # in the field `written_by` of JSON, and `Software` of PNG
TABLE, JSON, PAGE, PNG = "a table", "a JSON file", "an HTML page", "a PNG picture"
SCORES, EXPORT, PARQUET = "a Parquet table of scores", "a Parquet export of a cache", "a Parquet file"
ONNX, TEXT, BINARY = "an ONNX model", "a text file", "a file of another kind"
EMPTY, SAFETENSORS = "an empty file", "a safetensors file"
PARQUETS = (PARQUET, SCORES, EXPORT)
ARRAY, FAISS = "a NumPy array", "an index of faiss"
_TENSOR_HEADER_BYTES = 100_000_000  # the limit of safetensors; text of eight characters is more
_MAGIC = {
    b"\x89PNG": PNG,
    b"\xff\xd8\xff": "a JPEG picture",
    b"GIF8": "a GIF picture",
    b"RIFF": "a WebP picture",
    b"BM": "a BMP picture",
    b"II*\0": "a TIFF picture",
    b"MM\0*": "a TIFF picture",
    b"\0\0\0\x0cjP  ": "a JPEG 2000 picture",
    b"\0\0\0\x0cJXL ": "a JPEG XL picture",
    b"SQLite format 3\0": "an SQLite database",
    b"\x93NUMPY": ARRAY,
    b"PK\x03\x04": "a ZIP archive",
    b"IxF": FAISS,
    b"IwF": FAISS,
    b"IHN": FAISS,
    b"ARROW1": "an Arrow file",
    **{bytes([0x80, version]): "a pickle" for version in range(2, 6)},
    b"\x1f\x8b": "a gzip archive",
    b"BZh": "a bzip2 archive",
    b"\xfd7zXZ": "an xz archive",
    b"%PDF": "a PDF file",
}
DICOM = "a DICOM picture"
PICTURES = (DICOM, *(kind for kind in _MAGIC.values() if kind.endswith("picture")))
_ENDINGS = {
    **dict.fromkeys((".csv", ".tsv", ".tab"), TABLE),
    **dict.fromkeys((".json", ".jsonl"), JSON),
    **dict.fromkeys((".html", ".htm"), PAGE),
}
IMAGE_ENDINGS = tuple(".jpg .jpeg .jpe .jfif .png .webp .gif .tif .tiff .bmp .ppm .pgm .avif .heic .heif".split())
_TABLE_OF_OURS = re.compile(
    rb"(?:concept,)?rank,key,score|key,(?:margin,posterior,)?label|key,[^\n]*_posterior|prior,seed"
)
_XML_START = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:\?xml|svg)")
_PAGE_START = re.compile(rb"\s*<(?:!doctype\s+html|html)", re.IGNORECASE)
_JSON_OF_OURS = re.compile(rb'\s*\{\s*"written_by": "pucache')
_CONTROL = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f]")
_READ_BYTES = 1 << 12
_FOOTER_BYTES = 1 << 16
Read = Callable[[int, int], bytes]  # the bytes of a file from one position to another


def tensor_kind(file_format: str) -> str:
    """Kind of a file of tensors, or of a cache, with this format."""
    return f"a {file_format.replace('-', ' ')}"


CACHE = tensor_kind(CACHE_FORMAT)


def kind_of(path: str | os.PathLike[str]) -> str:
    """What a file of this machine is, by its first bytes; `BINARY` where it cannot be read."""
    try:
        with open_regular(path) as stream:
            return kind_of_stream(stream, os.fspath(path))
    except OSError:
        return BINARY


def kind_of_stream(stream: BinaryIO, name: str = "") -> str:
    """As `kind_of`, of an open file."""

    def read(start: int, end: int) -> bytes:
        stream.seek(start)
        return stream.read(end - start)

    return kind_of_content(name, stream.seek(0, os.SEEK_END), read)


def kind_of_content(name: str, size: int, read: Read) -> str:
    """What a file of a name, a size and some content is."""
    if not size:
        return EMPTY
    beginning = read(0, min(size, _READ_BYTES))
    if ours := format_in(beginning):
        return tensor_kind(ours)
    if beginning.startswith(b"PAR1"):
        return _kind_of_parquet(size, read)
    for magic, kind in _MAGIC.items():
        if beginning.startswith(magic):
            return kind
    if beginning[128:132] == b"DICM":
        return DICOM
    ending = os.path.splitext(name)[1].lower()
    if beginning[8:10] == b'{"' and int.from_bytes(beginning[:8], "little") <= _TENSOR_HEADER_BYTES:
        return SAFETENSORS
    if ending == ".onnx" and beginning[:1] == b"\x08":
        return ONNX
    return _kind_of_text(beginning, ending)


def _kind_of_text(beginning: bytes, ending: str) -> str:
    if _CONTROL.search(beginning) and not beginning.startswith((b"\xff\xfe", b"\xfe\xff")):
        return BINARY
    if _PAGE_START.match(beginning):
        return PAGE
    if _XML_START.match(beginning):
        return "an XML file, such as SVG"
    if _JSON_OF_OURS.match(beginning):
        return JSON
    if _TABLE_OF_OURS.match(beginning):
        return TABLE
    return _ENDINGS.get(ending, TEXT)


def _kind_of_parquet(size: int, read: Read) -> str:
    """Kind of a Parquet file by the names of its columns, which its footer begins with."""
    length = int.from_bytes(read(max(0, size - 8), size)[:4], "little")
    start = max(0, size - 8 - length)  # of a damaged file the length is any number
    footer = read(start, min(size, start + _FOOTER_BYTES))
    if all(name in footer for name in (b"\x09embedding", b"\x06digest", b"\x08mtime_ns")):
        return EXPORT
    narrow, wide = (b"\x06margin", b"\x09posterior"), (b"_posterior", b"_label")
    return SCORES if any(all(name in footer for name in names) for names in (narrow, wide)) else PARQUET


def is_of_pucache(path: Path) -> bool:
    """Whether a picture or a JSON file says that pucache wrote it."""
    try:
        with open_regular(path) as stream:
            beginning = stream.read(_READ_BYTES)
    except OSError:
        return False
    return b"tEXtSoftware\0pucache" in beginning or _JSON_OF_OURS.match(beginning) is not None
