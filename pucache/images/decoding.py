"""Decoding of encoded image bytes into RGB pixels with Pillow."""

from __future__ import annotations

import io
import warnings

import numpy as np
from PIL import ExifTags, Image

from ..errors import ImageError, one_line

# Formats of photographs only: security holes are found mainly in Pillow's rarer decoders (PSD, FITS, DDS, ...)
FORMATS = ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "PPM", "AVIF"]
_HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1")
MAX_PIXELS = 178_956_970  # Pillow's own error limit: half a GiB of RGB
# Name and version of the way from bytes to pixels (this module and `preprocessing`), a part of every encoder's identity
DECODER = "pillow-2"

# Pillow warns of sizes, which `decode` checks itself, and of odd metadata. Filters are not thread-safe: set them once.
warnings.filterwarnings("ignore", module=r"PIL\.")


def decode(data: bytes, sufficient_side: int | None = None) -> Image.Image:
    """Decode encoded bytes into an upright 8-bit RGB image.

    Only the first frame is decoded. The EXIF orientation is applied; transparency is composited over white;
    16-bit grey is scaled linearly from 0-65535 to 0-255; CMYK, palette and grey are converted to RGB.

    A JPEG file is decoded at 1/2, 1/4 or 1/8 of its size, in a fraction of the time, where its shorter side keeps at
    least ``sufficient_side`` pixels. Raises `ImageError` for a file that is empty, truncated, not an image, has more
    than `MAX_PIXELS` (known from the header, before pixels are allocated), or has 32-bit pixels, whose white level is
    not defined.
    """
    if not data:
        raise ImageError("empty file (0 bytes)")
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise ImageError(f"{width} x {height} pixels; at most {MAX_PIXELS:,} are decoded")
            if sufficient_side is not None and image.format in ("JPEG", "MPO"):
                image.draft(None, (sufficient_side, sufficient_side))
            image.load()
            return _to_rgb(_upright(image))
    except ImageError:
        raise
    except Image.DecompressionBombError as error:
        raise ImageError(f"more than {MAX_PIXELS:,} pixels") from error
    except Image.UnidentifiedImageError as error:
        if data[4:8] == b"ftyp" and data[8:12] in _HEIF_BRANDS and "HEIF" not in FORMATS:
            _register_heif()
            return decode(data, sufficient_side)
        raise ImageError("not an image in a known format") from error
    except Exception as error:  # Pillow's plugins raise almost anything on damaged files
        raise ImageError(f"cannot be decoded: {one_line(error)}") from error


def _register_heif() -> None:
    """Add HEIC to the formats; raises `ImageError` where its plug-in is not installed."""
    try:
        import pillow_heif
    except ImportError as error:
        raise ImageError("HEIC needs pillow-heif; pip install 'pucache[heif]'") from error
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


def _upright(image: Image.Image) -> Image.Image:
    try:
        operation = _ORIENTATIONS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # damaged EXIF has no orientation; the pixels are intact
        return image
    return image if operation is None else image.transpose(operation)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode in ("I", "F"):
        pixels = np.asarray(image)
        if image.mode == "F" or pixels.min() < 0 or pixels.max() > 65535:
            raise ImageError("32-bit pixels have no defined white level; convert the image to 8 or 16 bits")
        return _from_16_bit(pixels)
    if image.mode.startswith("I;16"):
        return _from_16_bit(np.asarray(image))
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        composite = Image.alpha_composite(white, rgba)
        del white, rgba  # each may take most of a gigabyte
        return composite.convert("RGB")
    return image.convert("RGB")


def _from_16_bit(pixels: np.ndarray) -> Image.Image:
    grey = ((pixels.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
    return Image.fromarray(grey, "L").convert("RGB")
