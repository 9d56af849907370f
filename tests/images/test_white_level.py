"""Images of 16 bits: every format and depth, with and without a white level, and what is noticed of them."""

import io
import struct
import zlib
from collections import Counter

import numpy as np
import pytest
from helpers import pictures
from helpers.pictures import refusal
from hypothesis import given
from hypothesis import strategies as st
from PIL import ExifTags, Image

from pucache.images.decoding import DECODER, Decoding, decode, decode_and_note
from pucache.images.white_level import peak, range_note


def png(values):
    """A PNG of 16 bits with 1 (grey), 2, 3 or 4 channels."""
    height, width, channels = values.shape
    rows = zlib.compress(b"".join(b"\0" + row.astype(">u2").tobytes() for row in values))
    return pictures.png(width, height, pictures.chunk(b"IDAT", rows), depth=16, colour=[0, 4, 2, 6][channels - 1])


def tiff(values, order="<", *, deflated=False, bits=16):
    """A TIFF of 12, 16 or 32 bits; those of 12 have an even width."""
    height, width, channels = values.shape
    data = values.astype(f"{order}u{4 if bits == 32 else 2}").tobytes()
    if bits == 12:
        first, second = values.reshape(-1, 2).astype(int).T
        packed = np.stack([first >> 4, (first & 15) << 4 | second >> 8, second & 255], 1)
        data = packed.astype(np.uint8).tobytes()
    data = zlib.compress(data) if deflated else data
    depths = struct.pack(f"{order}{channels}H", *[bits] * channels)
    begin = 8 + 2 + 9 * 12 + 4
    bits_entry = (258, 3, channels, begin if channels > 2 else bits)
    entries = [(256, 4, 1, width), (257, 4, 1, height), bits_entry, (259, 3, 1, 8 if deflated else 1)]
    entries += [(262, 3, 1, 2 if channels > 1 else 1), (273, 4, 1, begin + len(depths)), (277, 3, 1, channels)]
    entries += [(278, 4, 1, height), (279, 4, 1, len(data))]
    content = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}IH", 8, len(entries))
    for tag, kind, count, value in entries:
        short = kind == 3 and count == 1
        content += struct.pack(f"{order}HHI", tag, kind, count)
        content += struct.pack(f"{order}HH", value, 0) if short else struct.pack(f"{order}I", value)
    return content + bytes(4) + depths + data


def ppm(values, maxval=65535):
    height, width, channels = values.shape
    kind = "P5" if channels == 1 else "P6"
    return f"{kind} {width} {height} {maxval}\n".encode() + values.astype(">u2").tobytes()


FORMATS = {
    "PNG": png,
    "TIFF": tiff,
    "TIFF, big-endian": lambda values: tiff(values, ">"),
    "TIFF, deflated": lambda values: tiff(values, deflated=True),
    "TIFF, deflated, big-endian": lambda values: tiff(values, ">", deflated=True),
    "PNM": ppm,
}
KINDS = [(channels, name, encode) for channels in (1, 3) for name, encode in FORMATS.items()]
KINDS += [(1, "TIFF of 32 bits", lambda values: tiff(values, bits=32))]
KINDS += [(2, "PNG with opacity", png), (4, "PNG with opacity", png)]


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
def test_values_are_scaled_to_the_white_level_in_every_format(kind, bits, white, seed):
    channels, _, encode = kind
    values = values_of(seed, channels, bits)
    found = decode_and_note(encode(values), None, Decoding(white))
    assert np.abs(np.asarray(found.image) - levels(values, white)).max() <= (0.51 if white < 65535 else 1)


@pytest.mark.parametrize(("channels", "name", "encode"), KINDS)
@pytest.mark.parametrize("bits", [8, 10, 12, 14, 16])
def test_the_largest_value_is_noticed_in_every_format(channels, name, encode, bits):
    values = values_of(3, channels, bits)
    for white in (65535, 4095):
        assert decode_and_note(encode(values), None, Decoding(white)).peak == (1 << bits) - 1


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


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "PPM", "AVIF"])
def test_images_of_8_bits_are_not_affected(form):
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (12, 8, 3), np.uint8)).save(stream, form)
    found = decode_and_note(stream.getvalue(), None, Decoding(200))
    assert found.peak is None and found.image.tobytes() == decode(stream.getvalue()).tobytes()


def test_opacity_and_orientation_hold_with_a_level():
    values = np.full((4, 6, 4), 4095, np.uint16)
    values[..., :3] = 0
    values[..., 3] = 0x8000
    assert decode(png(values), None, Decoding(4095)).getpixel((0, 0)) == (127, 127, 127)
    stream, exif = io.BytesIO(), Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.fromarray(np.arange(24, dtype=np.uint16).reshape(4, 6)).save(stream, "PNG", exif=exif)
    turned = np.asarray(decode(stream.getvalue(), None, Decoding(23)))
    assert turned.shape == (6, 4, 3) and turned[0, -1, 0] == 0 and turned[-1, 0, 0] == 255


@pytest.mark.parametrize("value", [-1, 65536])
def test_32_bits_beyond_16_have_no_white_level(value):
    stream = io.BytesIO()
    Image.new("I", (2, 2), value).save(stream, "TIFF")
    assert "no defined white level" in refusal(lambda data: decode(data, None, Decoding(4095)), stream.getvalue())


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
        (
            {16383: 1},
            65535,
            "less than a quarter of the range and are nearly black (largest value 16,383): pass --white",
        ),
        ({200: 1}, 65535, "pass --white-level 255"),
        ({4095: 2, 65000: 8}, 65535, "embed them into a cache of their own and pass --white-level 4095"),
        (
            {4095: 50, 200: 50},
            255,
            "50 of 100 16-bit images have values above the white level 255, which are white now",
        ),
        ({0: 7, 65535: 1}, 65535, ""),
        ({4095: 9, 65535: 91}, 65535, ""),
        ({4095: 100}, 4095, ""),
        ({}, 65535, ""),
        ({}, 4095, ""),
    ],
)
def test_dark_and_clipped_images_are_told_in_one_line(peaks, white, note):
    said = range_note(Counter(peaks), white)
    assert note in said and bool(said) == bool(note) and "\n" not in said


def test_a_few_bright_marks_do_not_hide_that_an_image_is_dark():
    values = values_of(0, 1, 12)[:, :, 0].repeat(3, 0)  # 2,160 pixels
    values[0, :2] = 65535
    stream = io.BytesIO()
    Image.fromarray(values).save(stream, "PNG")
    assert decode_and_note(stream.getvalue()).peak == 4095


@pytest.mark.parametrize(
    ("fill", "share", "expected"), [(65535, 0.016, 4000), (40_000, 0.3, 4000), (65535, 0.6, 65535)]
)
def test_one_bright_value_that_fills_what_was_not_measured_does_not_hide_that_an_image_is_dark(fill, share, expected):
    values = np.linspace(0, 4000, 10_000).astype(np.uint16)
    values[: int(share * 10_000)] = fill
    assert peak(values) == expected


def test_a_bright_image_is_not_dark_whatever_fills_it():
    values = np.concatenate([np.linspace(0, 4000, 6000), [20_000, 65_535] * 100]).astype(np.uint16)
    assert peak(values) == 65_535
