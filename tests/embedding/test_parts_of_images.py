"""Rows of parts of images: what of an image is embedded, how often it is read, and what is recorded of it."""

import dataclasses
import os
from collections import Counter

import h5py
import numpy as np
import pytest
from helpers.pictures import encode
from helpers.sources import archive
from helpers.tiny import tiny_encoder
from PIL import Image

from pucache import EmbeddingCache, embed, load_encoder, open_source
from pucache.cache.layout import version_of
from pucache.embedding.embed import EmbedOptions, run_embedding
from pucache.errors import SourceError
from pucache.images import decoding
from pucache.images.regions import image_of, split_key

SIZE = (96, 72)
ODD = "a#xywh=1,2,3,4.png"


def tiled(tiles, **changed):
    """The tiny encoder, of parts of images."""
    encoder = tiny_encoder()
    encoder.spec = dataclasses.replace(encoder.spec, tiles=tiles, **changed)
    return encoder


@pytest.fixture
def photos(tmp_path):
    """Files of 96 x 72 pixels: of one the EXIF data say that it is turned, the name of one looks like a part's."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, name in enumerate(["0.png", "1.png", "turned.png", ODD]):
        pixels = np.random.default_rng(number).integers(0, 256, (*SIZE[::-1], 3), np.uint8)
        exif = Image.Exif()
        exif[0x112] = 6 if name == "turned.png" else 1
        (folder / name).write_bytes(encode(Image.fromarray(pixels), exif=exif))
    return folder


def upright(path):
    return decoding.decode(path.read_bytes())


def pixel_box(key, size):
    return split_key(key)[1].box(size)


def write_manifest(path, *rows):
    path.write_text("\n".join(["path,x,y,w,h", *rows]) + "\n")
    return path


@pytest.mark.parametrize(("tiles", "workers"), [("3x2", 0), ("9x9", 2), ("40 overlap 8", 0), ("boxes", 0)])
def test_the_row_of_a_part_is_that_of_a_file_of_its_pixels(photos, out, tmp_path, tiles, workers):
    source = photos
    if tiles == "boxes":
        source = write_manifest(tmp_path / "boxes.csv", *(f'"photos/{name}",3,5,40,60' for name in os.listdir(photos)))
    encoder = tiled(tiles)

    cache = embed(source, out, encoder, workers=workers)

    assert {image_of(key).removeprefix("photos/") for key in cache.keys} == set(os.listdir(photos))
    for key, row in zip(cache.keys, cache.X[:], strict=True):
        image = upright(photos / image_of(key).removeprefix("photos/"))
        assert image.size == (SIZE[::-1] if "turned" in key else SIZE)
        np.testing.assert_allclose(row, encoder([image.crop(pixel_box(key, image.size))])[0], atol=1e-3)


def test_parts_of_one_image_are_no_twins_by_digest_and_those_of_a_copy_are(photos, out):
    (photos / "copy.png").write_bytes((photos / "0.png").read_bytes())
    encoder = tiled("2x2")

    cache = embed(photos, out, encoder)

    digests = dict(zip(cache.keys, map(bytes, cache.digest_matrix), strict=True))
    assert len(set(digests.values())) == 4 * 4
    assert all(digests[key] == digests[key.replace("0.png", "copy.png")] for key in digests if "0.png" in key)


def test_shards_hold_whole_images_and_give_the_rows_of_one_run(photos, out):
    whole = embed(photos, out, tiled("3x3"))
    shards = []
    for number in (1, 2, 3):
        options = EmbedOptions(shard=(number, 3))
        try:
            report = run_embedding(photos, out.with_name(f"{number}.h5"), tiled("3x3"), options=options)
        except SourceError:  # none of four images
            continue
        shards.append(EmbeddingCache(report.cache))

    images = [{image_of(key) for key in shard.keys} for shard in shards]
    assert sum(map(len, images)) == len(set().union(*images)) == 4
    rows = {key: row.tobytes() for shard in shards for key, row in zip(shard.keys, shard.X[:], strict=True)}
    assert rows == {key: row.tobytes() for key, row in zip(whole.keys, whole.X[:], strict=True)}


def test_an_image_that_cannot_be_read_is_recorded_once_and_a_part_by_itself(photos, out, tmp_path):
    (photos / "bad.png").write_bytes(b"nothing")
    manifest = write_manifest(
        tmp_path / "m.csv", "photos/bad.png,0,0,9,9", "photos/bad.png,9,9,9,9", "photos/0.png,92,0,7,9",
        "photos/0.png,0,0,9,9", "photos/none.png,0,0,9,9", "photos/none.png,0,1,9,9",
    )  # fmt: skip
    first = embed(manifest, out, tiled("boxes"))

    again = run_embedding(manifest, out, tiled("boxes"))

    assert list(first.keys) == ["photos/0.png#xywh=0,0,9,9"]
    assert first.failures == again.failures == {
        "photos/0.png#xywh=92,0,7,9": "the part 92,0,7,9 lies outside of its 96 x 72 pixels",
        "photos/bad.png": "not an image in a known format (all 2 parts)",
        "photos/none.png": "cannot be read: No such file or directory",
    }  # fmt: skip
    assert not again.written and again.kept == 1
    write_manifest(manifest, "photos/0.png,0,0,9,9")
    assert run_embedding(manifest, out, tiled("boxes")).written and EmbeddingCache(out).failures == {}


def test_squares_of_small_and_damaged_images_are_recorded_when_they_are_listed(photos, out):
    (photos / "small.png").write_bytes(encode(Image.new("RGB", (96, 20))))
    embed(photos, out, tiled("40"))
    damaged = (photos / "0.png").read_bytes()[:20]
    (photos / "0.png").write_bytes(damaged)

    cache = embed(photos, out, tiled("40"))

    assert "smaller than a tile of 40" in cache.failures["small.png"]
    assert set(cache.failures) == {"small.png", "0.png"}
    assert "0.png" not in {image_of(key) for key in cache.keys}  # its former parts are gone as an image's row is


def test_boxes_that_are_none_and_other_tiles_are_refused_before_anything_is_written(photos, out, tmp_path):
    boxes = write_manifest(tmp_path / "m.csv", "photos/0.png,0,0,9,9")
    none = write_manifest(tmp_path / "none.csv", "photos/0.png,1_0,0,5,5")
    for source, tiles, told in (
        (none, "boxes", "not four numbers"),
        (photos, "boxes", "names no parts of images"),
        (boxes, "", "names parts of images, and the encoder takes "),
        (boxes, "3x3", "names parts of images, and the encoder takes tiles of 3x3"),
    ):
        with pytest.raises(SourceError, match=told):
            embed(source, out, tiled(tiles))
    assert not list(out.parent.iterdir())


def test_caches_of_parts_have_their_own_format_version_and_others_stay_as_they_were(photos, out):
    embed(photos, out, tiled("2x2"))
    embed(photos, out.with_name("whole.h5"), tiny_encoder())

    with h5py.File(out) as parts, h5py.File(out.with_name("whole.h5")) as whole:
        assert parts.attrs["version"] == 3 and b'"tiles":"2x2"' in parts.attrs["encoder"]
        assert whole.attrs["version"] == 2 and b"tiles" not in whole.attrs["encoder"]
    assert version_of(tiny_encoder().spec) == 2


def test_nothing_of_a_part_is_cropped_away():
    """What lies at a seam is whole in the input of a part that holds it."""
    encoder = load_encoder(tiles="2x2", device="cpu", precision="fp32", runtime="torch")
    picture = np.zeros((300, 400, 3), np.uint8)
    picture[:, -12:] = picture[-12:] = 255  # 3 and 4 % of it, where the usual crop takes 6 %

    pixels = encoder.preprocess(Image.fromarray(picture)).numpy()

    assert (encoder.spec.crop_pct, encoder.spec.crop_mode) == (1.0, "squash")
    assert pixels.shape == (224, 224, 3)
    assert (pixels[:, -3:] > 200).all() and (pixels[-5:] > 200).all() and (pixels[:200, :200] < 50).all()


@pytest.mark.parametrize("tiles", ["4x4", "8x8"])
def test_an_image_above_the_limit_is_read_at_the_scale_that_its_parts_bear(tmp_path, out, monkeypatch, tiles):
    """Of 480 x 480 pixels 240 x 240 can be decoded: parts of 120 keep 60 pixels, parts of 60 would keep 30 of 32."""
    monkeypatch.setattr(decoding, "MAX_PIXELS", 240 * 240)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    (tmp_path / "large").mkdir()
    gradient = np.add.outer(np.arange(480), np.arange(480)).astype(np.uint8)
    (tmp_path / "large" / "0.jpg").write_bytes(encode(Image.fromarray(gradient).convert("RGB"), "JPEG"))
    (tmp_path / "large" / "1.png").write_bytes(encode(Image.new("RGB", (480, 480))))
    (tmp_path / "large" / "2.png").write_bytes(encode(Image.new("RGB", (64, 64))))
    encoder = tiled(tiles, decoder=decoding.Decoding(large_images=True).decoder)

    report = run_embedding(tmp_path / "large", out, encoder)

    count = int(tiles[0]) ** 2
    assert "at most 57,600 are decoded" in report.failures["1.png"]
    assert report.rows == count * (1 + (tiles == "4x4")) and not report.partial
    if tiles == "8x8":
        reasons = [reason for key, reason in report.failures.items() if image_of(key) == "0.jpg"]
        assert len(reasons) == count and all("decoded at 1/2, at which the part" in reason for reason in reasons)


@pytest.mark.parametrize("tiles", ["", "2x2"])
def test_rows_of_images_whose_store_gives_no_answer_are_kept_until_it_does(photos, out, tiles):
    encoder, source = tiled(tiles) if tiles else tiny_encoder(), open_source(photos)
    before = embed(source, out, encoder)
    (photos / "1.png").unlink()
    scan, reasons = source.scan, {"1.png": "503", "new.png": "503"}
    source.scan = lambda: dataclasses.replace(scan(), failures=reasons, unanswered=frozenset(reasons))
    report = run_embedding(source, out, encoder, options=EmbedOptions(prune=True))

    assert report.failures == {"new.png": "503"} and report.computed == 0  # what has a row is no failure
    assert list(EmbeddingCache(out).keys) == list(before.keys)


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz", "parquet"])
def test_images_of_an_archive_are_read_once_and_not_at_all_where_nothing_is_new(photos, out, tmp_path, kind):
    pixels = np.random.default_rng(0).integers(0, 256, (400, 500, 3), np.uint8)
    exif = Image.Exif()
    exif[0x112] = 6
    for name, form in (("large.jpg", "JPEG"), ("late.png", "PNG")):  # more than a header
        (photos / name).write_bytes(encode(Image.fromarray(pixels), form, exif=exif))
    late = (photos / "late.png").read_bytes()  # its EXIF data after its pixels
    at = late.index(b"eXIf") - 4
    chunk = late[at : at + 12 + int.from_bytes(late[at : at + 4], "big")]
    (photos / "late.png").write_bytes(late.replace(chunk, b"").replace(late[-12:], chunk + late[-12:]))
    (photos / "small.png").write_bytes(encode(Image.new("RGB", (96, 20))))
    whole = embed(photos, out, tiled("40 overlap 8"))
    source = open_source(archive(tmp_path / f"a.{kind}", {file.name: file.read_bytes() for file in photos.iterdir()}))
    reads = Counter()

    taken = {"read": source.read, "head": source.head}

    def counted(of):
        return lambda key, *size: reads.update([(of, key)]) or taken[of](key, *size)

    source.read, source.head = counted("read"), counted("head")

    cache = embed(source, out.with_name("archive.h5"), tiled("40 overlap 8"))

    assert list(cache.keys) == list(whole.keys) and cache.failures == whole.failures
    np.testing.assert_array_equal(cache.X[:], whole.X[:])
    assert {image_of(key) for key in cache.keys} >= {"large.jpg", "late.png", "turned.png"}
    assert reads["read", "large.jpg"] == reads["read", "0.png"] == 1 or kind == "parquet"
    reads.clear()
    report = run_embedding(source, out.with_name("archive.h5"), tiled("40 overlap 8"))
    assert not report.written and set(reads) - {("read", "small.png")} == {("head", "small.png")}
