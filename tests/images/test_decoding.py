import re
import zlib

import numpy as np
import pytest
from helpers.pictures import chunk, encode, png, refusal
from PIL import ExifTags, Image, ImageFile

from pucache.errors import ImageError
from pucache.images.decoding import decode


def pixel(data, at=(0, 0)):
    image = decode(data)
    assert image.mode == "RGB"
    return image.getpixel(at)


def palette(**options):
    image = Image.new("P", (4, 3), 1)
    image.putpalette([0, 0, 0, 200, 100, 50])
    return encode(image, **options)


def grey16(*values, form="PNG", order="<"):
    return encode(Image.fromarray(np.array([values], f"{order}u2")), form)


SAMPLE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (12, 8, 3), np.uint8))
NO_PIXELS = chunk(b"IDAT", zlib.compress(b""))
FORMATS = {form: encode(SAMPLE, form) for form in ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "PPM", "AVIF")}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(encode(Image.new("1", (4, 3), 1)), (255, 255, 255), id="1"),
        pytest.param(encode(Image.new("L", (4, 3), 100)), (100, 100, 100), id="L"),
        pytest.param(encode(Image.new("LA", (4, 3), (100, 0))), (255, 255, 255), id="LA transparent"),
        pytest.param(encode(Image.new("RGBA", (4, 3), (0, 50, 0, 51))), (204, 214, 204), id="RGBA one fifth"),
        pytest.param(encode(Image.new("RGBA", (4, 3), (0, 0, 0, 0)), "WEBP"), (255, 255, 255), id="WebP transparent"),
        pytest.param(palette(), (200, 100, 50), id="P"),
        pytest.param(palette(transparency=1), (255, 255, 255), id="P transparent"),
        pytest.param(palette(transparency=b"\xff\x33"), (244, 224, 214), id="P one fifth"),
        pytest.param(palette(form="GIF", transparency=1), (255, 255, 255), id="GIF transparent"),
        pytest.param(encode(Image.new("L", (4, 3), 9), transparency=9), (255, 255, 255), id="L key colour"),
        pytest.param(encode(Image.new("RGB", (4, 3), "red"), transparency=(255, 0, 0)), (255, 255, 255), id="RGB key"),
    ],
)
def test_every_mode_becomes_rgb_over_white(data, expected):
    assert pixel(data) == expected


def test_a_cmyk_jpeg_has_its_colours_the_right_way_round():
    data = encode(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=100)
    assert np.allclose(pixel(data), (255, 0, 0), atol=3)


@pytest.mark.parametrize(("form", "order"), [("PNG", "<"), ("PPM", "<"), ("TIFF", "<"), ("TIFF", ">")])
def test_16_bit_greys_are_scaled_linearly(form, order):
    values = [0, 128, 129, 257, 32767, 32768, 65407, 65535]
    levels = np.asarray(decode(grey16(*values, form=form, order=order)))[0]
    assert levels[:, 0].tolist() == [0, 0, 1, 1, 127, 128, 255, 255]
    assert (levels == levels[:, :1]).all()


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_frame_counts(form):
    frames = [Image.new("RGB", (4, 3), colour) for colour in ("red", "blue", "lime")]
    data = encode(frames[0], form, save_all=True, append_images=frames[1:])
    assert np.allclose(pixel(data), (255, 0, 0), atol=3)


# Where the EXIF standard puts the first row and the first column, as what is stored of an upright array.
STORED = {
    1: lambda upright: upright,
    2: lambda upright: upright[:, ::-1],
    3: lambda upright: upright[::-1, ::-1],
    4: lambda upright: upright[::-1],
    5: lambda upright: upright.swapaxes(0, 1),
    6: lambda upright: upright.swapaxes(0, 1)[::-1],
    7: lambda upright: upright[::-1, ::-1].swapaxes(0, 1),
    8: lambda upright: upright.swapaxes(0, 1)[:, ::-1],
    9: lambda upright: upright,
}


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", STORED)
def test_exif_orientation_is_honoured(orientation, form):
    levels = np.array([[0, 50, 100], [150, 200, 250]], np.uint8).repeat(16, 0).repeat(16, 1)
    upright = np.stack([levels, levels, 255 - levels], -1)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    image = Image.fromarray(np.ascontiguousarray(STORED[orientation](upright)))
    turned = np.asarray(decode(encode(image, form, exif=exif)), int)
    assert turned.shape == upright.shape
    assert np.abs(turned - upright)[8::16, 8::16].max() <= 8


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("exif", [b"garbage garbage", b"II*\0", b"MM\0*\0\0\0\x08\0\x05\x01\x12"])
def test_damaged_exif_does_not_cost_an_image_that_is_whole(exif, form):
    assert decode(encode(SAMPLE, form, exif=b"Exif\0\0" + exif)).tobytes() == decode(FORMATS[form]).tobytes()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty file (0 bytes)"),
        (b"this is no image, whatever its name says\n" * 9, "not an image in a known format"),
        (FORMATS["JPEG"][:-30], "cannot be decoded: image file is truncated"),
        (FORMATS["PNG"][:-40], "cannot be decoded: image file is truncated"),
        (FORMATS["JPEG"][:20], "not an image in a known format"),
        (
            encode(Image.new("F", (2, 2), 0.5), "TIFF"),
            "floating-point pixels have no defined white level; convert the image",
        ),
        (encode(Image.new("I", (2, 2), -1), "TIFF"), "pixels from -1 to -1 have no defined white level; convert"),
        *((encode(SAMPLE, form), "not an image in a known format") for form in ("EPS", "TGA", "PCX", "ICO", "SGI")),
        (png(0, 5, NO_PIXELS), "not an image in a known format"),
    ],
)
def test_what_cannot_be_decoded_is_refused_with_a_reason(data, reason):
    assert refusal(decode, data).startswith(reason)


@pytest.mark.parametrize("limit", [Image.MAX_IMAGE_PIXELS, None], ids=["Pillow's limit", "limit lifted elsewhere"])
def test_a_decompression_bomb_is_refused_from_its_header(monkeypatch, limit):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("pixels were allocated"))
    assert re.search("pixels|178,956,970", refusal(decode, png(60_000, 60_000, NO_PIXELS)))


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_is_decoded_and_refused_where_it_is_cut(form):
    image, data = decode(FORMATS[form]), FORMATS[form]
    whole = image.tobytes()
    off = np.abs(np.asarray(image, int) - np.asarray(SAMPLE, int)).mean()
    assert off <= (0 if form in ("PNG", "TIFF", "BMP", "PPM") else 60)
    refused = 0
    for end in range(len(data)):
        try:
            assert decode(data[:end]).tobytes() == whole
        except ImageError:
            refused += 1
    assert refused > len(data) * 0.9
