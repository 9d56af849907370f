import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import timm
import torch
from helpers.hangs import HANG_SECONDS
from helpers.refusals import one_line
from helpers.slow import slow
from sklearn.metrics.pairwise import paired_cosine_distances
from torch import nn

from pucache import load_encoder
from pucache.encoders.inference import Runtime, fold_batch_norm
from pucache.errors import EncoderError

pytestmark = pytest.mark.usefixtures("one_thread")

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
MEAN, STD, BATCH, SIZE = (0.1, 0.5, 0.9), (0.2, 0.25, 0.5), 4, (5, 7)


def runtime(model, precision="fp32", name="torch"):
    settings = {"input_size": SIZE, "device": CPU, "precision": precision, "runtime": name, "batch_size": BATCH}
    return Runtime(model, MEAN, STD, **settings)


def pixels(count, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (count, *SIZE, 3), np.uint8))


class Greedy(torch.nn.Module):
    """Has memory for so many images at once."""

    def __init__(self, room):
        super().__init__()
        self.room = room

    def forward(self, x):
        if len(x) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")
        return x.mean((2, 3))


@pytest.mark.parametrize("room, size", [(3, 2), (1, 1)])
def test_running_out_of_memory_halves_the_batch_and_loses_no_row(room, size, caplog):
    run = runtime(Greedy(room))
    batch = pixels(11)
    np.testing.assert_array_equal(run(batch), runtime(Greedy(99))(batch))
    assert run.batch_size == size and f"going on with batches of {size}" in caplog.text


def test_no_memory_for_a_single_image_is_an_error():
    with pytest.raises(EncoderError, match=r"^out of memory on cpu with a single image; "):
        runtime(Greedy(0))(pixels(3))


# --- several at once, and what a faster path costs ---------------------------------------------


def network(seed=0):
    """A convolution with its batch norm, and a vector of six."""
    torch.manual_seed(seed)
    norm = torch.nn.BatchNorm2d(6)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 6, 3), norm, torch.nn.Flatten(), torch.nn.Linear(6 * 3 * 5, 6)).eval()


def plain(model, batch):
    """What torch alone gives."""
    x = (batch.permute(0, 3, 1, 2) / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    with torch.inference_mode():
        return model(x).numpy()


@pytest.mark.parametrize("name", ["torch", "openvino"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_threads_at_once_get_the_rows_of_one_after_the_other(name, precision):
    if name == "openvino":
        pytest.importorskip("openvino")
    batches = [pixels(1 + seed % (2 * BATCH), seed) for seed in range(24)]
    alone = runtime(network(), precision, name)
    expected = [alone(batch) for batch in batches]
    shared, begin = runtime(network(), precision, name), threading.Barrier(4, timeout=HANG_SECONDS)

    def work(number):
        shared.enter_thread()
        begin.wait()
        return [shared(batch) for batch in batches[number::4]]

    threads = torch.get_num_threads()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, range(4)))
    torch.set_num_threads(threads)
    for number, batch in enumerate(expected):
        np.testing.assert_array_equal(found[number % 4][number // 4], batch)
    assert (shared.cosine is None) == (alone.cosine is None)


def test_another_precision_is_compared_once_with_float32(caplog):
    run = runtime(network(), "bf16")
    X = run(pixels(BATCH))
    expected = 1 - paired_cosine_distances(X, plain(network(), pixels(BATCH))).max()
    assert run.cosine == pytest.approx(expected, abs=1e-5) and 0.999 < run.cosine < 1.00001
    kept = run.cosine
    run(pixels(BATCH, seed=1))
    assert run.cosine == kept and not caplog.records


class ByType(torch.nn.Module):
    """Gives every image one vector where it computes in float32, and another elsewhere."""

    def __init__(self, exact, other):
        super().__init__()
        self.exact, self.other = exact, other

    def forward(self, x):
        return torch.tensor([self.exact if x.dtype == torch.float32 else self.other] * len(x), dtype=x.dtype)


RUINED = ["torch in bf16 is far from fp32 with this encoder: cosine 0.707; use --precision fp32"]


@pytest.mark.parametrize(
    ("exact", "other", "cosine", "told"), [([1.0, 0], [1.0, 1], 0.5**0.5, RUINED), ([0.0, 0], [0.0, 0], 1, [])]
)
def test_an_encoder_that_a_precision_ruins_is_told_of_once(caplog, exact, other, cosine, told):
    run = runtime(ByType(exact, other), "bf16")
    run(pixels(BATCH))
    run(pixels(BATCH))
    assert run.cosine == pytest.approx(cosine, abs=1e-3) and caplog.messages == told


@pytest.mark.parametrize("vector", [[torch.nan, 1.0], [torch.inf, 1.0], [0.0, 0]])
@pytest.mark.parametrize("ruined", ["exact", "other"])
def test_embeddings_that_cannot_be_compared_with_float32_are_an_error(vector, ruined):
    run = runtime(ByType(**{"exact": [1.0, 0], "other": [1.0, 0], ruined: vector}), "bf16")
    told = one_line(EncoderError, run, pixels(3))
    assert told.startswith("torch in bf16 and torch in fp32 give embeddings of this encoder that cannot be compared")


# --- engines -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def photographs():
    """Smooth colour noise of the size of the bundled encoder's input."""
    coarse = torch.rand((6, 3, 9, 9), generator=torch.Generator().manual_seed(0))
    smooth = torch.nn.functional.interpolate(coarse, (224, 224), mode="bicubic").clamp(0, 1)
    return (smooth * 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


@pytest.mark.parametrize("precision, least", [slow("fp32", 0.9999), slow("bf16", 0.99)])
def test_openvino_gives_the_embeddings_of_torch(photographs, precision, least):
    pytest.importorskip("openvino")
    settings = {"device": "cpu", "batch_size": 4}
    expected = load_encoder(**settings, precision="fp32", runtime="torch").runtime(photographs)
    encoder = load_encoder(**settings, precision=precision, runtime="openvino")
    found = encoder.runtime(photographs)
    assert found.dtype == np.float32 and found.shape == expected.shape
    cosines = 1 - paired_cosine_distances(found, expected)
    assert cosines.min() > least
    assert encoder.runtime.cosine == pytest.approx(cosines[:8].min(), abs=1e-4)
    np.testing.assert_array_equal(encoder.runtime(photographs[:1]), found[:1])


# --- batchnorm folding ----------------------------------------------------------------------------


def trained(model):
    """Give every batch norm statistics and weights that are not those it begins with."""
    torch.manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.1)
    return model.eval().requires_grad_(False)


def pixels_of_batchnorm_folding(side=64, count=2, seed=1):
    return torch.rand((count, 3, side, side), generator=torch.Generator().manual_seed(seed))


def norms(model):
    return [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]


def test_a_folded_network_is_the_same_function_without_norms():
    model = trained(timm.create_model("tf_efficientnet_lite0", pretrained=False, num_classes=0))
    before = copy.deepcopy(model.state_dict())
    with torch.inference_mode():
        folded = fold_batch_norm(model, pixels_of_batchnorm_folding(seed=0))
        expected, found = model(pixels_of_batchnorm_folding()), folded(pixels_of_batchnorm_folding())
    assert folded is not model and norms(model) and not norms(folded) and not folded.training
    assert expected.std() > 0
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4 * expected.abs().max().item())
    after = model.state_dict()
    assert list(after) == list(before) and all(torch.equal(after[name], before[name]) for name in before)
