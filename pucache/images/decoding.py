"""Decoding of encoded image bytes into RGB pixels with Pillow."""

from __future__ import annotations

import io
import logging
import os
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
from PIL import ExifTags, Image, JpegImagePlugin, TiffImagePlugin

from ..errors import ImageError, one_line
from ..storage.atomic import LFS_POINTER, NOT_FETCHED
from ..storage.file_kinds import BINARY, PICTURES, TEXT, kind_of_stream
from ..storage.limits import IMAGE_PIXELS as MAX_PIXELS
from ..storage.limits import JPEG_BYTES
from .white_level import (
    WHITE,
    colour_values,
    grey_values,
    high_byte_peak,
    is_wide,
    peak,
    raw_mode_of,
    take_bytes,
    to_bytes,
)

# Formats of photographs only: security holes are found mainly in Pillow's rarer decoders (PSD, FITS, DDS, ...)
FORMATS = ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "PPM", "AVIF"]
_HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1")
# Name and version of the way from bytes to pixels (this module and `preprocessing`), a part of every encoder's identity
DECODER = "pillow-2"
PAGES = "the first of its pages"
BANDS = "without its fourth band, which is tagged as opacity and is none"
REDUCED = "at 1/"  # begins what is told of an image that was too large to be decoded whole
_JPEG, _JPEG_START, _END_OF_JPEG = ("JPEG", "MPO"), b"\xff\xd8", b"\xff\xd9"
_TRUNCATED = ("image file is truncated", "broken PNG file", "Truncated File Read", "unrecognized data stream")

# Pillow warns of sizes, which `decode` checks itself, and of odd metadata. Filters are not thread-safe: set them once.
warnings.filterwarnings("ignore", module=r"PIL\.")
logging.getLogger("PIL").addHandler(logging.NullHandler())  # else Python prints its errors


_Result = TypeVar("_Result")
_DECODER = re.compile(re.escape(DECODER) + r"(?:;white-level=(\d{1,5}))?(;accept-truncated)?(;large-images)?")


@dataclass(frozen=True)
class Decoding:
    """Choices on the way from bytes to pixels; with `DECODER` a part of an encoder's identity.

    Attributes
    ----------
    white_level : int
        Value of 16-bit images that becomes white, 1 to 65535; larger values become white too. Images of 8 bits, and
        PGM and PPM files that state their greatest value, are not affected.
    accept_truncated : bool
        Take what is there of a file that is cut off, in place of refusing it.
    large_images : bool
        Take JPEG files of more than `MAX_PIXELS`, at 1/2, 1/4 or 1/8 of their size.

    Raises
    ------
    ValueError
        The white level is not an integer from 1 to 65535.
    """

    white_level: int = WHITE
    accept_truncated: bool = False
    large_images: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.white_level, bool) or not isinstance(self.white_level, int | np.integer):
            raise ValueError(f"white_level must be an integer from 1 to {WHITE}, got {self.white_level!r}")
        if not 1 <= self.white_level <= WHITE:
            raise ValueError(f"white_level must lie between 1 and {WHITE}, got {self.white_level}")

    @property
    def decoder(self) -> str:
        """Name of the recipe from bytes to pixels in `EncoderSpec.decoder`."""
        level = f";white-level={self.white_level}" if self.white_level != WHITE else ""
        return DECODER + level + ";accept-truncated" * self.accept_truncated + ";large-images" * self.large_images

    @classmethod
    def of(cls, decoder: str) -> Decoding:
        """The choices that the `decoder` of an encoder names; the usual ones for a decoder of another version."""
        found = _DECODER.fullmatch(decoder)
        if found is None or not 1 <= int(found[1] or WHITE) <= WHITE:
            return cls()
        return cls(int(found[1] or WHITE), bool(found[2]), bool(found[3]))


USUAL = Decoding()


class Decoded(NamedTuple):
    """An upright 8-bit RGB image, and what is to be known of it."""

    image: Image.Image
    peak: int | None = None  # largest value of an image of 16 bits, see `white_level.peak`
    partial: str = ""  # what of it was not read


def decode(data: bytes, sufficient_side: int | None = None, decoding: Decoding = USUAL) -> Image.Image:
    """Decode encoded bytes into an upright 8-bit RGB image.

    Only the first frame is decoded. The EXIF orientation is applied; transparency is composited over white;
    16-bit grey is scaled linearly from 0 to the white level (65535) to 0-255; CMYK, palette and grey are converted to
    RGB. Of 16-bit colours the high byte is taken, or with another white level than 65535 they are scaled too.

    A JPEG file is decoded at 1/2, 1/4 or 1/8 of its size, in a fraction of the time, where its shorter side keeps at
    least ``sufficient_side`` pixels. Raises `ImageError` for a file that is empty, truncated, not an image, has more
    than `MAX_PIXELS` (known from the header, before pixels are allocated), or has floating-point pixels or 32-bit ones
    outside 0 to 65535, whose white level is not defined.
    """
    return decode_and_note(data, sufficient_side, decoding).image


def decode_and_note(data: bytes, sufficient_side: int | None = None, decoding: Decoding = USUAL) -> Decoded:
    """Decode as `decode` does, and say what is to be known of the image."""
    return _read_image(io.BytesIO(data), lambda: _decode(data, sufficient_side, decoding))


def upright_size(stream: BinaryIO, decoding: Decoding = USUAL) -> tuple[int, int]:
    """Width and height after the EXIF orientation, by the header alone; raises `ImageError` as `decode` does."""

    def size() -> tuple[int, int]:
        image = _open(stream, decoding)
        # Pillow may have turned the size of a TIFF already
        width, height = (image.tag_v2[at] for at in _SIDES) if image.format == "TIFF" else image.size
        if width == height:
            return width, height
        # Pillow decodes a PNG for EXIF data that may follow its pixels
        described = Image.Image.getexif if image.format == "PNG" and not _has_late_exif(stream) else type(image).getexif
        return (height, width) if _orientation(image, described) in _TURNED else (width, height)

    return _read_image(stream, size)


def _read_image(stream: BinaryIO, read: Callable[[], _Result]) -> _Result:
    """What `read` returns, or an `ImageError` in place of any other; `stream` is the file."""
    head = stream.read(len(LFS_POINTER))
    if not head:
        raise ImageError("empty file (0 bytes)")
    try:
        return read()
    except ImageError:
        raise
    except Image.UnidentifiedImageError as error:
        if head == LFS_POINTER:
            raise ImageError(NOT_FETCHED) from error
        if head[4:8] == b"ftyp" and head[8:12] in _HEIF_BRANDS and "HEIF" not in FORMATS:
            _register_heif()
            stream.seek(0)
            return _read_image(stream, read)
        kind = kind_of_stream(stream)
        is_unknown = kind in (TEXT, BINARY) or kind[2:].removesuffix(" picture").upper() in FORMATS
        what = "" if is_unknown else f", but {kind}" + ": convert it to PNG or JPEG" * (kind in PICTURES)
        raise ImageError(_of_tiff(stream) or f"not an image in a known format{what}") from error
    except Exception as error:  # Pillow's plugins raise almost anything on damaged files
        raise ImageError(f"cannot be decoded: {one_line(error)}") from error


def _decode(data: bytes, sufficient_side: int | None, decoding: Decoding) -> Decoded:
    image = _open(io.BytesIO(data), decoding)
    partial, wide = _reduce(image, sufficient_side), is_wide(image)
    if lost := _load(image, decoding):
        if image.format in _JPEG:  # with an end after its last bytes the decoder gives the rows that it holds back
            image = _open(io.BytesIO(data + _END_OF_JPEG), decoding)
            _reduce(image, sufficient_side)
            _load(image, decoding)
        if all(least == most for least, most in np.atleast_2d(image.getextrema())):
            raise ImageError(f"cannot be decoded: {lost}, before its first pixels")
        partial = f"cut off, {lost}"
    if getattr(image, "is_animated", False) and _has_pages(_open(io.BytesIO(data), decoding)):
        partial = partial or PAGES
    if image.mode.startswith("I"):
        values = grey_values(_upright(image))
        grey = Image.fromarray(to_bytes(values, decoding.white_level if wide else WHITE), "L")
        return Decoded(grey.convert("RGB"), peak(values) if wide else None, partial)

    def load_bytes(raw_mode: str) -> np.ndarray:
        again = _open(io.BytesIO(data), decoding)
        take_bytes(again, raw_mode)
        _load(again, decoding)
        return np.asarray(again)

    shown = image
    if image.format == "TIFF" and image.mode in ("LA", "RGBA") and not _is_opacity(np.asarray(image.getchannel("A"))):
        shown = _without_opacity(image, raw_mode_of(_open(io.BytesIO(data), decoding)), load_bytes)
        partial = partial or BANDS
    if not wide:
        return Decoded(_to_rgb(_upright(shown, image)), None, partial)
    if decoding.white_level == WHITE and image.format != "PPM" and (high := high_byte_peak(np.asarray(image))):
        return Decoded(_to_rgb(_upright(shown, image)), high, partial)
    values, opacity = colour_values(_open(io.BytesIO(data), decoding), load_bytes)
    if decoding.white_level == WHITE:
        return Decoded(_to_rgb(_upright(shown, image)), peak(values), partial)
    colours = Image.fromarray(np.broadcast_to(to_bytes(values, decoding.white_level), (*values.shape[:2], 3)).copy())
    if opacity is not None and shown is image:
        colours.putalpha(Image.fromarray(opacity))
    return Decoded(_to_rgb(_upright(colours, image)), peak(values), partial)


def _without_opacity(image: Any, raw_mode: str, load_bytes: Callable[[str], np.ndarray]) -> Any:
    """A loaded image without its last band, and with its colours as they are stored, not divided by that band."""
    if raw_mode.startswith("RGBa"):
        return Image.fromarray(load_bytes(raw_mode.replace("a", "A"))[..., :3].copy())
    return Image.merge(image.mode[:-1], image.split()[:-1])


def _open(stream: BinaryIO, decoding: Decoding) -> Any:
    """Open an image, whose pixels are not decoded yet; raises `ImageError` where there are too many of them."""
    stream.seek(0)
    try:
        image: Any = Image.open(stream, formats=FORMATS)
    except Image.DecompressionBombError as error:
        stream.seek(0)
        if stream.read(len(_JPEG_START)) != _JPEG_START:
            raise ImageError(f"more than {MAX_PIXELS:,} pixels") from error
        stream.seek(0)
        image = JpegImagePlugin.JpegImageFile(stream)  # which does not look at their number
    width, height = image.size
    if width * height <= MAX_PIXELS:
        return image
    reason = f"{width} x {height} pixels; at most {MAX_PIXELS:,} are decoded"
    if image.format not in _JPEG:
        raise ImageError(reason)
    if not decoding.large_images:
        raise ImageError(f"{reason}; --large-images takes it at a part of its size")
    if 2 * image.layers * width * height > JPEG_BYTES and image.info.get("progressive"):
        raise ImageError(f"{reason}, and of a progressive JPEG {JPEG_BYTES // 2 // image.layers:,}")
    return image


def largest_scale(size: tuple[int, int]) -> int:
    """The n of 1/n, the largest part of its size at which an image is decoded: 1, 2, 4 or 8."""
    return next((scale for scale in (1, 2, 4) if size[0] * size[1] <= MAX_PIXELS * scale**2), 8)


def _reduce(image: Any, sufficient_side: int | None) -> str:
    """Have a JPEG decoded at a part of its size; says so where it would be too large otherwise."""
    if image.format not in _JPEG:
        return ""
    width, height = image.size
    least = largest_scale(image.size)
    side = min(width, height) // least
    side = side if sufficient_side is None else min(side, sufficient_side)
    image.draft(None, (side, side))
    return f"{REDUCED}{round(width / image.width)} of its {width} x {height} pixels" if least > 1 else ""


def _load(image: Any, decoding: Decoding) -> str:
    """Decode the pixels; where the file is cut off and that is accepted, those that are there, and say what is lost."""
    try:
        image.load()
        return ""
    except (OSError, SyntaxError) as error:
        if not str(error).startswith(_TRUNCATED):
            raise
        if not decoding.accept_truncated:
            raise ImageError(f"cannot be decoded: {one_line(error)}; --accept-truncated takes what is there") from error
        image.tile = []  # nothing is left to decode: pixels that are missing stay black
        return one_line(error)


def _register_heif() -> None:
    """Add HEIC to the formats; raises `ImageError` where its plug-in is not installed."""
    try:
        import pillow_heif
    except ImportError as error:
        raise ImageError("HEIC needs pillow-heif; pip install -e '.[heif]'") from error
    pillow_heif.register_heif_opener()
    FORMATS.append("HEIF")


_ORIENTATIONS = {  # EXIF orientation: the operation that makes the image upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


_TURNED = (5, 6, 7, 8)  # orientations by which width and height change places


def _orientation(image: Image.Image, exif_of: Callable[[Any], Any] = lambda image: image.getexif()) -> int:
    try:
        return int(exif_of(image).get(ExifTags.Base.Orientation, 1))
    except Exception:  # damaged EXIF has no orientation; the pixels are intact
        return 1


def _has_late_exif(stream: BinaryIO) -> bool:
    """Whether a PNG has EXIF data, or text that may hold them, after its pixels."""
    stream.seek(8)
    is_late = False
    while len(head := stream.read(8)) == 8 and head[4:] != b"IEND":
        is_late = is_late or head[4:] == b"IDAT"
        if is_late and head[4:] in (b"eXIf", b"tEXt", b"zTXt", b"iTXt"):
            return True
        stream.seek(int.from_bytes(head[:4], "big") + 4, os.SEEK_CUR)
    return False


def _upright(image: Image.Image, described: Image.Image | None = None) -> Image.Image:
    """Turn an image as its EXIF data, or those of another image, say."""
    operation = _ORIENTATIONS.get(_orientation(described or image))
    return image if operation is None else image.transpose(operation)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode == "F":
        raise ImageError("floating-point pixels have no defined white level; convert the image to 8 or 16 bits")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        composite = Image.alpha_composite(white, rgba)
        del white, rgba  # each may take most of a gigabyte
        return composite.convert("RGB")
    return image.convert("RGB")


# --- TIFF ----------------------------------------------------------------------------------------


_SIDES = (256, 257)  # tags of width and height
_BITS, _BANDS, _FORMATS, _SUBFILE = 258, 277, 339, 254
_NUMBERS = {1: "unsigned integers", 2: "signed integers", 3: "floating-point numbers"}
_REDUCED_OR_MASK = 1 | 4  # of `_SUBFILE`: overviews of a large image, and its mask
_STARTS = {b"II*\0": 8, b"MM\0*": 8, b"II+\0": 16, b"MM\0+": 16}  # and the length of the header


def _of_tiff(stream: BinaryIO) -> str:
    """What a TIFF file holds that cannot be decoded; "" for a file of another format, or with damaged tags."""
    stream.seek(0)
    head = stream.read(16)
    try:
        tags = TiffImagePlugin.ImageFileDirectory_v2(head[: _STARTS[head[:4]]])
        stream.seek(tags.next)
        tags.load(stream)
        bits, kind = tags.get(_BITS, (1,))[0], _NUMBERS.get(tags.get(_FORMATS, (1,))[0], "numbers")
    except Exception:  # damage raises almost anything
        return ""
    return (
        f"TIFF with {tags.get(_BANDS, 1)} bands of {bits}-bit {kind}; expected 1, 3 "
        "or 4 bands of 8- or 16-bit unsigned integers: convert it to RGB"
    )


def _is_opacity(band: np.ndarray) -> bool:
    """Whether a band (H, W) of bytes that is tagged as opacity can be it: most pixels are opaque or transparent.

    Many programs tag any fourth band so, such as infrared.
    """
    return bool(band.any() and 2 * np.isin(band, (0, 255)).sum() >= band.size)


def _has_pages(image: Any) -> bool:
    """Whether an opened image of several frames has a page beside its first; overviews and masks are none."""
    if image.format != "TIFF":
        return image.format not in _JPEG
    for page in range(1, image.n_frames):
        image.seek(page)
        if not image.tag_v2.get(_SUBFILE, 0) & _REDUCED_OR_MASK:
            return True
    return False
