import numpy as np
import pytest
from helpers.pictures import encode, refusal
from helpers.tiff import tiff
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from pucache.images.decoding import BANDS, PAGES, Decoding, decode, decode_and_note

COLOURS = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
INFRARED = np.linspace(20, 200, 48).astype(np.uint8).reshape(6, 8, 1)


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
    ("bands", "what"),
    [
        (np.zeros((6, 8, 5), np.uint8), "TIFF with 5 bands of 8-bit unsigned integers"),
        (np.zeros((6, 8, 9), np.uint16), "TIFF with 9 bands of 16-bit unsigned integers"),
        (np.zeros((6, 8, 3), np.float32), "TIFF with 3 bands of 32-bit floating-point numbers"),
        (np.zeros((6, 8, 4), np.int16), "TIFF with 4 bands of 16-bit signed integers"),
        (np.zeros((6, 8, 1), np.float64), "TIFF with 1 bands of 64-bit floating-point numbers"),
    ],
    ids=["5 bands", "9 bands", "floats", "int16", "float64"],
)
def test_a_sound_tiff_that_is_no_picture_is_called_what_it_is(capfd, bands, what):
    assert refusal(decode, tiff(bands)).startswith(f"{what}; expected 1, 3 or 4 bands")
    assert capfd.readouterr() == ("", "")  # nothing of Pillow's own


@pytest.mark.parametrize(("values", "reason"), [(-9999, "pixels from -9,999"), (0.5, "floating-point pixels")])
def test_one_band_without_a_white_level_is_called_what_it_is(values, reason):
    band = np.full((6, 8, 1), values, np.int16 if values < 0 else np.float32)
    assert refusal(decode, tiff(band)).startswith(reason)


@pytest.mark.parametrize(
    ("data", "has_pages"),
    [
        (tiff(COLOURS, subfiles=[0, 0]), True),
        (tiff(COLOURS, subfiles=[0, 1, 1]), False),
        (tiff(COLOURS, subfiles=[0, 4]), False),
        (tiff(COLOURS, subfiles=[0, 1, 2]), True),
        *(
            (
                encode(Image.new("RGB", (4, 3)), form, save_all=True, append_images=[Image.new("RGB", (4, 3), "red")]),
                True,
            )
            for form in ("GIF", "WEBP", "PNG")
        ),
        *((encode(Image.new("RGB", (4, 3)), form), False) for form in ("GIF", "WEBP", "PNG", "JPEG", "TIFF")),
    ],
)
def test_files_of_several_pages_are_told_from_overviews_and_masks(data, has_pages):
    assert decode_and_note(data).partial == PAGES * has_pages


def test_a_pointer_of_git_lfs_is_called_that():
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"
    assert "git lfs pull" in refusal(decode, pointer)
