"""Files that are cut off, and JPEG files of too many pixels: refused with a remedy, or taken where that is chosen."""

import io

import numpy as np
import pytest
from helpers.pictures import encode, refusal
from PIL import Image

from pucache.images import decoding
from pucache.images.decoding import Decoding, decode, decode_and_note

ACCEPT, LARGE = Decoding(accept_truncated=True), Decoding(large_images=True)
SAMPLE = Image.fromarray(np.random.default_rng(0).integers(1, 256, (80, 120, 3), np.uint8))
GREY = Image.fromarray(np.random.default_rng(0).integers(1, 65536, (80, 120), np.uint16))
FILES = {form: encode(SAMPLE, form) for form in ("JPEG", "PNG", "GIF", "TIFF", "BMP", "PPM")}
FILES |= {"progressive JPEG": encode(SAMPLE, "JPEG", progressive=True), "16-bit PNG": encode(GREY)}


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


@pytest.mark.parametrize("form", FILES)
def test_whole_files_are_the_same_and_nothing_is_noted(form):
    found = decode_and_note(FILES[form], None, ACCEPT)
    assert found.partial == "" and found.image.tobytes() == decode(FILES[form]).tobytes()


@pytest.mark.parametrize("form", FILES)
def test_whatever_the_cut_an_image_is_noted_or_refused(form):
    whole = decode(FILES[form]).tobytes()
    for end in range(1, len(FILES[form]), 37):
        try:
            found = decode_and_note(FILES[form][:end], None, ACCEPT)
        except decoding.ImageError:
            continue
        assert found.partial or found.image.tobytes() == whole


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


def test_a_real_jpeg_of_more_than_179_megapixels():
    stream = io.BytesIO()
    Image.new("L", (20_000, 9_000), 77).save(stream, "JPEG")
    assert "20000 x 9000 pixels; at most 178,956,970" in refusal(decode, stream.getvalue())
    found = decode_and_note(stream.getvalue(), 512, LARGE)
    assert found.image.size == (2500, 1125) and found.partial == "at 1/8 of its 20000 x 9000 pixels"
    assert found.image.getpixel((1000, 1000)) == (77, 77, 77)


def test_a_jpeg_that_its_decoder_keeps_as_a_whole_is_refused_beyond_its_memory(monkeypatch):
    monkeypatch.setattr(decoding, "MAX_PIXELS", 1000)
    assert decode(FILES["progressive JPEG"], None, LARGE).size == (30, 20)
    monkeypatch.setattr(decoding, "JPEG_BYTES", 24_000)
    assert decode(FILES["JPEG"], None, LARGE).size == (30, 20)
    assert "of a progressive JPEG 4,000" in refusal(lambda data: decode(data, None, LARGE), FILES["progressive JPEG"])
