"""Damage, drawn by a seeded generator: the same generator and the same bytes give the same damage."""

from __future__ import annotations

import random
from collections.abc import Callable

_LONGEST = 1 << 20  # of a mutant: repeated doubling must not turn into a test of the disk
_NUMBERS = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, (1 << 63) - 1, 1 << 63]


def mutate(data: bytes, other: bytes, draw: random.Random) -> bytes:
    """Damage `data` in one to four ways; `other` is spliced in now and then."""
    for _ in range(_how_often(draw)):
        data = draw.choice(_BYTES)(data, other, draw)[:_LONGEST]
    return data


def mutate_text(data: bytes, other: bytes, draw: random.Random) -> bytes:
    """Damage text where its readers are weak: quotes, line ends, columns, characters; at times any byte."""
    for _ in range(_how_often(draw)):
        data = draw.choice(_TEXT)(data, other, draw)[:_LONGEST]
    return data


def _how_often(draw: random.Random) -> int:
    return draw.choice((1, 1, 1, 2, 3, 4))


def _place(data: bytes, draw: random.Random) -> int:
    """Half of all damage is near the front, where formats keep what matters."""
    return draw.randrange(min(len(data), 256) if draw.random() < 0.5 else len(data)) if data else 0


def _flip(data: bytes, other: bytes, draw: random.Random) -> bytes:
    damaged = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8)) if data else 0):
        damaged[_place(data, draw)] ^= 1 << draw.randrange(8)
    return bytes(damaged)


def _overwrite(data: bytes, other: bytes, draw: random.Random) -> bytes:
    at, width = _place(data, draw), draw.choice((1, 2, 4, 8))
    number = draw.choice([*_NUMBERS, len(data), len(data) - 1, len(data) + 1, 1 << draw.randrange(64)])
    patch = (number % (1 << 8 * width)).to_bytes(width, draw.choice(("little", "big")))
    return data[:at] + patch + data[at + width :]


def _fill(data: bytes, other: bytes, draw: random.Random) -> bytes:
    at, width = _place(data, draw), draw.randrange(1, 64)
    return data[:at] + bytes([draw.choice((0, 0xFF, 0x20, draw.randrange(256)))]) * width + data[at + width :]


def _digits(data: bytes, other: bytes, draw: random.Random) -> bytes:
    """Numbers that are written as text: sizes in tar headers, shapes, columns."""
    places = [at for at, byte in enumerate(data) if 0x30 <= byte <= 0x39]
    if not places:
        return data
    at = draw.choice(places)
    return data[:at] + draw.choice((b"9", b"0", b"7", b"-", b"99999999999", b"1e999", b"\x80")) + data[at + 1 :]


def _insert(data: bytes, other: bytes, draw: random.Random) -> bytes:
    at = _place(data, draw)
    return data[:at] + draw.randbytes(draw.choice((1, 2, 7, 64))) + data[at:]


def _delete(data: bytes, other: bytes, draw: random.Random) -> bytes:
    at = _place(data, draw)
    return data[:at] + data[at + draw.choice((1, 2, 8, 100, 512)) :]


def _truncate(data: bytes, other: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


def _duplicate(data: bytes, other: bytes, draw: random.Random) -> bytes:
    at, width = _place(data, draw), draw.choice((1, 16, 512, 4096))
    return data[:at] + data[at : at + width] * draw.choice((2, 3, 20)) + data[at + width :]


def _swap(data: bytes, other: bytes, draw: random.Random) -> bytes:
    width = draw.choice((1, 4, 64, 512))
    first, second = sorted((_place(data, draw), _place(data, draw)))
    if first + width > second:
        return data
    blocks = data[second : second + width], data[first + width : second], data[first : first + width]
    return data[:first] + b"".join(blocks) + data[second + width :]


def _splice(data: bytes, other: bytes, draw: random.Random) -> bytes:
    if draw.random() < 0.5:  # at the same place, so that what follows still fits
        at = _place(data, draw)
        return data[:at] + other[at:]
    at, width = _place(other, draw), draw.randrange(1, 1024)
    here = _place(data, draw)
    return data[:here] + other[at : at + width] + data[here:]


Mutator = Callable[[bytes, bytes, random.Random], bytes]
_BYTES: list[Mutator] = [
    _flip, _flip, _overwrite, _overwrite, _fill, _digits, _insert, _delete, _truncate, _duplicate, _swap, _splice
]  # fmt: skip

# --- text --------------------------------------------------------------------------------------

TOKENS = [
    '"', '""', "'", ",", ",,", "\t", ";", "\r", "\n", "\r\n", "\n\n", "\0", "\ufeff", "\u2028", "\x85", "\x0b", "\x0c",
    "\x1c", "\x1b[31m", "\x1b]0;x\x07", "\x7f", "\u202e", "é", "e\u0301", "🦊", "=cmd()", "-", "..", "../", "/", "//",
    "\\", "://", "*", "**", "**/", "?", "[", "]", "[!a]", "[z-a]", "nan", "inf", "1e400", "-1", "1.0", "0x10", "1_000",
    "١", "true", "key", "path", "label", " ", "#", "%00", "{}", "~", "$HOME", "x" * 300,
]  # fmt: skip


def _token(data: bytes, other: bytes, draw: random.Random) -> bytes:
    at = _place(data, draw)
    return data[:at] + draw.choice(TOKENS).encode() + data[at + draw.choice((0, 0, 1)) :]


def _line(data: bytes, other: bytes, draw: random.Random) -> bytes:
    """Drop, double, move or join whole lines."""
    lines = data.split(b"\n")
    at = draw.randrange(len(lines))
    taken = lines.pop(at)
    what = draw.randrange(4)
    if what == 1:
        lines[at:at] = [taken] * draw.choice((2, 3))
    elif what == 2:
        lines.insert(draw.randrange(len(lines) + 1), taken)
    elif what == 3 and lines:
        lines[at - 1] += taken
    return b"\n".join(lines)


def _column(data: bytes, other: bytes, draw: random.Random) -> bytes:
    """Drop or double one column everywhere, or in one line alone."""
    separator = draw.choice((b",", b"\t"))
    lines = data.split(b"\n")
    chosen = range(len(lines)) if draw.random() < 0.7 else [draw.randrange(len(lines))]
    column, copies = draw.randrange(4), draw.choice((0, 2))
    for at in chosen:
        cells = lines[at].split(separator)
        cells[column : column + 1] = cells[column : column + 1] * copies
        lines[at] = separator.join(cells)
    return b"\n".join(lines)


def _long(data: bytes, other: bytes, draw: random.Random) -> bytes:
    at = _place(data, draw)
    return (
        data[:at]
        + draw.choice((b"a", b'"', b",", b"/", b"\xc3\xa9")) * draw.choice((5000, 70_000, 140_000))
        + data[at:]
    )


_TEXT: list[Mutator] = [
    _token, _token, _token, _token, _line, _line, _column, _column, _long, _flip, _insert, _delete, _truncate, _splice
]  # fmt: skip
