from functools import cache

import numpy as np
import pytest
import timm
import torch
from helpers.pictures import encode
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_sample_images

from pucache.errors import ImageError
from pucache.images.decoding import decode
from pucache.images.preprocessing import MAX_ASPECT, Preprocess

pytestmark = pytest.mark.usefixtures("one_thread")


def config(size=224, crop_pct=0.875, mode="center", interpolation="bicubic", width=None):
    return {
        "input_size": (3, size, width or size),
        "interpolation": interpolation,
        "mean": (0.5,) * 3,
        "std": (0.5,) * 3,
        "crop_pct": crop_pct,
        "crop_mode": mode,
    }


FAST = {
    "center bicubic": config(),
    "center bilinear": config(96, 1.0, interpolation="bilinear"),
    "center odd": config(95, 0.9, interpolation="bilinear"),
    "squash to an oblong": config(48, 0.9, "squash", width=80),
    "a crop beyond the image": config(92, 1.15),
    "a squash beyond the image": config(92, 1.15, "squash"),
}
OTHER = {
    "border": config(64, 0.9, "border"),
    "lanczos": config(64, interpolation="lanczos"),
    "oblong with a crop": config(48, 0.875, width=80),
}


@cache
def made(name):
    """Ours and timm's."""
    named = {**FAST, **OTHER}[name]
    transform = timm.data.create_transform(**named, is_training=False, normalize=False)
    return Preprocess(named, transform), transform


@cache
def coarse(seed):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (6, 5, 3), np.uint8))


def smooth(width, height, seed=0):
    return coarse(seed).resize((width, height), Image.Resampling.BICUBIC)


def both(name, image):
    ours, timms = made(name)
    found, expected = ours(image), timms(image).permute(1, 2, 0)
    assert found.dtype == expected.dtype == torch.uint8 and found.shape == (*ours.input_size, 3)
    return found, expected


@pytest.mark.parametrize("name", FAST)
@settings(max_examples=15)
@given(width=st.integers(1, 700), height=st.integers(1, 700), seed=st.integers(0, 9))
@example(1, 1, 0).via("a single pixel")
@example(700, 176, 0).via("wide")
def test_the_fast_way_is_within_two_grey_levels_of_timms(name, width, height, seed):
    assume(max(width, height) <= 4 * min(width, height))
    found, expected = both(name, smooth(width, height, seed))
    off = (found.int() - expected.int()).abs()
    assert off.max() <= 2 and off.float().mean() < 0.25, "rounding, on slopes this gentle by a level"


@pytest.mark.parametrize("name", OTHER)
@settings(max_examples=8)
@given(width=st.integers(1, 700), height=st.integers(1, 700), seed=st.integers(0, 9))
def test_everything_else_is_timms_to_the_bit(name, width, height, seed):
    assume(max(width, height) <= 20 * min(width, height))
    assert torch.equal(*both(name, smooth(width, height, seed)))


@pytest.mark.parametrize("name", ["center bicubic", "border"])
@pytest.mark.parametrize(("width", "height"), [(1, MAX_ASPECT + 1), (2 * MAX_ASPECT + 1, 2)])
def test_too_narrow_an_image_is_refused(name, width, height):
    with pytest.raises(ImageError, match=rf"^{width} x {height} pixels; one side is more than {MAX_ASPECT} times"):
        made(name)[0](Image.new("RGB", (width, height)))


# --- as much of a JPEG as is needed ------------------------------------------------------------

SIZES = {"wide": (2000, 1504), "odd": (1201, 1999)}


@cache
def photo(size):
    """The sample photos, tiled to a large one."""
    row = np.concatenate(load_sample_images().images, 1)
    return Image.fromarray(np.tile(row, (5, 2, 1))).crop((0, 0, *SIZES[size]))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("name", ["center bicubic", "center bilinear", "squash to an oblong"])
def test_a_large_jpeg_is_decoded_no_larger_than_it_makes_a_difference(name, mode, size):
    ours = made(name)[0]
    data = encode(photo(size).convert(mode), "JPEG", quality=90)
    whole, enough = decode(data), decode(data, ours.sufficient_side)
    assert whole.size == SIZES[size] and enough.mode == "RGB"
    assert ours.sufficient_side <= min(enough.size) < min(whole.size)
    assert min(enough.size) <= 2 * ours.sufficient_side or min(enough.size) == -(-min(whole.size) // 8)
    expected = ours(whole).float()
    off = (ours(enough).float() - expected).abs().mean()
    assert off < (expected[1:] - expected[:-1]).abs().mean() / 2, "moved by less than half a pixel"
    assert size == "odd" or off < 1.2


def test_orientation_holds_at_any_scale():
    exif = Image.Exif()
    exif[0x0112] = 6
    found = decode(encode(photo("wide"), "JPEG", exif=exif), 400)
    assert found.size == (752, 1000)
