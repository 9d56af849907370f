import dataclasses
import threading

import numpy as np
import pytest
from helpers.hangs import HANG_SECONDS
from helpers.pictured import folder_of, shaded
from helpers.pictures import encode
from helpers.reviews import picture_of
from helpers.tiny import tiny_encoder
from PIL import Image

from pucache import EmbeddingCache, open_source
from pucache.embedding.embed import run_embedding
from pucache.errors import SourceError
from pucache.images.regions import split_key
from pucache.reviewing import pictures as module
from pucache.reviewing.pictures import SIDES, Pictures

MANY = {f"{number:02}.png": encode(shaded(40 + number, 30)) for number in range(30)}


@pytest.fixture
def pictures_of(tmp_path):
    """Makes `Pictures` of encoded images by key, or of a cache; the cache of it is `.cache`."""
    made = []

    def make(files, images=None):
        cache = folder_of(tmp_path, files, f"images{len(made)}") if isinstance(files, dict) else files
        made.append(Pictures(cache, images))
        made[-1].cache = cache
        return made[-1]

    yield make
    for pictures in made:
        pictures.close()


SCALED = {"card": {(2000, 1000): (640, 320), (100, 2000): (32, 640), (32, 28): (32, 28)}}
SCALED |= {"original": {(2000, 1000): (2000, 1000), (5000, 50): (4096, 41)}}


def test_a_picture_is_scaled_down_to_its_size_and_never_up(pictures_of):
    for size, cases in SCALED.items():
        pictures = pictures_of({f"{row}.png": encode(shaded(*original)) for row, original in enumerate(cases)})
        for row, expected in enumerate(cases.values()):
            assert picture_of(pictures.get(row, size).data).size == expected and max(expected) <= SIDES[size]


def test_nothing_of_the_file_but_pixels_is_sent_and_small_pictures_keep_each(pictures_of):
    exif = Image.Exif()
    exif[0x010E] = "where the photographer lives"
    pixels = np.random.default_rng(0).integers(0, 256, (28, 32, 3), np.uint8)
    files = {
        "a.jpg": encode(shaded(600, 500), "JPEG", exif=exif, icc_profile=b"profile" * 99, comment=b"a comment"),
        "b.png": encode(Image.fromarray(pixels)) + b"hidden after the end",
        "c.jpg": encode(shaded(60, 50), "JPEG", exif=exif),
    }
    pictures = pictures_of(files)
    for row in range(3):
        data = pictures.get(row).data
        assert not any(text in data for text in (b"photographer", b"profile", b"comment", b"hidden"))
        assert not picture_of(data).getexif() and "icc_profile" not in picture_of(data).info
    small = pictures.get(1)
    assert small.media_type == "image/png" and np.array_equal(np.asarray(picture_of(small.data)), pixels)


def test_an_image_that_cannot_be_shown_has_a_problem_and_is_looked_at_again_later(pictures_of, tmp_path, monkeypatch):
    pictures = pictures_of({"a.png": b"no image", "b.png": encode(shaded(40, 30))})
    picture = pictures.get(0)
    assert picture.data == b"" and "not an image" in picture.problem
    (tmp_path / "images0/a.png").write_bytes(encode(shaded(40, 30)))
    assert pictures.get(0).data == b""
    monkeypatch.setattr(module, "PROBLEM_SECONDS", -1.0)
    again = pictures.get(0)
    assert again.data and again.problem == "" and "has changed" in again.note
    (tmp_path / "images0").rename(tmp_path / "moved")
    assert "no such source" in pictures_of(pictures.cache).get(1).problem
    assert pictures_of(pictures.cache, tmp_path / "moved").get(1).data
    with pytest.raises(SourceError, match="no such source"):
        pictures_of(pictures.cache, tmp_path / "nowhere")


def test_a_picture_that_is_asked_for_overtakes_those_made_in_advance(pictures_of, monkeypatch):
    pictures = pictures_of(MANY)
    go_on, genuine = threading.Event(), pictures._images.read

    def slow_in_advance(row, side, place):
        if "ahead" in threading.current_thread().name:
            assert go_on.wait(HANG_SECONDS)
        return genuine(row, side)

    monkeypatch.setattr(pictures._images, "read", slow_in_advance)
    pictures.prefetch(range(30))
    assert picture_of(pictures.get(29).data).size == (69, 30)
    go_on.set()
    assert [picture_of(pictures.get(row).data).size[0] for row in range(30)] == [40 + row for row in range(30)]


def test_memory_is_bounded_and_the_latest_stay(pictures_of, monkeypatch):
    monkeypatch.setattr(module, "MEMORY", 4000)
    pictures = pictures_of(MANY)
    first, *_, last = [pictures.get(row) for row in range(30)]
    assert pictures.get(29) is last and pictures.get(0) is not first
    monkeypatch.setattr(module, "MEMORY", 1)
    assert pictures.get(3).data, "one larger than all memory is sent all the same"


def test_a_problem_of_all_images_is_found_by_looking_at_a_few(pictures_of, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SAMPLE_SECONDS", HANG_SECONDS)
    assert pictures_of({**MANY, "00.png": b"no image"}).common_problem() == ""
    moved = pictures_of(MANY)
    (tmp_path / "images1").rename(tmp_path / "moved")
    assert "no such source" in moved.common_problem()
    slow, go_on = pictures_of(dict.fromkeys(MANY, b"no image")), threading.Event()
    read = slow._images.read
    monkeypatch.setattr(module, "SAMPLE_SECONDS", 0.05)
    monkeypatch.setattr(slow._images, "read", lambda row, side, place: go_on.wait(HANG_SECONDS) and read(row, side))
    assert slow.common_problem() == "", "the server does not wait for a slow source"
    go_on.set()


def test_of_a_part_its_place_in_the_whole_image_is_shown(pictures_of, tmp_path):
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (300, 200), "red").save(tmp_path / "photos" / "a.png")
    encoder = tiny_encoder()
    encoder.spec = dataclasses.replace(encoder.spec, tiles="2x3")
    run_embedding(open_source(tmp_path / "photos"), tmp_path / "parts.h5", encoder)
    cache = EmbeddingCache(tmp_path / "parts.h5")
    boxes = [split_key(key)[1].box((300, 200)) for key in cache.keys]
    pictures, row = pictures_of(cache), boxes.index((100, 100, 200, 200))
    assert picture_of(pictures.get(row).data).size == (100, 100)
    sent = np.asarray(picture_of(pictures.get(row, "place").data).convert("RGB"))
    assert sent.shape == (160, 240, 3)
    white = (sent.min(2) > 200).nonzero()
    assert [white[0].min(), white[0].max(), white[1].min(), white[1].max()] == pytest.approx([80, 160, 80, 160], abs=2)
