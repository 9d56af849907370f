import io
import re
import zlib
from collections import Counter
from functools import partial

import numpy as np
import pytest
from helpers import pictures
from helpers.pictures import chunk, encode, png, refusal
from helpers.tiff import tiff
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import ExifTags, Image, ImageFile

from pucache import Decoding
from pucache.errors import ImageError
from pucache.images import decoding
from pucache.images.decoding import BANDS, DECODER, PAGES, decode, decode_and_note, upright_size
from pucache.images.white_level import peak, range_note


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
GREY = Image.fromarray(np.random.default_rng(0).integers(1, 65536, (80, 120), np.uint16))
FORMATS |= {
    "progressive JPEG": encode(SAMPLE, "JPEG", progressive=True),
    "16-bit PNG": encode(GREY.crop((0, 0, 8, 12))),
}
ACCEPT, LARGE = Decoding(accept_truncated=True), Decoding(large_images=True)


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


@pytest.mark.parametrize(("form", "order"), [("PNG", "<"), ("PPM", "<"), ("TIFF", "<"), ("TIFF", ">")])
def test_16_bit_greys_are_scaled_linearly(form, order):
    values = [0, 128, 129, 257, 32767, 32768, 65407, 65535]
    levels = np.asarray(decode(grey16(*values, form=form, order=order)))[0]
    assert levels[:, 0].tolist() == [0, 0, 1, 1, 127, 128, 255, 255]
    assert (levels == levels[:, :1]).all()


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
    data = encode(image, form, exif=exif)
    turned = np.asarray(decode(data), int)
    assert turned.shape == upright.shape
    assert upright_size(io.BytesIO(data)) == upright.shape[1::-1]
    assert np.abs(turned - upright)[8::16, 8::16].max() <= 8


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("exif", [b"garbage garbage", b"II*\0", b"MM\0*\0\0\0\x08\0\x05\x01\x12"])
def test_damaged_exif_does_not_cost_an_image_that_is_whole(exif, form):
    assert decode(encode(SAMPLE, form, exif=b"Exif\0\0" + exif)).tobytes() == decode(FORMATS[form]).tobytes()


REFUSED = [  # bytes, and what the reason says
    (b"", "empty file (0 bytes)"),
    (b"this is no image, whatever its name says\n" * 9, "not an image in a known format"),
    (encode(SAMPLE, "JPEG2000"), "but a JPEG 2000 picture: convert it to PNG or JPEG"),
    (bytes(128) + b"DICM\2\0", "but a DICOM picture: convert it"),
    (b"<svg/>", "but an XML file"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n", "git lfs pull"),
    (FORMATS["JPEG"][:-30], "cannot be decoded: image file is truncated"),
    (FORMATS["PNG"][:-40], "cannot be decoded: image file is truncated"),
    (FORMATS["JPEG"][:20], "not an image in a known format"),
    (
        encode(Image.new("F", (2, 2), 0.5), "TIFF"),
        "floating-point pixels have no defined white level; convert the image",
    ),
    *(
        (encode(Image.new("I", (2, 2), value), "TIFF"), f"pixels from {value:,} to {value:,} have no defined white")
        for value in (-9999, 65536)
    ),
    *((encode(SAMPLE, form), "not an image in a known format") for form in ("EPS", "TGA", "PCX", "ICO", "SGI")),
    (png(0, 5, NO_PIXELS), "not an image in a known format"),
    *(
        (tiff(np.zeros((6, 8, bands), kind)), f"TIFF with {bands} bands of {what}; expected 1, 3 or 4 bands")
        for bands, kind, what in (
            (5, np.uint8, "8-bit unsigned integers"),
            (9, np.uint16, "16-bit unsigned integers"),
            (3, np.float32, "32-bit floating-point numbers"),
            (4, np.int16, "16-bit signed integers"),
            (1, np.float64, "64-bit floating-point numbers"),
        )
    ),
]


@pytest.mark.parametrize(("data", "reason"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_decoded_is_refused_with_a_reason(capfd, data, reason):
    assert reason in refusal(decode, data)
    assert capfd.readouterr() == ("", "")  # nothing of Pillow's own


@pytest.mark.parametrize("limit", [Image.MAX_IMAGE_PIXELS, None], ids=["Pillow's limit", "limit lifted elsewhere"])
def test_a_decompression_bomb_is_refused_from_its_header(monkeypatch, limit):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("pixels were allocated"))
    assert re.search("pixels|178,956,970", refusal(decode, png(60_000, 60_000, NO_PIXELS)))


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_is_decoded_and_wherever_it_is_cut_refused_or_noted(form):
    image, data = decode(FORMATS[form]), FORMATS[form]
    whole = image.tobytes()
    if form != "16-bit PNG":
        off = np.abs(np.asarray(image, int) - np.asarray(SAMPLE, int)).mean()
        assert off <= (0 if form in ("PNG", "TIFF", "BMP", "PPM") else 60)
    refused = 0
    for end in range(len(data)):
        try:
            assert decode(data[:end]).tobytes() == whole
        except ImageError:
            refused += 1
        try:
            found = decode_and_note(data[:end], None, ACCEPT)
        except ImageError:
            continue
        assert found.partial or found.image.tobytes() == whole
    assert refused > len(data) * 0.9 and not decode_and_note(data, None, ACCEPT).partial


# --- Images of 16 bits: every format and depth, with and without a white level, and what is noticed---


def png_of_white_level(values):
    """A PNG of 16 bits with 1 (grey), 2, 3 or 4 channels."""
    height, width, channels = values.shape
    rows = zlib.compress(b"".join(b"\0" + row.astype(">u2").tobytes() for row in values))
    return pictures.png(width, height, pictures.chunk(b"IDAT", rows), depth=16, colour=[0, 4, 2, 6][channels - 1])


def ppm(values, maxval=65535):
    height, width, channels = values.shape
    kind = "P5" if channels == 1 else "P6"
    return f"{kind} {width} {height} {maxval}\n".encode() + values.astype(">u2").tobytes()


FORMATS_OF_WHITE_LEVEL = {
    "PNG": png_of_white_level,
    "PNM": ppm,
    "TIFF": tiff,
    "TIFF, big-endian": partial(tiff, order=">"),
    "TIFF, deflated": partial(tiff, deflated=True),
    "TIFF, deflated, big-endian": partial(tiff, order=">", deflated=True),
}
KINDS = [(channels, name, encode) for channels in (1, 3) for name, encode in FORMATS_OF_WHITE_LEVEL.items()]
KINDS += [(1, "TIFF of 32 bits", lambda values: tiff(values.astype(np.uint32)))]
KINDS += [(2, "PNG with opacity", png_of_white_level), (4, "PNG with opacity", png_of_white_level)]


def values_of(seed, channels, bits):
    values = np.random.default_rng(seed).integers(0, 1 << bits, (24, 30, channels), dtype=np.uint16)
    values[0, 0] = (1 << bits) - 1
    if channels in (2, 4):
        values[..., -1] = 65535  # opaque
    return values


def levels(values, white):
    """What a level makes of values, as real numbers."""
    colours = values[..., : 3 if values.shape[2] > 2 else 1].astype(float)
    return np.minimum(colours, white) * 255 / white


@given(
    kind=st.sampled_from(KINDS),
    bits=st.integers(1, 16),
    white=st.integers(1, 65535),
    seed=st.integers(0, 99),
)
def test_values_are_scaled_to_the_white_level_and_the_largest_is_noticed_in_every_format(kind, bits, white, seed):
    channels, _, encode = kind
    values = values_of(seed, channels, bits)
    found = decode_and_note(encode(values), None, Decoding(white))
    assert np.abs(np.asarray(found.image) - levels(values, white)).max() <= (0.51 if white < 65535 else 1)
    assert found.peak == (1 << bits) - 1


def test_12_bits_of_a_tiff_are_read_as_their_values():
    values = values_of(1, 1, 12)
    found = decode_and_note(tiff(values, bits=12), None, Decoding(4095))
    assert found.peak == 4095 and np.abs(np.asarray(found.image) - levels(values, 4095)).max() <= 0.51


@pytest.mark.parametrize("channels", [1, 3])
def test_a_file_that_states_its_white_level_keeps_it(channels):
    values = values_of(2, channels, 12)
    for white in (65535, 1000):
        found = decode_and_note(ppm(values, 4095), None, Decoding(white))
        assert found.peak is None and np.abs(np.asarray(found.image) - levels(values, 4095)).max() <= 1


def test_opacity_and_orientation_hold_with_a_level():
    values = np.full((4, 6, 4), 4095, np.uint16)
    values[..., :3] = 0
    values[..., 3] = 0x8000
    assert decode(png_of_white_level(values), None, Decoding(4095)).getpixel((0, 0)) == (127, 127, 127)
    stream, exif = io.BytesIO(), Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.fromarray(np.arange(24, dtype=np.uint16).reshape(4, 6)).save(stream, "PNG", exif=exif)
    turned = np.asarray(decode(stream.getvalue(), None, Decoding(23)))
    assert turned.shape == (6, 4, 3) and turned[0, -1, 0] == 0 and turned[-1, 0, 0] == 255


@pytest.mark.parametrize("level", [0, 65536, 1.5, True, "auto"])
def test_a_level_that_is_none_is_refused(level):
    with pytest.raises(ValueError, match=r"white_level must .* 1 (to|and) 65535, got"):
        Decoding(level)


@given(level=st.integers(1, 65535), truncated=st.booleans(), large=st.booleans())
def test_the_decoder_of_a_spec_names_the_choices(level, truncated, large):
    chosen = Decoding(level, truncated, large)
    assert Decoding.of(chosen.decoder) == chosen
    assert (chosen.decoder == DECODER) == (chosen == Decoding())


@pytest.mark.parametrize("decoder", ["", "pillow-1", "torchvision-0.20", f"{DECODER};white-level=0", f"{DECODER};more"])
def test_a_decoder_of_another_version_has_the_usual_choices(decoder):
    assert Decoding.of(decoder) == Decoding()


# --- the line about a run ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("peaks", "white", "note"),
    [
        ({4095: 90, 3000: 6, 65535: 4}, 65535, "96 of 100 16-bit images use less than a sixteenth of the range"),
        ({4095: 96, 65535: 4}, 65535, "(largest value 4,095): pass --white-level 4095"),
        ({900: 5}, 65535, "(largest value 900): pass --white-level 1023"),
        ({16383: 1}, 65535, "less than a quarter of the range and are nearly black (largest value 16,383): pass"),
        ({4095: 2, 65000: 8}, 65535, "embed them into a cache of their own and pass --white-level 4095"),
        ({4095: 50, 200: 50}, 255, "50 of 100 16-bit images have values above the white level 255, which are white"),
        ({0: 7, 65535: 1}, 65535, ""),
        ({4095: 100}, 4095, ""),
        ({}, 4095, ""),
    ],
)
def test_dark_and_clipped_images_are_told_in_one_line(peaks, white, note):
    said = range_note(Counter(peaks), white)
    assert note in said and bool(said) == bool(note) and "\n" not in said


def dark(count, *bright):
    """Values up to 4,000, and others."""
    return np.concatenate([np.linspace(0, 4000, count), *bright]).astype(np.uint16)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (dark(9840, [65535] * 160), 4000),
        (dark(7000, [40_000] * 3000), 4000),
        (dark(9995, 60_000 + np.arange(5)), 3997),
        (dark(4000, [65535] * 6000), 65535),
        (dark(6000, [20_000, 65_535] * 100), 65535),
    ],
    ids=["a frame", "what was not measured", "a few marks", "most of it", "a bright image"],
)
def test_what_fills_a_dark_image_does_not_hide_that_it_is_dark(values, expected):
    assert peak(values) == expected


# --- tiff -----------------------------------------------------------------------------------------

COLOURS = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
INFRARED = np.linspace(20, 200, 48).astype(np.uint8).reshape(6, 8, 1)
FRAME, OTHER_FRAME = (Image.new("RGB", (4, 3), colour) for colour in ("black", "red"))


@pytest.mark.parametrize("extra", [1, 2], ids=["associated", "unassociated"])
@given(band=arrays(np.uint8, (6, 8, 1), elements=st.integers(1, 254)))
def test_a_fourth_band_that_is_no_opacity_changes_no_colour(extra, band):
    decoded = decode_and_note(tiff(np.concatenate([COLOURS, band], 2), extra=[extra]))
    np.testing.assert_array_equal(np.asarray(decoded.image), COLOURS)
    assert decoded.partial == BANDS


@pytest.mark.parametrize("level", [65535, 40_000])
def test_a_fourth_band_of_16_bits_is_left_out_alike(level):
    wide = np.concatenate([COLOURS, INFRARED], 2).astype(np.uint16) << 8
    decoded = decode_and_note(tiff(wide, extra=[2]), None, Decoding(white_level=level))
    expected = decode(tiff(wide[..., :3]), None, Decoding(white_level=level))
    np.testing.assert_array_equal(np.asarray(decoded.image), np.asarray(expected))
    assert decoded.partial == BANDS


def test_a_mask_is_opacity():
    mask = np.where(INFRARED > 100, 255, 0).astype(np.uint8)
    decoded = decode_and_note(tiff(np.concatenate([COLOURS, mask], 2), extra=[2]))
    np.testing.assert_array_equal(np.asarray(decoded.image), np.where(mask == 255, COLOURS, 255))
    assert decoded.partial == ""


@pytest.mark.parametrize(
    ("data", "has_pages"),
    [
        (tiff(COLOURS, subfiles=[0, 0]), True),
        (tiff(COLOURS, subfiles=[0, 1, 1]), False),
        (tiff(COLOURS, subfiles=[0, 4]), False),
        (tiff(COLOURS, subfiles=[0, 1, 2]), True),
        *((encode(FRAME, form, save_all=True, append_images=[OTHER_FRAME]), True) for form in ("GIF", "WEBP", "PNG")),
        *((encode(Image.new("RGB", (4, 3)), form), False) for form in ("GIF", "WEBP", "PNG", "JPEG", "TIFF")),
    ],
)
def test_files_of_several_pages_are_told_from_overviews_and_masks(data, has_pages):
    assert decode_and_note(data).partial == PAGES * has_pages


# --- Files that are cut off, and JPEG files of too many pixels: refused with a remedy, or taken whe---

LARGER = Image.fromarray(np.random.default_rng(0).integers(1, 256, (80, 120, 3), np.uint8))
FILES = {form: encode(LARGER, form) for form in ("JPEG", "PNG", "GIF", "TIFF", "BMP", "PPM")}
FILES |= {"progressive JPEG": encode(LARGER, "JPEG", progressive=True), "16-bit PNG": encode(GREY)}


@pytest.mark.parametrize("form", FILES)
@pytest.mark.parametrize("lost", [0.002, 0.1, 0.5, 0.7])
def test_a_file_that_is_cut_off_is_refused_with_the_remedy_and_taken_where_that_is_chosen(form, lost):
    whole, cut = FILES[form], FILES[form][: int(len(FILES[form]) * (1 - lost)) - 22]
    assert refusal(decode, cut).endswith("; --accept-truncated takes what is there")
    found = decode_and_note(cut, None, ACCEPT)
    expected, shown = np.asarray(decode(whole)), np.asarray(found.image)
    assert found.partial.startswith("cut off, image file is truncated")
    assert shown.shape == expected.shape
    if "JPEG" not in form and form != "GIF":  # the header of which is long, or the rows of which are interlaced
        rows = int(80 * (1 - lost)) - 14
        first = slice(-rows, None) if form == "BMP" else slice(rows)  # which begins with its last row
        assert (shown[first] == expected[first]).all()


def test_damage_that_is_no_cut_is_refused_all_the_same():
    data = bytearray(FILES["PNG"])
    data[len(data) // 2] ^= 255
    assert "cannot be decoded" in refusal(lambda content: decode(content, None, ACCEPT), bytes(data))


@pytest.mark.parametrize(("side", "size"), [(None, (30, 20)), (5, (15, 10))])
def test_a_jpeg_of_too_many_pixels_is_taken_at_a_part_of_its_size(monkeypatch, side, size):
    monkeypatch.setattr(decoding, "MAX_PIXELS", 1000)
    reason = "120 x 80 pixels; at most 1,000 are decoded"
    assert refusal(decode, FILES["JPEG"]) == f"{reason}; --large-images takes it at a part of its size"
    found = decode_and_note(FILES["JPEG"], side, LARGE)
    assert found.image.size == size and found.partial.startswith("at 1/") and "120 x 80 pixels" in found.partial
    assert refusal(lambda data: decode(data, None, LARGE), FILES["PNG"]) == reason


def test_a_jpeg_that_its_decoder_keeps_as_a_whole_is_refused_beyond_its_memory(monkeypatch):
    monkeypatch.setattr(decoding, "MAX_PIXELS", 1000)
    assert decode(FILES["progressive JPEG"], None, LARGE).size == (30, 20)
    monkeypatch.setattr(decoding, "JPEG_BYTES", 24_000)
    assert decode(FILES["JPEG"], None, LARGE).size == (30, 20)
    assert "of a progressive JPEG 4,000" in refusal(lambda data: decode(data, None, LARGE), FILES["progressive JPEG"])
