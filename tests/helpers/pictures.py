"""Encoded images, damage to them, and why one is refused; for the tests of sources and of decoding."""

import io
import re

from hypothesis import strategies as st

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


@st.composite
def mutations(draw, whole):
    """Valid bytes with some overwritten, some put in, and the end cut off."""
    data = bytearray(whole)
    for position, patch in draw(st.lists(st.tuples(st.integers(0, len(whole) - 1), st.binary(min_size=1, max_size=4)))):
        data[position : position + len(patch)] = patch
    if draw(st.booleans()):
        position = draw(st.integers(0, len(data)))
        data[position:position] = draw(st.binary(max_size=8))
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)
