"""Encoders on a device that is emulated: embeddings are those of the CPU, and a batch waits once for the device."""

import contextlib
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import timm
import torch
import torchvision
from helpers.emulated_cuda import emulated_cuda
from helpers.pictures import encode
from helpers.tiny import HALF, SIDE, save_image, tiny_encoder
from PIL import Image

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.embedding.embed import run_embedding
from pucache.embedding.plan import EmbedOptions
from pucache.encoders.encoder import Encoder
from pucache.encoders.inference import Runtime
from pucache.errors import EncoderError
from pucache.images import device_decoding
from pucache.images.decoding import DEVICE_DECODER
from pucache.images.device_decoding import DeviceDecoder
from pucache.images.preprocessing import Preprocess
from pucache.images.source import open_source

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, on which test_gpu.py runs"),
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:The image decoding and encoding capabilities:DeprecationWarning"),
]

CPU, CUDA, BATCH = torch.device("cpu"), torch.device("cuda"), 8
PREPROCESS = Preprocess(
    {"input_size": (3, SIDE, SIDE), "interpolation": "bicubic", "crop_pct": 0.875, "crop_mode": "center"}, None
)


def plain():
    torch.manual_seed(0)
    convolution = torch.nn.Conv2d(3, 8, 5, stride=4)
    return torch.nn.Sequential(convolution, torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())


def resnet():
    torch.manual_seed(0)
    return timm.create_model("test_resnet", num_classes=0)


def runtime(network, device, precision="fp32", name="torch", batch_size=BATCH):
    settings = {"device": device, "precision": precision, "runtime": name, "batch_size": batch_size}
    return Runtime(network, HALF, HALF, input_size=(SIDE, SIDE), **settings)


def pixels(count=4 * BATCH):
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (count, SIDE, SIDE, 3), np.uint8))


# --- passes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("network", [plain, resnet])
def test_embeddings_are_those_of_the_cpu(network, precision):
    expected = runtime(network(), CPU)(pixels())
    with emulated_cuda(as_cpu=True):
        run = runtime(network(), CUDA, precision)
        X = run(pixels())
    np.testing.assert_allclose(X, expected, atol=2e-2 * np.abs(expected).max())
    assert run.cosine is None if precision == "fp32" else run.cosine > 0.99


@pytest.mark.parametrize("decoded_on", [CPU, CUDA])
def test_a_batch_waits_once(decoded_on):
    with emulated_cuda(as_cpu=True) as device:
        run = runtime(plain(), CUDA, "fp16")
        run(pixels(BATCH))  # starts, and compares with float32
        images = pixels(5 * BATCH - 1).to(decoded_on)
        device.counts.clear()
        run(images)
        assert device.counts.waited <= 5, str(device.counts)


def test_joined_pixels_go_up_without_another_copy():
    pieces = pixels(BATCH).split(3)
    with emulated_cuda(as_cpu=True) as device:
        run = runtime(plain(), CUDA)
        run.start()
        batch = run.joined(pieces)
        assert batch.is_pinned() and torch.equal(batch, pixels(BATCH))
        staged = run._cuda._stream_and_staging(BATCH)[1].fill_(7)
        device.counts.clear()
        X = run(batch)
        assert device.counts.waited == 1 and (staged == 7).all()
        np.testing.assert_array_equal(run(pixels(BATCH)), X)
        assert not (staged == 7).all()


class Watched(torch.nn.Module):
    """Averages each channel, and remembers the batches that came and how cuDNN was set."""

    def __init__(self, room=1 << 20):
        super().__init__()
        self.room, self.seen = room, []

    def __deepcopy__(self, memo):
        twin = Watched(self.room)
        twin.seen = self.seen
        return twin

    def forward(self, x):
        self.seen.append((len(x), torch.backends.cudnn.benchmark))
        if len(x) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")
        return x.mean((2, 3))


def test_cudnn_times_its_kernels_for_batches_of_the_one_shape_alone(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    network = Watched()
    with emulated_cuda(as_cpu=True):
        run = runtime(network, CUDA, "fp16", batch_size=None)
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(run, [pixels(20)] * 6))
    assert run.batch_size == 512
    assert {timed for size, timed in network.seen if size == 512} == {True}
    measured = [timed for size, timed in network.seen if size in (8, 16)]
    assert len(measured) >= 3 and not any(measured[:3])
    assert torch.backends.cudnn.benchmark is False


@pytest.fixture
def compilations(monkeypatch):
    """The kinds of tensors that torch would compile for, one by one."""
    kinds = []

    def compile(model, **options):
        def run(batch):
            kind = (tuple(batch.shape), batch.dtype, batch.device.type, batch.is_inference(), torch.is_grad_enabled())
            if kind not in kinds:
                kinds.append(kind)
            return model(batch)

        return run

    monkeypatch.setattr(torch, "compile", compile)
    return kinds


def test_a_compiled_runtime_compiles_once(compilations):
    with emulated_cuda(as_cpu=True):
        run = runtime(plain(), CUDA, "fp16", "compile")
        X = run(pixels(3))
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(run, [pixels(BATCH), pixels(20), pixels(1).to(CUDA)]))
    np.testing.assert_allclose(X, runtime(plain(), CPU)(pixels(3)), atol=1e-2)
    assert len(compilations) == 1, compilations


def test_a_batch_that_is_too_large_to_begin_with_is_halved(compilations, caplog):
    with emulated_cuda(as_cpu=True):
        run = runtime(Watched(room=3), CUDA, "fp16", "compile")
        run.start()
    assert run.batch_size == 2
    assert "out of memory on cuda with batches of 8; going on with batches of 4 (--batch-size" in caplog.text


# --- decoding on the device --------------------------------------------------------------------


def jpeg(seed=0, size=(90, 70), **options):
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 4, 3), np.uint8)
    return encode(Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC), "JPEG", **options)


def damaged(whole, patch=b"\xff\xc4\x00\x03\xff"):
    middle = len(whole) // 2
    return whole[:middle] + patch + whole[middle + len(patch) :]


FILES = [jpeg(number, size=(60 + number, 90 - number // 2)) for number in range(70)]


@pytest.fixture
def nvjpeg(monkeypatch):
    """torchvision's decoder of the device; the list of batches that it was given."""
    decode_jpeg, given = torchvision.io.decode_jpeg, []

    def decode(files, *, mode, device):
        given.append(len(files))
        images = decode_jpeg(files, mode=mode, device="cpu")
        return [
            image.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else image for image in images
        ]

    monkeypatch.setattr(torchvision.io, "decode_jpeg", decode)
    return given


def decoded(files):
    """Pixels and failures on the emulated device, and its counts."""
    with emulated_cuda(as_cpu=True) as device:
        images, failures = DeviceDecoder(PREPROCESS, CUDA)(files)
        counts = device.counts
        waited = counts.waited
        assert images.device.type == "cuda"
        return images.cpu().numpy().astype(int), failures, waited, counts


def assert_decoded(files, budget):
    expected, expected_failures = DeviceDecoder(PREPROCESS, CPU)(files)
    images, failures, waited, counts = decoded(files)
    assert failures == expected_failures
    assert np.abs(images - expected.numpy()).max() <= 2
    assert waited <= budget, str(counts)
    assert not any(what == "torch.cuda.synchronize" for what, _ in counts.waits), str(counts)


def test_a_batch_of_files_waits_once_and_for_its_own_stream(nvjpeg):
    assert_decoded(FILES, budget=1)
    assert nvjpeg == [32, 32, 6] * 2


def test_files_that_would_fill_the_memory_are_waited_for_in_between(nvjpeg, monkeypatch):
    monkeypatch.setattr(device_decoding, "_MOST_DECODED_BYTES", 1000)
    assert_decoded(FILES, budget=3)


def test_decoded_files_are_kept_until_the_device_has_read_them(nvjpeg, monkeypatch):
    monkeypatch.setattr(device_decoding, "_MOST_DECODED_BYTES", 1000)
    decode_jpeg, resize, current, happened = torchvision.io.decode_jpeg, PREPROCESS.resize, [], []

    def decode(files, **options):
        happened.append(("decoded", current[-1]))
        images = decode_jpeg(files, **options)
        for image in images:
            weakref.finalize(image, happened.append, "freed")
        return images

    @contextlib.contextmanager
    def stream(entered):
        current.append(entered)
        yield
        current.pop()

    monkeypatch.setattr(torchvision.io, "decode_jpeg", decode)
    monkeypatch.setattr(PREPROCESS, "resize", lambda image: happened.append(("resized", current[-1])) or resize(image))
    with emulated_cuda(as_cpu=True), monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "stream", stream)
        patch.setattr(torch.cuda.Stream, "synchronize", lambda self: happened.append(("waited", self)))
        DeviceDecoder(PREPROCESS, CUDA)(FILES[:40])
    (_, decoding), (_, resizing) = happened[:2]
    assert decoding is not resizing
    ordered = [[("decoded", decoding), *[("resized", resizing)] * count, ("waited", resizing)] for count in (32, 8)]
    assert [what for what in happened if what != "freed"] == ordered[0] + ordered[1]
    waits = [number for number, what in enumerate(happened) if what == ("waited", resizing)]
    freed = [happened[:wait].count("freed") for wait in waits]
    assert freed[0] == 0 and freed[1] <= 32 and happened.count("freed") == 40


def test_a_damaged_file_costs_no_further_wait(nvjpeg):
    assert_decoded([*FILES[:3], damaged(jpeg(3, size=(300, 200))), *FILES[3:9]], budget=1)


def test_what_the_device_cannot_decode_pillow_does_without_a_further_wait(nvjpeg, monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("nvjpeg: not supported")

    monkeypatch.setattr(torchvision.io, "decode_jpeg", fail)
    assert_decoded(FILES[:5], budget=1)


def test_a_batch_whose_pixels_do_not_fit_is_refused_with_the_way_out(monkeypatch):
    def fail(*arguments, **options):
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")

    with emulated_cuda(as_cpu=True), monkeypatch.context() as patch:
        patch.setattr(torch, "zeros", fail)
        with pytest.raises(
            EncoderError, match=r"^out of memory on cuda for the pixels of 5 images; use --batch-size 2 "
        ):
            DeviceDecoder(PREPROCESS, CUDA)(FILES[:5])


# --- whole runs --------------------------------------------------------------------------------


def encoder(device, decode):
    """The tiny encoder on a device."""
    made = tiny_encoder()
    spec = made.spec.__class__(
        **(vars(made.spec) | {"decoder": DEVICE_DECODER if decode == "device" else made.spec.decoder})
    )
    decoder = DeviceDecoder(made.preprocess, device) if decode == "device" else None
    return Encoder(spec, made.preprocess, runtime(plain(), device), decoder)


@pytest.mark.parametrize("decode", ["host", "device"])
def test_a_folder_gives_the_cache_of_the_cpu(decode, nvjpeg, tmp_path):
    folder = tmp_path / "images"
    for number in range(20):
        save_image(folder / f"{number:02}.{'jpg' if number % 3 else 'png'}", number)
    (folder / "broken.jpg").write_bytes(b"hello")
    options = EmbedOptions(dtype="float32")

    def embedded(encoder, path):
        report = run_embedding(open_source(folder), path, encoder, workers=0, options=options)
        return np.asarray(EmbeddingCache(path).X), report.failures

    expected, failures = embedded(encoder(CPU, decode), tmp_path / "cpu.h5")
    on_device = encoder(CUDA, decode)
    with emulated_cuda(as_cpu=True) as device:
        X, failures_there = embedded(on_device, tmp_path / "cuda.h5")
        waits = [what for what, line in device.counts.waits.elements() if "device_decoding" in line]
    assert failures_there == failures and list(failures) == ["broken.jpg"]
    np.testing.assert_allclose(X, expected, atol=2e-2)
    assert waits == ["stream"] * (decode == "device") * 2  # 13 files in batches of 8
