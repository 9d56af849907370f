"""Tags of TIFF files, and what they say falsely: fourth bands that are no opacity, pages that are overviews."""

from __future__ import annotations

from typing import Any, BinaryIO

import numpy as np
from PIL import TiffImagePlugin

_BITS, _BANDS, _FORMATS, _SUBFILE = 258, 277, 339, 254
_NUMBERS = {1: "unsigned integers", 2: "signed integers", 3: "floating-point numbers"}
_REDUCED_OR_MASK = 1 | 4  # of `_SUBFILE`: overviews of a large image, and its mask
_STARTS = {b"II*\0": 8, b"MM\0*": 8, b"II+\0": 16, b"MM\0+": 16}  # and the length of the header


def describe(stream: BinaryIO) -> str:
    """What a TIFF file holds that cannot be decoded; "" for a file of another format."""
    stream.seek(0)
    head = stream.read(16)
    if head[:4] not in _STARTS:
        return ""
    tags = TiffImagePlugin.ImageFileDirectory_v2(head[: _STARTS[head[:4]]])
    stream.seek(tags.next)
    tags.load(stream)
    bits, formats = tags.get(_BITS, (1,)), tags.get(_FORMATS, (1,))
    return (
        f"TIFF with {tags.get(_BANDS, 1)} bands of {bits[0]}-bit {_NUMBERS.get(formats[0], 'numbers')}; expected 1, 3 "
        "or 4 bands of 8- or 16-bit unsigned integers: convert it to RGB"
    )


def is_opacity(band: np.ndarray) -> bool:
    """Whether a band (H, W) of bytes that is tagged as opacity can be it: most pixels are opaque or transparent.

    Many programs tag any fourth band so, such as infrared.
    """
    return bool(band.any() and 2 * np.isin(band, (0, 255)).sum() >= band.size)


def has_pages(image: Any) -> bool:
    """Whether an opened image has another page or frame than its first; overviews and masks are none."""
    if image.format in ("JPEG", "MPO") or not getattr(image, "is_animated", False):
        return False
    if image.format != "TIFF":
        return True
    for page in range(1, image.n_frames):
        image.seek(page)
        if not image.tag_v2.get(_SUBFILE, 0) & _REDUCED_OR_MASK:
            return True
    return False
