import json
import os
import shutil

import numpy as np
import pytest
import torch
from helpers.files import damage
from helpers.tiny import save_image
from PIL import Image

from pucache.errors import OutputError
from pucache.images.decoding import decode
from pucache.images.preprocessing import Preprocess
from pucache.images.source import open_source
from pucache.pretraining.augmentations import VIEWS
from pucache.pretraining.dataset import (
    MappedImages,
    Squash,
    decode_all,
    listing_digest,
    open_images,
)
from pucache.progress import Silent

pytestmark = pytest.mark.usefixtures("one_thread")

SIDE = 8


def squash(side=SIDE, interpolation="bilinear", views="natural"):
    return Squash(side, interpolation, VIEWS[views])


def opened(folder):
    source = open_source(folder)
    return source, source.scan()


def decoded(folder, run, *, workers=0, side=SIDE, **options):
    """Decode a folder of images into that of a run, and map them."""
    source, listing = opened(folder)
    run.mkdir(exist_ok=True)
    decode_all(source, listing, run, squash(side, **options), workers=workers, progress=Silent())
    return MappedImages(run, listing, side)


def all_of(images):
    (batch,) = images.batches([np.arange(len(images.keys))])
    return batch


def expected(path, side=SIDE, interpolation="bilinear"):
    config = {"input_size": (3, side, side), "interpolation": interpolation, "crop_pct": 1.0, "crop_mode": "squash"}
    preprocess = Preprocess(config, None)
    return preprocess(decode(path.read_bytes(), preprocess.sufficient_side))


@pytest.fixture
def odd_folder(tmp_path, image_folder):
    """Pictures of every mode, and three that cannot be used."""
    folder = image_folder(5)
    draw = np.random.default_rng(0)
    grey = draw.integers(0, 256, (30, 40), np.uint8)
    Image.fromarray(grey).save(folder / "grey.png")
    Image.fromarray(draw.integers(0, 65536, (30, 40), np.uint16)).save(folder / "deep.png")
    Image.fromarray(draw.integers(0, 256, (30, 40, 4), np.uint8), "RGBA").save(folder / "alpha.png")
    Image.fromarray(draw.integers(0, 256, (30, 40, 3), np.uint8)).quantize(16).save(folder / "palette.gif")
    Image.fromarray(draw.integers(0, 256, (300, 400, 3), np.uint8)).save(folder / "large.jpg")
    Image.fromarray(grey).resize((2000, 12)).save(folder / "wide.png")
    (folder / "a-text.png").write_text("no image\n")
    (folder / "cut.jpg").write_bytes((folder / "large.jpg").read_bytes()[:300])
    save_image(folder / "m-small.png", 1)
    Image.new("RGB", (3, 30)).save(folder / "m-small.png")
    return folder


UNUSABLE = ["a-text.png", "cut.jpg", "m-small.png"]


# --- decoded once --------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "interpolation"), [(0, "bicubic"), (2, "bilinear")])
def test_every_image_is_squashed_as_the_encoder_will_squash_it(odd_folder, tmp_path, workers, interpolation):
    images = decoded(odd_folder, tmp_path / "run", workers=workers, interpolation=interpolation)
    assert list(images.failures) == UNUSABLE
    assert images.keys == [key for key in opened(odd_folder)[1].keys if key not in UNUSABLE]
    for row, made in zip(images.keys, all_of(images), strict=True):
        assert torch.equal(made, expected(odd_folder / row, interpolation=interpolation)), row


def test_a_second_call_decodes_nothing(image_folder, tmp_path):
    folder = image_folder(5)
    before = all_of(decoded(folder, tmp_path / "run"))
    stamp = (tmp_path / "run/images.u8").stat()
    for path in folder.iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    assert torch.equal(all_of(decoded(folder, tmp_path / "run")), before)
    assert (tmp_path / "run/images.u8").stat() == stamp


def of_other_images(run):
    told = json.loads((run / "images.json").read_text())
    (run / "images.json").write_text(json.dumps(told | {"images": "0" * 64}))


SPOILED = {
    "cut short": lambda run: os.truncate(run / "images.u8", 5 * SIDE * SIDE * 3 - 1),
    "flipped": lambda run: damage(run / "images.u8"),
    "half a description": lambda run: os.truncate(run / "images.json", 20),
    "of other images": of_other_images,
}


@pytest.mark.parametrize("how", SPOILED)
def test_what_is_not_whole_is_decoded_again(image_folder, tmp_path, how):
    folder = image_folder(5)
    before = all_of(decoded(folder, tmp_path / "run"))
    SPOILED[how](tmp_path / "run")
    assert torch.equal(all_of(decoded(folder, tmp_path / "run")), before)


def test_a_full_disk_is_one_error_and_leaves_nothing_behind(image_folder, tmp_path, small_disk):
    folder = image_folder(20)
    with small_disk(2000), pytest.raises(OutputError, match=r"cannot write .*images\.u8: File too large") as caught:
        decoded(folder, tmp_path / "run")
    assert "\n" not in str(caught.value) and list((tmp_path / "run").iterdir()) == []


def test_a_disk_without_room_is_named_before_anything_is_decoded(image_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(0, 0, 10**8))
    source, listing = opened(image_folder(5))
    with pytest.raises(OutputError, match=r"^5 decoded images of 8 x 8 pixels need 1\.1 GB in .* 0\.1 GB are free"):
        open_images(source, listing, tmp_path / "run", squash(), workers=0, progress=Silent())
    assert not (tmp_path / "run" / "images.u8").exists()


# --- identity ------------------------------------------------------------------------------------


def test_the_identity_of_a_listing_is_its_keys_and_sizes(image_folder):
    folder = image_folder(3)
    first = listing_digest(opened(folder)[1])
    path = folder / "001.png"
    data = path.read_bytes()
    os.utime(path, (1, 1))
    assert listing_digest(opened(folder)[1]) == first, "not their times"
    seen = {first}
    for change in (
        lambda: path.write_bytes(data + b"\0"),
        lambda: path.rename(folder / "001b.png"),
        lambda: save_image(folder / "new.png", 9),
        lambda: (folder / "000.png").unlink(),
    ):
        change()
        seen.add(listing_digest(opened(folder)[1]))
    assert len(seen) == 5
