"""Images of more than 8 bits: their values, the level that becomes white, and how much of the range they use.

Pillow gives grey images of 16 bits as they are. Of colours of 16 bits it gives one byte of each value: the high one, or
with the raw mode of the other byte order the low one.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from ..errors import ImageError

WHITE = 65535  # the value of 16 bits that is white unless another level is given
_DARK = 1 << 14  # values below are dark without a level of their own: 14 bits give a quarter of the brightness
_SPARED = 1000  # one pixel in so many may be far brighter than the others, as a burnt-in mark or a dead pixel is
_LEAST_SHARE = 0.1  # of the 16-bit images; fewer may as well be photographs of the night
_SIXTEEN = re.compile(r";16[BLNRS]?$|;12$")
_LOW_BYTES = {"L": "B", "B": "L", "N": "B" if sys.byteorder == "little" else "L"}  # by the byte order of the high ones


def is_wide(image: Image.Image) -> bool:
    """Whether an opened image, not loaded yet, has values of more than 8 bits and does not say which of them is white.

    A PGM or PPM file whose greatest value is below 65,535 says it; Pillow scales its values.
    """
    if not image.tile:  # type: ignore[attr-defined]
        return False
    if image.tile[0].codec_name.startswith("ppm"):  # type: ignore[attr-defined]
        return bool(image.tile[0].args[-1] == WHITE)  # type: ignore[attr-defined]
    return image.mode.startswith("I") or _SIXTEEN.search(raw_mode_of(image)) is not None


def grey_values(image: Image.Image) -> np.ndarray:
    """Values of a grey image, (H, W); raises `ImageError` for values that no white level is defined for."""
    values = np.asarray(image)
    if image.mode == "I" and (values.min() < 0 or values.max() > WHITE):
        raise ImageError(
            f"pixels from {values.min():,} to {values.max():,} have no defined white level; convert the image to 8 or "
            "16 bits without sign"
        )
    return values


def colour_values(image: Image.Image, load_bytes: Callable[[str], np.ndarray]) -> tuple[np.ndarray, np.ndarray | None]:
    """Colours of 16 bits, (H, W, 3) or grey (H, W, 1), and the high bytes of the opacity, (H, W), or None.

    `image` is not loaded yet; `load_bytes` opens it anew and gives the bytes of a raw mode. Raises `ImageError` for
    colours that no white level is defined for.
    """
    raw_mode = raw_mode_of(image)
    if image.tile[0].codec_name == "ppm_plain":  # type: ignore[attr-defined]  # numbers as text, scaled to 8 bits
        return load_bytes(raw_mode).astype(np.uint16) * 257, None
    if raw_mode == "LA;16B":  # two values of two bytes are as long as four of one
        pair = load_bytes("RGBA")
        return (pair[..., :1].astype(np.uint16) << 8) | pair[..., 1:2], pair[..., 2]
    raw_mode = raw_mode.replace("a", "A")
    if raw_mode == "RGB":  # of a PPM
        raw_mode = "RGB;16B"
    if not re.fullmatch(r"RGB[AX]?;16[BLN]", raw_mode):
        raise ImageError(f"16-bit pixels of the kind {raw_mode} have no white level; convert the image to RGB")
    high = load_bytes(raw_mode)
    low = load_bytes(raw_mode[:-1] + _LOW_BYTES[raw_mode[-1]])
    values = (high[..., :3].astype(np.uint16) << 8) | low[..., :3]
    return values, high[..., 3] if high.shape[2] == 4 else None


def take_bytes(image: Any, raw_mode: str) -> None:
    """Have an opened image decoded by another raw mode, which takes another byte of each value."""
    tiles = []
    for tile in image.tile:
        if tile.codec_name == "ppm":
            tile = tile._replace(codec_name="raw", args=(raw_mode, 0, 1))
        else:
            tile = tile._replace(args=raw_mode if isinstance(tile.args, str) else (raw_mode, *tile.args[1:]))
        tiles.append(tile)
    image.tile = tiles


def to_bytes(values: np.ndarray, white_level: int) -> np.ndarray:
    """Scale values linearly from 0 to `white_level` to 0 to 255; what is above is white."""
    values = np.minimum(values, white_level).astype(np.uint32)
    return ((values * 255 + white_level // 2) // white_level).astype(np.uint8)


def raw_mode_of(image: Image.Image) -> str:
    """How Pillow reads the first piece of an opened image, not loaded yet."""
    arguments = image.tile[0].args  # type: ignore[attr-defined]
    return str(arguments if isinstance(arguments, str) else (arguments or [""])[0])


# --- how much of the range images use --------------------------------------------------------------


def peak(values: np.ndarray) -> int:
    """Largest value; but that of the darker pixels where these are dark, and not one in a thousand is brighter.

    One bright value of less than half of the pixels, with no other as bright, fills what was not measured.
    """
    largest = int(values.max())
    if largest < _DARK:
        return largest
    dark = values[values < _DARK]
    if 2 * len(dark) > values.size and values.min(where=values >= _DARK, initial=largest) == largest:
        return int(dark.max())
    kth = values.size - 1 - values.size // _SPARED
    rest = int(np.partition(values, kth, axis=None)[kth])
    return rest if rest < _DARK else largest


def high_byte_peak(pixels: np.ndarray) -> int:
    """The same of colours, (H, W, 3 or 4) uint8, of which the high bytes alone were decoded; 0 where all are 0."""
    high = peak(pixels[..., :3].astype(np.uint16) << 8)
    return high | 255 if high else 0


def range_note(peaks: Counter[int], white_level: int) -> str:
    """One line on images that come out dark, or too white, given the number of images by their `peak`; or ""."""
    images = peaks.total()
    if white_level < WHITE:
        bright = {value: count for value, count in peaks.items() if value > white_level}
        if sum(bright.values()) < _LEAST_SHARE * images or not bright:
            return ""
        return (
            f"{sum(bright.values()):,} of {images:,} 16-bit images have values above the white level {white_level:,}, "
            f"which are white now (largest value {max(bright):,})"
        )
    dark = {value: count for value, count in peaks.items() if 0 < value < _DARK}
    if sum(dark.values()) < _LEAST_SHARE * images or not dark:
        return ""
    largest, count = max(dark), sum(dark.values())
    part = "a sixteenth" if largest < _DARK // 4 else "a quarter"
    level = max(255, (1 << largest.bit_length()) - 1)
    apart = "" if 2 * count > images else "embed them into a cache of their own and "
    return (
        f"{count:,} of {images:,} 16-bit images use less than {part} of the range and are nearly black (largest value "
        f"{largest:,}): {apart}pass --white-level {level}"
    )
