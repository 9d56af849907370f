"""Rows of a CSV file of scores, formatted as arrays of bytes: the bytes that the csv module would write."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np

from ..cache.keys import decode_texts
from ..storage.number_text import WORDS, number_words
from ..storage.tables import table_writer

_BYTES_AT_ONCE = 1 << 20  # of rows before the unused bytes are removed: they stay in the processor's cache
_COMMA, _NEWLINE = np.uint64(ord(",")), np.uint64(ord("\n"))


def csv_rows(key: np.ndarray, *, margin: np.ndarray, posterior: np.ndarray, label: np.ndarray) -> Iterator[bytes]:
    r"""Format rows of a table of scores in UTF-8, about a MB at a time.

    Numbers have six significant digits (``%.6g``). Keys are quoted where they hold a comma, a quote or a line feed;
    where one holds a carriage return, every cell of its row is quoted. Rows end in ``\n``.

    Parameters
    ----------
    key : ndarray of bytes (dtype S), (n,)
        UTF-8.
    margin, posterior : ndarray of float32 or float64, (n,)
    label : ndarray of int8, (n,)
        0 or 1.

    Yields
    ------
    bytes
        Whole rows.

    Raises
    ------
    CacheError
        A key is not UTF-8.
    """
    step = max(1, _BYTES_AT_ONCE // (8 * _words_per_row(key)))
    for start in range(0, len(key), step):
        rows = slice(start, start + step)
        yield _format(key[rows], margin[rows], posterior[rows], label[rows])


def _words_per_row(key: np.ndarray) -> int:
    """Words of eight bytes for a key and two numbers, whose unused bytes hold the commas and the label too."""
    return -(-key.itemsize // 8) + 2 * WORDS


def _format(key: np.ndarray, margin: np.ndarray, posterior: np.ndarray, label: np.ndarray) -> bytes:
    stored = key.tobytes()
    if b"\r" in stored or stored.count(b"\0") != key.nbytes - int(np.strings.str_len(key).sum()):
        return _by_csv_module(key, margin, posterior, label)  # a carriage return, or NUL within a key
    if b"," in stored or b'"' in stored or b"\n" in stored:
        key = _quoted(key)
    words = np.zeros((len(key), _words_per_row(key)), "<u8")
    as_bytes = words.view(np.uint8)
    as_bytes[:, : key.itemsize] = _bytes_of(key)
    words[:, -2 * WORDS :] = number_words(np.stack([margin, posterior], 1).ravel()).reshape(-1, 2 * WORDS)
    words[:, -2 * WORDS] |= _COMMA
    words[:, -WORDS] |= _COMMA
    words[:, -1] |= _label_ends(label)
    text = as_bytes[as_bytes != 0].tobytes()
    if not text.isascii():
        decode_texts(key.tolist())  # raises where a key is not UTF-8
    return text


def _bytes_of(key: np.ndarray) -> np.ndarray:
    """Bytes of fixed-width keys, uint8 (n, width)."""
    return np.frombuffer(key.tobytes(), np.uint8).reshape(len(key), key.itemsize)


def _label_ends(label: np.ndarray) -> np.ndarray:
    """Comma, label and line feed in the last three bytes of a word, uint64 (n,)."""
    digits = label.astype(np.uint64) + np.uint64(ord("0"))
    return _COMMA << np.uint64(40) | digits << np.uint64(48) | _NEWLINE << np.uint64(56)


def _quoted(key: np.ndarray) -> np.ndarray:
    """Quote the keys that need it, as ``QUOTE_MINIMAL`` does; the array may become wider."""
    stored = _bytes_of(key)
    rows = np.flatnonzero(((stored == ord(",")) | (stored == ord('"')) | (stored == ord("\n"))).any(1))
    cells = np.array([b'"' + cell.replace(b'"', b'""') + b'"' for cell in key[rows].tolist()])
    key = key.astype(np.promote_types(key.dtype, cells.dtype))
    key[rows] = cells
    return key


def _by_csv_module(key: np.ndarray, margin: np.ndarray, posterior: np.ndarray, label: np.ndarray) -> bytes:
    stream = io.StringIO(newline="")
    write_row = table_writer(stream)
    columns = (decode_texts(key.tolist()), margin.tolist(), posterior.tolist(), label.tolist())
    for name, *numbers, positive in zip(*columns, strict=True):
        write_row([name, *(f"{number:.6g}" for number in numbers), positive])
    return stream.getvalue().encode()
