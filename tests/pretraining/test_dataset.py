import itertools
import json
import math
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.files import damage
from PIL import Image
from torch.nn.functional import grid_sample
from torchvision.transforms.v2 import functional as tv

from pucache import open_source
from pucache.errors import OutputError
from pucache.images.decoding import decode
from pucache.images.preprocessing import Preprocess
from pucache.pretraining.augmentations import _RANDOM_NAMES, N_RANDOM, VIEWS, Augment, View, random_numbers
from pucache.pretraining.dataset import MappedImages, Squash, decode_all, listing_digest, open_images
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


def test_a_full_disk_is_one_error_and_leaves_nothing_behind(image_folder, tmp_path, small_disk):
    folder = image_folder(20)
    with small_disk(2000), pytest.raises(OutputError, match=r"cannot write .*images\.u8: File too large") as caught:
        decoded(folder, tmp_path / "run")
    assert "\n" not in str(caught.value) and list((tmp_path / "run").iterdir()) == []


def test_a_disk_without_room_is_named_before_anything_is_decoded(image_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(0, 0, 10**8))
    source, listing = opened(image_folder(5))
    with pytest.raises(OutputError, match=r"^5 decoded .* 1\.1 GB to spare, need 1\.1 GB in .* has 0\.1 GB"):
        open_images(source, listing, tmp_path / "run", squash(), workers=0, progress=Silent())
    assert not (tmp_path / "run" / "images.u8").exists()


# --- identity ------------------------------------------------------------------------------------


def test_the_identity_of_a_listing_is_its_keys_and_sizes(image_folder):
    folder = image_folder(3)
    first = listing_digest(opened(folder)[1])
    os.utime(folder / "001.png", (1, 1))
    assert listing_digest(opened(folder)[1]) == first, "not their times"
    (folder / "001.png").write_bytes(bytes(7))
    second = listing_digest(opened(folder)[1])
    (folder / "001.png").rename(folder / "001b.png")
    assert len({first, second, listing_digest(opened(folder)[1])}) == 3


# --- augmentations --------------------------------------------------------------------------------

NOTHING = View((1.0, 1.0), ratio=1.0, flip=0, jitter=0, grey=0)
NEARLY_1 = math.nextafter(1, 0)


def noise(b=1, D=32, low=0, high=256, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(low, high, (b, D, D, 3), np.uint8))


def drawn(b=1, **values):
    """One view an image, of these numbers; one half where none is given."""
    rows = torch.full((b, 1, N_RANDOM), 0.5)
    for name, value in values.items():
        rows[:, 0, _RANDOM_NAMES.index(name)] = torch.as_tensor(value, dtype=torch.float32).clamp_max(1 - 2**-24)
    return rows


def one(images, view, rows, size=None):
    return Augment([view], size or images.shape[1])(images, rows)[0]


def floats(images):
    return images.permute(0, 3, 1, 2) / 255


def close(got, expected, tolerance=2e-6):
    torch.testing.assert_close(got, expected, rtol=0, atol=tolerance)


# --- geometry ----------------------------------------------------------------------------------


def box(area, ratio, left, top, widest):
    """Left, top, width and height of a crop that is drawn, as shares of the image, as the formulas have it."""
    ratio = min(1 / area, widest) ** (2 * ratio - 1)
    width, height = math.sqrt(area * ratio), math.sqrt(area / ratio)
    return left * (1 - width), top * (1 - height), width, height


@pytest.mark.parametrize("size", [6, 16, 40, 100])
@pytest.mark.parametrize("area", [0.08, 0.3, 0.9])
@pytest.mark.parametrize(("ratio", "left", "top"), [(0.5, 0, 0), (0, 1, 0.3), (NEARLY_1, 0.7, NEARLY_1)])
def test_a_crop_is_that_of_pillow_and_of_grid_sample_where_it_grows(size, area, ratio, left, top):
    D, images = 40, noise(1, 40)
    view = replace(NOTHING, area=(area, area), ratio=4 / 3)
    got = one(images, view, drawn(ratio=ratio, left=left, top=top), size)
    x, y, width, height = box(area, ratio, left, top, 4 / 3)
    channels = [Image.fromarray(channel.numpy()) for channel in floats(images)[0]]
    corners = (D * x, D * y, D * (x + width), D * (y + height))
    within = tuple(min(max(0.0, at), float(D)) for at in corners)
    expected = [np.asarray(one.resize((size, size), Image.Resampling.BILINEAR, box=within)) for one in channels]
    close(got[0], torch.from_numpy(np.stack(expected)), 2e-5)
    if D * max(width, height) < size:
        affine = torch.tensor([[width, 0, 2 * x + width - 1], [0, height, 2 * y + height - 1]])[None]
        grid = torch.nn.functional.affine_grid(affine, [1, 3, size, size], align_corners=False)
        expected = grid_sample(floats(images), grid, padding_mode="border", align_corners=False)
        close(got, expected, 2e-5)


@pytest.mark.parametrize(("D", "size"), [(32, 32), (32, 8), (24, 40)])
def test_flips_and_transposition_are_exact(D, size):
    images = noise(2, D)
    straight = one(images, NOTHING, drawn(2), size)
    for name, turned in {
        "flip": straight.flip(3),
        "turn_over": straight.flip(2),
        "transpose": straight.transpose(2, 3),
    }.items():
        got = one(images, replace(NOTHING, **{name: 1}), drawn(2), size)
        close(got, turned, 0 if size == D else 1e-5)
        assert torch.equal(one(images, replace(NOTHING, **{name: 0.5}), drawn(2, **{name: 0.5}), size), straight)
        assert torch.equal(one(images, replace(NOTHING, **{name: 0.5}), drawn(2, **{name: 0.49}), size), got)


# --- blur --------------------------------------------------------------------------------------


@pytest.mark.parametrize("pixels", [0.4, 1.0, 2.5])
def test_a_blur_is_that_of_torchvision_away_from_the_edge(pixels):
    size, edge = 64, 15
    images = noise(2, size)
    view = replace(NOTHING, blur=0.5, sigma=(0.1 * 224 / size, pixels * 224 / size))
    got = one(images, view, drawn(2, blur=[0.2, 0.8], sigma=1))
    expected = tv.gaussian_blur(floats(images), [2 * edge + 1] * 2, [pixels] * 2)
    close(got[:1, :, edge:-edge, edge:-edge], expected[:1, :, edge:-edge, edge:-edge], 5e-6)
    close(got[1], floats(images)[1])


# --- colours -----------------------------------------------------------------------------------

MILD = View(
    (1.0, 1.0), ratio=1.0, flip=0, jitter=1, brightness=0.2, contrast=0.2, saturation=0.2, hue=0, grey=0
)  # nothing is clipped in images from 0.35 to 0.65
OF_TORCHVISION = 1e-4  # it has 0.2989 for the share of red


def mild(b=1):
    return noise(b, 12, 90, 166)


def turned(x, angle):
    """x, (3, H, W), with its hue turned: luma stays, and the chroma plane of YIQ is rotated."""
    to = np.array([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
    y, i, q = np.einsum("ij,jhw->ihw", to, x.double().numpy())
    i, q = i * math.cos(angle) - q * math.sin(angle), i * math.sin(angle) + q * math.cos(angle)
    return torch.from_numpy(np.einsum("ij,jhw->ihw", np.linalg.inv(to), np.stack([y, i, q]))).float()


def test_four_changes_of_colour_are_those_of_torchvision_in_any_order():
    """Where nothing is clipped, they commute; the hue is turned by the formulas of YIQ, as torchvision's HSV is not."""
    changes = {
        "brightness": lambda x: tv.adjust_brightness(x, 1.16),
        "contrast": lambda x: tv.adjust_contrast(x, 0.82),
        "saturation": lambda x: tv.adjust_saturation(x, 0.86),
        "hue": lambda x: turned(x, 2 * math.pi * 0.06),
    }
    rows = drawn(brightness=0.9, contrast=0.05, saturation=0.15, hue=0.8)
    got = one(mild(), replace(MILD, hue=0.1), rows)[0]
    for order in itertools.permutations(changes):
        x = floats(mild())[0]
        for name in order:
            x = changes[name](x)
        close(got, x, OF_TORCHVISION)


def test_contrast_goes_towards_the_grey_of_the_crop_not_of_the_image():
    half = torch.cat([torch.full((1, 32, 16, 3), 100), torch.full((1, 32, 16, 3), 150)], 2).to(torch.uint8)
    view = replace(MILD, area=(0.16, 0.16), brightness=0, saturation=0, contrast=1.0)
    close(one(half, view, drawn(contrast=0, left=0), 8), torch.full((1, 3, 8, 8), 100 / 255))
    close(one(half, view, drawn(contrast=0, left=1), 8), torch.full((1, 3, 8, 8), 150 / 255))


def test_grey_is_that_of_torchvision_and_the_last_of_the_colours():
    got = one(mild(2), replace(NOTHING, grey=0.5), drawn(2, grey=[0.49, 0.5]))
    close(got[:1], tv.rgb_to_grayscale(floats(mild(2))[:1], 3), OF_TORCHVISION)
    close(got[1], floats(mild(2))[1], 0)
    both = one(mild(), replace(MILD, hue=0.5, grey=1), drawn(hue=0.1, saturation=1, brightness=0.7))
    assert float(both.std(1).max()) < 1e-6


def test_solarize_is_that_of_torchvision():
    images = noise(2)
    got = one(images, replace(NOTHING, solarize=0.5), drawn(2, solarize=[0.49, 0.5]))
    close(got[0], tv.solarize(floats(images)[0], 0.5), 0)
    close(got[1], floats(images)[1], 0)


# --- a view depends on its image and its numbers -----------------------------------------------


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_depends_on_its_image_and_its_numbers_alone(name):
    images, rows, augment = noise(6, 36), random_numbers(1, 2, images=6, views=2), Augment(VIEWS[name], 44)
    together = augment(images, rows)
    assert together.shape == (2, 6, 3, 44, 44) and together.dtype == torch.float32
    order = torch.tensor([4, 1, 5, 0, 3, 2])
    close(augment(images[order], rows[order]), together[:, order], 1e-6)
    chunks = [augment(*part) for part in zip(images.split(4), rows.split(4), strict=True)]
    close(torch.cat(chunks, 1), together, 1e-6)
    for number in range(6):
        close(augment(images[number : number + 1], rows[number : number + 1])[:, 0], together[:, number], 1e-6)
    assert torch.equal(augment(images, rows), together)


def test_the_same_seed_and_step_draw_the_same_and_others_do_not():
    draws = [random_numbers(seed, step, images=4, views=2) for seed in range(20) for step in range(20)]
    assert draws[0].shape == (4, 2, N_RANDOM) and draws[0].dtype == torch.float32
    assert len({numbers.numpy().tobytes() for numbers in draws}) == 400
    torch.manual_seed(1)
    assert torch.equal(random_numbers(3, 5, images=4, views=2), draws[3 * 20 + 5])


# --- decoded before --------------------------------------------------------------------------------


def of_other_images(run):
    told = json.loads((run / "images.json").read_text())
    (run / "images.json").write_text(json.dumps(told | {"images": "0" * 64}))


SPOILED = {
    "not at all": lambda run: None,
    "cut short": lambda run: os.truncate(run / "images.u8", 5 * SIDE * SIDE * 3 - 1),
    "flipped": lambda run: damage(run / "images.u8"),
    "half a description": lambda run: os.truncate(run / "images.json", 20),
    "of other images": of_other_images,
}


@pytest.mark.parametrize("how", SPOILED)
def test_what_is_not_whole_is_decoded_again_and_nothing_else(image_folder, tmp_path, how):
    folder, run = image_folder(5), tmp_path / "run"
    before = all_of(decoded(folder, run))
    SPOILED[how](run)
    stamp = (run / "images.u8").stat()
    assert torch.equal(all_of(decoded(folder, run)), before)
    assert ((run / "images.u8").stat() == stamp) == (how == "not at all")
