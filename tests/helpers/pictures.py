"""Encoded images, and why one is refused; for the tests of sources and of decoding."""

import io
import re
import struct
import zlib

from helpers.refusals import one_line
from pucache.errors import ImageError


def encode(image, form="PNG", **options):
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def refusal(action, *arguments):
    """The reason why an image is refused: one line, without anything that differs between two runs."""
    reason = one_line(ImageError, action, *arguments)
    assert not re.search("0x[0-9a-f]{5}|None", reason)
    return reason


def chunk(kind, data):
    """Bytes of one chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, *chunks, depth=8, colour=2):
    """A PNG with this header and these chunks."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + chunk(b"IEND", b"")
