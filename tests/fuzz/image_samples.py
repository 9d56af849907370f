"""Small images of every kind that is decoded here, and images that are meant to do harm."""

from __future__ import annotations

import io
import random
import struct
import zlib
from functools import cache

import numpy as np
from PIL import Image, ImageCms, PngImagePlugin

from fuzz.mutators import mutate

WIDTH, HEIGHT = 23, 17


def picture(mode: str = "RGB", seed: int = 0, size: tuple[int, int] = (WIDTH, HEIGHT)) -> Image.Image:
    """A smooth picture, so that lossy formats keep it, with some noise."""
    y, x = np.mgrid[: size[1], : size[0]]
    noise = np.random.default_rng(seed).integers(0, 40, (size[1], size[0], 3))
    image = Image.fromarray((np.stack([x * 9, y * 12, (x + y) * 5], 2) % 200 + noise).astype(np.uint8))
    if mode == "I;16":
        return Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    return image.convert(mode)


def encode(image: Image.Image, form: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


@cache
def images() -> dict[str, bytes]:
    """Name with its ending, to bytes; every one of them decodes."""
    return {**_jpegs(), **_pngs(), **_tiffs(), **_others()}


def _jpegs() -> dict[str, bytes]:
    turned = Image.Exif()
    turned[0x0112], turned[0x010E] = 6, "a description"
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    large = picture(size=(200, 120))
    return {
        "grey.jpg": encode(picture("L"), "JPEG"),
        "rgb.jpg": encode(picture(), "JPEG"),
        "cmyk.jpg": encode(picture("CMYK"), "JPEG"),
        "progressive.jpg": encode(large, "JPEG", progressive=True, quality=70),
        "exif-icc.jpg": encode(picture(), "JPEG", exif=turned, icc_profile=profile, comment=b"a comment"),
        "restart.jpg": encode(large, "JPEG", restart_marker_rows=1, subsampling="4:2:0"),
        "mpo.jpg": encode(picture(), "MPO", save_all=True, append_images=[picture(seed=1)]),
    }


def _pngs() -> dict[str, bytes]:
    texts = PngImagePlugin.PngInfo()
    texts.add_text("plain", "a text")
    texts.add_itxt("packed", "é" * 50, zip=True)
    frames = [picture(seed=seed) for seed in (1, 2)]
    return {
        "1bit.png": encode(picture("1"), "PNG"),
        "grey.png": encode(picture("L"), "PNG"),
        "16bit.png": encode(picture("I;16"), "PNG"),
        "rgb.png": encode(picture(), "PNG", pnginfo=texts),
        "rgba.png": encode(picture("RGBA"), "PNG"),
        "palette.png": encode(picture("P"), "PNG"),
        "trns.png": encode(picture("P"), "PNG", transparency=bytes(range(0, 256, 2))),
        "trns-grey.png": encode(picture("L"), "PNG", transparency=3),
        "adam7.png": _adam7(),
        "apng.png": encode(picture(), "PNG", save_all=True, append_images=frames, duration=10),
    }


def _tiffs() -> dict[str, bytes]:
    kinds = {
        "raw": "RGB",
        "tiff_lzw": "RGB",
        "tiff_adobe_deflate": "RGB",
        "packbits": "L",
        "group4": "1",
        "jpeg": "RGB",
    }
    found = {f"{name}.tif": encode(picture(mode), "TIFF", compression=name) for name, mode in kinds.items()}
    pages = [picture(seed=1), picture("L", seed=2)]
    return {
        **found,
        "pages.tif": encode(picture(), "TIFF", save_all=True, append_images=pages),
        "16bit.tif": encode(picture("I;16"), "TIFF"),
        "cmyk.tif": encode(picture("CMYK"), "TIFF", tiffinfo={270: "a text", 282: 72}),
    }


def _others() -> dict[str, bytes]:
    frames = [picture("P", seed=seed) for seed in (1, 2)]
    return {
        "still.gif": encode(picture("P"), "GIF"),
        "animated.gif": encode(picture("P"), "GIF", save_all=True, append_images=frames, transparency=0, loop=0),
        "lossy.webp": encode(picture(), "WEBP", quality=60),
        "lossless.webp": encode(picture("RGBA"), "WEBP", lossless=True),
        "animated.webp": encode(picture(), "WEBP", save_all=True, append_images=[picture(seed=1)]),
        "rgb.bmp": encode(picture(), "BMP"),
        "palette.bmp": encode(picture("P"), "BMP"),
        "rgb.ppm": encode(picture(), "PPM"),
        "plain.ppm": b"P3\n# a comment\n2 2\n255\n1 2 3 4 5 6 7 8 9 10 11 12\n",
        "grey.pgm": encode(picture("L"), "PPM"),
    }


# --- PNG by hand -------------------------------------------------------------------------------


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width: int, height: int, *chunks: bytes, depth: int = 8, colour: int = 0, interlaced: int = 0) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + b"".join(chunks) + chunk(b"IEND", b"")


def _adam7() -> bytes:
    pixels = np.asarray(picture("L"))
    rows = []
    for top, left, down, right in (
        (0, 0, 8, 8),
        (0, 4, 8, 8),
        (4, 0, 8, 4),
        (0, 2, 4, 4),
        (2, 0, 4, 2),
        (0, 1, 2, 2),
        (1, 0, 2, 1),
    ):
        rows += [b"\0" + row.tobytes() for row in pixels[top::down, left::right] if row.size]
    return png(WIDTH, HEIGHT, chunk(b"IDAT", zlib.compress(b"".join(rows))), interlaced=1)


def mutate_image(data: bytes, other: bytes, draw: random.Random) -> bytes:
    """Damage anything; of a PNG, at times one chunk alone, whose checksum is then set right."""
    if not data.startswith(b"\x89PNG") or draw.random() < 0.3:
        return mutate(data, other, draw)
    chunks, at = [], 8
    while at + 12 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + size]))
        at += 12 + size
    number = draw.randrange(len(chunks))
    name, content = chunks[number]
    chunks[number] = (name, mutate(content, other, draw))
    if draw.random() < 0.2:
        chunks.insert(draw.randrange(len(chunks)), draw.choice(chunks))
    return data[:8] + b"".join(chunk(*one) for one in chunks)


# --- meant to do harm --------------------------------------------------------------------------


@cache
def bombs() -> dict[str, bytes]:
    """Few bytes that ask for much memory, or for long work; whether refused or decoded, at a bounded price."""
    zeros = zlib.compress(bytes(1 << 26), 9)
    pixel = chunk(b"IDAT", zlib.compress(b"\0\0"))
    return {
        "huge.png": png(60_000, 60_000, pixel),
        "empty-but-large.png": png(9_000, 9_000, pixel, colour=2),
        "zeros.png": png(6_000, 6_000, chunk(b"IDAT", zlib.compress(bytes(6_000 * 751), 9)), depth=1),
        "too-many-zeros.png": png(4, 4, chunk(b"IDAT", zeros)),
        "zeros-in-text.png": png(1, 1, chunk(b"zTXt", b"k\0\0" + zeros), pixel),
        "zeros-in-itxt.png": png(1, 1, chunk(b"iTXt", b"k\0\1\0\0\0" + zeros), pixel),
        "zeros-in-profile.png": png(1, 1, chunk(b"iCCP", b"k\0\0" + zeros), pixel),
        "huge.jpg": _patched("rgb.jpg", b"\xff\xc0\x00\x11\x08", 0, struct.pack(">HH", 65_500, 65_500)),
        "huge.gif": _patched("still.gif", b"GIF", 3, struct.pack("<HH", 65_535, 65_535)),
        "huge.bmp": _patched("rgb.bmp", b"BM", 16, struct.pack("<ii", 2_000_000, -2_000_000)),
        "huge.webp": b"RIFF"
        + struct.pack("<I", 30)
        + b"WEBPVP8X"
        + struct.pack("<I", 10)
        + bytes(4)
        + b"\xff" * 6
        + b"VP8L",
        "huge.tif": _huge_tiff(),
        "loop.tif": _looping_tiff(),
        "huge.ppm": b"P6\n99999999 99999999\n255\n",
        "long-number.ppm": b"P6\n" + b"9" * 100_000 + b" 1\n255\n",
    }


def _patched(name: str, after: bytes, skip: int, patch: bytes) -> bytes:
    data = images()[name]
    at = data.index(after) + len(after) + skip
    return data[:at] + patch + data[at + len(patch) :]


def _huge_tiff() -> bytes:
    entries = [(256, 4, 1, 13_000), (257, 4, 1, 13_000), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (273, 4, 1, 8),
               (277, 3, 1, 1), (278, 4, 1, 13_000), (279, 4, 1, 4_000_000_000)]  # fmt: skip
    return (
        b"II*\0" + struct.pack("<IH", 8, len(entries)) + b"".join(struct.pack("<HHII", *e) for e in entries) + bytes(4)
    )


def _looping_tiff() -> bytes:
    data = images()["raw.tif"]
    start = struct.unpack("<I", data[4:8])[0]
    count = struct.unpack("<H", data[start : start + 2])[0]
    at = start + 2 + 12 * count
    return data[:at] + struct.pack("<I", start) + data[at + 4 :]
