import numpy as np
import pytest
import torch
import torchvision
from helpers.pictures import encode, mutations
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from PIL import Image

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.embedding.embed import run_embedding
from pucache.embedding.plan import EmbedOptions
from pucache.encoders.encoder import load_encoder
from pucache.errors import ImageError
from pucache.images import device_decoding
from pucache.images.decoding import DECODER, DEVICE_DECODER, decode
from pucache.images.device_decoding import DeviceDecoder, device_can_decode
from pucache.images.preprocessing import MAX_ASPECT, Preprocess
from pucache.images.source import open_source

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:The image decoding and encoding capabilities:DeprecationWarning"),
]

CPU, SIDE = torch.device("cpu"), 32
PREPROCESS = Preprocess(
    {"input_size": (3, SIDE, SIDE), "interpolation": "bicubic", "crop_pct": 0.875, "crop_mode": "center"}, None
)


def picture(seed=0, size=(90, 70)):
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 4, 3), np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def jpeg(seed=0, mode="RGB", size=(90, 70), **options):
    return encode(picture(seed, size).convert(mode), "JPEG", **options)


def turned(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


WHOLE = jpeg()
SUITED = {
    "baseline": WHOLE,
    "progressive": jpeg(progressive=True),
    "grey": jpeg(mode="L"),
    "grey progressive": jpeg(mode="L", progressive=True),
    "without subsampling": jpeg(subsampling=0),
    "with restarts": jpeg(restart_marker_blocks=2),
    "upright by its EXIF": jpeg(exif=turned(1)),
    "with a profile and a comment": jpeg(icc_profile=bytes(300), comment=b"hello"),
    "followed by zeros": WHOLE + bytes(1000),
    "of one pixel": jpeg(size=(1, 1)),
    "narrow": jpeg(size=(1, MAX_ASPECT)),
}
UNSUITED = {
    "nothing": b"",
    "PNG": encode(picture()),
    "CMYK": jpeg(mode="CMYK"),
    "wide beyond use": jpeg(size=(MAX_ASPECT + 1, 1)),
    "tall beyond use": jpeg(size=(2, 2 * MAX_ASPECT + 1)),
    "followed by text": WHOLE + b"hello",
    "preceded by a zero": b"\0" + WHOLE,
    "the markers alone": b"\xff\xd8\xff\xd9",
    **{f"turned by {number}": jpeg(exif=turned(number)) for number in range(2, 9)},
}


@pytest.mark.parametrize("kind", SUITED)
def test_a_whole_upright_jpeg_is_for_the_device(kind):
    assert device_can_decode(SUITED[kind])


@pytest.mark.parametrize("kind", UNSUITED)
def test_anything_else_is_for_the_host(kind):
    assert not device_can_decode(UNSUITED[kind])


@pytest.mark.parametrize("progressive", [False, True])
@given(data=st.data())
def test_a_truncated_file_is_for_the_host(progressive, data):
    whole = jpeg(progressive=progressive)
    assert not device_can_decode(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(st.binary() | st.binary().map(lambda middle: b"\xff\xd8\xff" + middle + b"\xff\xd9"))
def test_garbage_is_for_the_host(data):
    assert device_can_decode(data) is False


@given(mutations(WHOLE))
def test_no_damage_makes_the_choice_fail(data):
    assert device_can_decode(data) in (True, False)


def test_more_pixels_than_are_decoded_at_all_is_for_the_host(monkeypatch):
    monkeypatch.setattr(device_decoding, "MAX_PIXELS", 90 * 70)
    assert device_can_decode(WHOLE)
    monkeypatch.setattr(device_decoding, "MAX_PIXELS", 90 * 70 - 1)
    assert not device_can_decode(WHOLE)


# --- decoding a batch --------------------------------------------------------------------------


def by_host(data):
    return PREPROCESS(decode(data)).numpy().astype(int)


def run(files):
    pixels, failures = DeviceDecoder(PREPROCESS, CPU)(files)
    assert pixels.dtype == torch.uint8 and pixels.shape == (len(files), SIDE, SIDE, 3) and pixels.is_contiguous()
    return pixels.numpy().astype(int), failures


def test_a_batch_has_the_pixels_of_the_host():
    pixels, failures = run(list(SUITED.values()))
    assert failures == {}
    for kind, row in zip(SUITED, pixels, strict=True):
        assert np.abs(row - by_host(SUITED[kind])).max() <= 2, kind


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(8, 200), st.integers(8, 200), st.booleans()), min_size=1, max_size=4
    )
)
def test_every_size_and_batch_gives_the_pixels_of_the_host(asked):
    files = [jpeg(seed, size=(width, height), progressive=p, quality=90) for seed, width, height, p in asked]
    pixels, failures = run(files)
    assert failures == {}
    for row, file in zip(pixels, files, strict=True):
        assert np.abs(row - by_host(file)).max() <= 2


def overwritten(whole, patch=b"\xff\xc4\x00\x03\xff"):
    """Damage in the middle of the scan, so that header and end look well."""
    middle = len(whole) // 2
    return whole[:middle] + patch + whole[middle + len(patch) :]


@pytest.mark.parametrize("place", range(3))
def test_a_damaged_file_costs_the_others_of_its_batch_nothing(place):
    good = [jpeg(1), jpeg(2, progressive=True)]
    broken = overwritten(jpeg(3, size=(300, 200)))
    files = [*good[:place], broken, *good[place:]]
    assert device_can_decode(broken), "nothing tells before it is decoded"
    with pytest.raises(ImageError) as reason:
        decode(broken)
    pixels, failures = run(files)
    assert failures == {place: str(reason.value)} and not pixels[place].any()
    for row, file in zip(np.delete(pixels, place, 0), good, strict=True):
        assert np.abs(row - by_host(file)).max() <= 2


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(mutations(WHOLE))
def test_whatever_happened_to_a_file_it_becomes_what_the_host_makes_of_it(data):
    data = WHOLE[:2] + data[2:-2] + WHOLE[-2:]
    assume(device_can_decode(data))
    try:
        expected, refused = by_host(data), {}
    except ImageError as error:
        expected, refused = 0, {0: str(error)}
    good = jpeg(1)
    pixels, failures = run([data, good])
    assert failures == refused
    assert np.abs(pixels[0] - expected).max() <= 2 and np.abs(pixels[1] - by_host(good)).max() <= 2


def test_what_the_device_fails_on_is_decoded_by_pillow(monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("nvjpeg: not supported")

    monkeypatch.setattr(torchvision.io, "decode_jpeg", fail)
    files = [jpeg(1), overwritten(jpeg(3, size=(300, 200))), encode(picture(2)), b"hello", jpeg(4, "CMYK")]
    pixels, failures = run(files)
    assert set(failures) == {1, 3} and failures[3] == "not an image in a known format"
    for number in (0, 2, 4):
        np.testing.assert_array_equal(pixels[number], by_host(files[number]))


# --- a whole run -------------------------------------------------------------------------------

SETTINGS = {"device": "cpu", "runtime": "torch", "precision": "fp32", "batch_size": 4}


@pytest.fixture(scope="module")
def encoders():
    return {decode: load_encoder(**SETTINGS, decode=decode) for decode in ("host", "device")}


@pytest.fixture
def mixed(tmp_path):
    """JPEG, PNG, and files that look like either and are broken."""
    folder = tmp_path / "images"
    folder.mkdir()
    files = {f"{number}.jpg": jpeg(number, size=(230, 170), progressive=number % 2) for number in range(5)}
    files |= {"grey.jpg": jpeg(5, "L"), "cmyk.jpg": jpeg(6, "CMYK"), "turned.jpg": jpeg(7, exif=turned(6))}
    files |= {"8.png": encode(picture(8)), "really.jpg": encode(picture(9)), "same.jpg": jpeg(0, size=(230, 170))}
    files |= {"cut.jpg": WHOLE[:-400], "damaged.jpg": overwritten(jpeg(3, size=(300, 200)))}
    files |= {"empty.jpg": b"", "text.jpg": b"hello", "narrow.jpg": jpeg(size=(1, MAX_ASPECT + 1))}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def cosines(a, b):
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def test_a_folder_gives_the_same_cache_wherever_it_is_decoded(encoders, mixed, tmp_path):
    written, reports = {}, {}
    for place, encoder in encoders.items():
        path = tmp_path / f"{place}.h5"
        reports[place] = run_embedding(
            open_source(mixed), path, encoder, workers=0, options=EmbedOptions(dtype="float32")
        )
        written[place] = EmbeddingCache(path)
    host, device = written["host"], written["device"]
    assert list(host.keys) == list(device.keys) and len(host.keys) == 11
    assert reports["host"].failures == reports["device"].failures and len(reports["host"].failures) == 5
    assert reports["host"].computed == reports["device"].computed
    assert cosines(host.X, device.X).min() > 0.999
    assert "decoding on the device" in reports["device"].profile.seconds
    assert "decoding on the device" not in reports["host"].profile.seconds


def test_where_files_are_decoded_is_part_of_the_encoders_identity(encoders):
    host, device = encoders["host"].spec, encoders["device"].spec
    assert host.differences(device) == ["decoder"]
    assert (host.decoder, device.decoder) == (DECODER, DEVICE_DECODER)
    assert encoders["host"].decoder is None


def test_auto_decodes_where_the_earlier_encoder_did(encoders):
    for encoder in encoders.values():
        assert load_encoder(**SETTINGS, like=encoder.spec).spec == encoder.spec
    assert load_encoder(**SETTINGS).spec == encoders["host"].spec
    chosen = load_encoder(**SETTINGS, decode="host", like=encoders["device"].spec)
    assert chosen.spec == encoders["host"].spec, "what is asked for counts more"


def test_an_unknown_place_to_decode_is_refused():
    with pytest.raises(ValueError, match="unknown place to decode 'gpu'; use auto, host or device"):
        load_encoder(**SETTINGS, decode="gpu")
