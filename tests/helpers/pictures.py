"""Encoded images, and why one is refused; for the tests of sources and of decoding."""

import io
import re

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
