import ctypes
import importlib.util
import os
import re
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.hangs import HANG_SECONDS
from helpers.slow import slow
from hypothesis import given
from hypothesis import strategies as st
from torch._inductor import config as inductor

from pucache import devices
from pucache.allocator import keep_freed_memory
from pucache.devices import PRECISIONS, choose_device, choose_precision, choose_runtime, torch_dtype
from pucache.encoders.encoder import load_encoder
from pucache.encoders.inference import Runtime
from pucache.encoders.inference_backends import largest_cuda_batch
from pucache.errors import EncoderError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
MEAN, STD, BATCH, SIZE = (0.1, 0.5, 0.9), (0.2, 0.25, 0.5), 4, (5, 7)


class Recorder(torch.nn.Module):
    """Averages each channel, and remembers what came in."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.dropout = torch.nn.Dropout(0.5)
        self.seen = []

    def __deepcopy__(self, memo):
        twin = Recorder().train(self.training)
        twin.seen = self.seen
        return twin

    def forward(self, x):
        self.seen.append(x)
        return self.dropout(x.mean((2, 3)) * self.weight)


def runtime(model=None, precision="fp32", name="torch"):
    settings = {"input_size": SIZE, "device": CPU, "precision": precision, "runtime": name, "batch_size": BATCH}
    return Runtime(model or Recorder(), MEAN, STD, **settings)


def pixels(count, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (count, *SIZE, 3), np.uint8))


@given(count=st.integers(1, BATCH), seed=st.integers(0, 99))
def test_every_batch_has_the_one_shape_and_every_row_its_own_embedding(count, seed):
    model = Recorder()
    batch = pixels(count, seed)
    rows = runtime(model)(batch)
    assert [x.shape for x in model.seen] == [(BATCH, 3, 5, 7)]
    assert rows.shape == (count, 3) and rows.dtype == np.float32
    expected = (batch.numpy() / 255 - MEAN) / STD
    np.testing.assert_allclose(rows, expected.mean((1, 2)), atol=1e-5)


@given(count=st.integers(1, BATCH), seed=st.integers(0, 99))
def test_padding_changes_no_bit_of_a_row(count, seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 6, 3), torch.nn.Flatten(), torch.nn.Linear(6 * 3 * 5, 5))
    run = runtime(model)
    full = run(pixels(BATCH, seed))
    np.testing.assert_array_equal(run(pixels(BATCH, seed)[:count]), full[:count])


def test_pixels_that_come_in_are_left_as_they_were():
    batch = pixels(BATCH)
    kept = batch.clone()
    runtime()(batch)
    assert torch.equal(batch, kept)


def test_the_model_is_frozen_and_in_inference():
    model = Recorder().train()
    run = runtime(model)
    assert np.array_equal(run(pixels(2)), run(pixels(2))), "dropout is off"
    assert not model.weight.requires_grad and not model.seen[0].requires_grad


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_model_sees_its_own_precision_and_the_caller_float32(precision):
    model = Recorder()
    rows = runtime(model, precision)(pixels(3))
    assert model.seen[0].dtype == torch_dtype(precision) and rows.dtype == np.float32
    np.testing.assert_allclose(rows, runtime()(pixels(3)), atol=0.05)


class Greedy(torch.nn.Module):
    """Has memory for so many images at once."""

    def __init__(self, room):
        super().__init__()
        self.room = room

    def forward(self, x):
        if len(x) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")
        return x.mean((2, 3))


@pytest.mark.parametrize("room, size", [(3, 2), (2, 2), (1, 1)])
def test_running_out_of_memory_halves_the_batch_and_loses_no_row(room, size, caplog):
    run = runtime(Greedy(room))
    batch = pixels(11)
    np.testing.assert_array_equal(run(batch), runtime(Greedy(99))(batch))
    assert run.batch_size == size and f"going on with batches of {size}" in caplog.text


def test_no_memory_for_a_single_image_is_an_error():
    with pytest.raises(EncoderError, match=r"^out of memory on cpu with a single image; "):
        runtime(Greedy(0))(pixels(3))


def test_threads_that_run_out_of_memory_together_halve_once(caplog):
    together = threading.Barrier(2, timeout=HANG_SECONDS)

    class GreedyTogether(Greedy):
        def forward(self, x):
            if len(x) > self.room:
                together.wait()
            return super().forward(x)

    run, batches = runtime(GreedyTogether(2)), [pixels(BATCH, seed) for seed in range(2)]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(run, batches))
    np.testing.assert_array_equal(found, [runtime(Greedy(99))(batch) for batch in batches])
    assert run.batch_size == 2 and len(caplog.records) == 1


# --- several at once, and what a faster path costs ---------------------------------------------


def network(seed=0):
    """A convolution with its batch norm, and a vector of six."""
    torch.manual_seed(seed)
    norm = torch.nn.BatchNorm2d(6)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 6, 3), norm, torch.nn.Flatten(), torch.nn.Linear(6 * 3 * 5, 6)).eval()


def cosines(a, b):
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def plain(model, batch):
    """What torch alone gives."""
    x = (batch.permute(0, 3, 1, 2) / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    with torch.inference_mode():
        return model(x).numpy()


@pytest.mark.parametrize("name", ["torch", "compile", "openvino"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_nothing_is_built_before_the_first_batch(name, precision):
    model = Recorder()
    run = runtime(model, precision, name)
    assert not model.seen and run._forward is None and run.cosine is None


def test_starting_builds_once_and_runs_no_image():
    model = Recorder()
    run = runtime(model)
    run.start()
    built = run._forward
    run.start()
    run(pixels(2))
    assert run._forward is built and len(model.seen) == 1


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


def test_fp32_by_torch_is_compared_with_nothing():
    run = runtime(network())
    run(pixels(BATCH))
    assert run.cosine is None and run._reference is None


def test_another_precision_tells_how_near_it_is(caplog):
    run = runtime(network(), "bf16")
    X = run(pixels(BATCH))
    expected = cosines(X, plain(network(), pixels(BATCH))).min()
    assert run.cosine == pytest.approx(expected, abs=1e-5) and 0.999 < run.cosine < 1.00001
    assert run._reference is None and not caplog.records, "the weights in float32 are dropped after it"
    kept = run.cosine
    run(pixels(BATCH, seed=1))
    assert run.cosine == kept


class Cancelling(torch.nn.Module):
    """Subtracts two numbers that are large and nearly equal."""

    def __init__(self, offset):
        super().__init__()
        self.offset = offset

    def forward(self, x):
        return (x.mean((2, 3)) + self.offset) - self.offset


@pytest.mark.parametrize("offset, cosine", [(500, "0.[0-9]{3}"), (1e6, "nan")])
def test_an_encoder_that_a_precision_ruins_is_told_of(caplog, offset, cosine):
    run = runtime(Cancelling(offset), "bf16")
    run(pixels(BATCH))
    run(pixels(BATCH))
    assert not run.cosine > 0.95
    (told,) = caplog.messages
    assert re.fullmatch(
        rf"torch in bf16 is far from fp32 with this encoder: cosine ({cosine}); use --precision fp32", told
    ), told


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
    expected = load_encoder(**settings, precision="fp32", runtime="torch").forward(photographs)
    encoder = load_encoder(**settings, precision=precision, runtime="openvino")
    found = encoder.forward(photographs)
    assert found.dtype == np.float32 and found.shape == expected.shape
    assert cosines(found, expected).min() > least
    assert encoder.runtime.cosine == pytest.approx(cosines(found, expected)[:8].min(), abs=1e-4)
    np.testing.assert_array_equal(encoder.forward(photographs[:1]), found[:1])


def test_openvino_leaves_rows_of_one_batch_alone_when_the_next_is_run():
    pytest.importorskip("openvino")
    run = runtime(network(), name="openvino")
    first = run(pixels(BATCH))
    kept = first.copy()
    run(pixels(BATCH, seed=1))
    np.testing.assert_array_equal(first, kept)


@pytest.mark.slow
@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_network_gives_what_the_plain_one_does_and_is_compiled_once():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    run = runtime(network(), name="compile")
    for count in (BATCH, 1):
        batch = pixels(count)
        np.testing.assert_allclose(run(batch), plain(network(), batch), rtol=1e-4, atol=1e-4)
    assert run.cosine == pytest.approx(1, abs=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


class Singular(torch.nn.Module):
    """Computes what no converter knows."""

    def forward(self, x):
        return torch.linalg.svdvals(x.mean(1))


def test_what_openvino_cannot_convert_is_refused_with_the_way_out():
    pytest.importorskip("openvino")
    with pytest.raises(EncoderError, match=r"^OpenVINO cannot run this encoder \(.+\); use --runtime torch$"):
        runtime(Singular(), name="openvino")(pixels(1))
    assert runtime(Singular())(pixels(1)).shape == (1, 5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_what_cannot_be_compiled_is_refused_with_the_way_out(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    with (
        inductor.patch({"force_disable_caches": True, "cpp.cxx": ("no-such-compiler",)}),
        pytest.raises(EncoderError, match=r"^torch.compile failed \(.*no-such-compiler.*\); use --runtime torch$"),
    ):
        runtime(network(), name="compile")(pixels(1))


# --- the largest batch on CUDA -----------------------------------------------------------------


def largest_batch(free, an_image, *, fixed=1000, room=None):
    """Batch size found on a device of which so many bytes are free, and the sizes that were tried."""
    tried = []

    def forward(batch):
        tried.append(len(batch))
        if room is not None and len(batch) > room:
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 10**12))
        patch.setattr(torch.cuda, "memory_allocated", lambda device: 777)
        patch.setattr(torch.cuda, "max_memory_allocated", lambda device: 777 + fixed + an_image * tried[-1])
        patch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
        return largest_cuda_batch(forward, device=CPU, input_size=SIZE, streams=2), tried


@given(free=st.integers(0, 10**11), an_image=st.integers(0, 10**9))
def test_the_batch_found_is_the_largest_power_of_two_that_fits(free, an_image):
    size, tried = largest_batch(free, an_image)
    need = 2 * max(1, an_image)
    assert size in [2**power for power in range(10)] and tried == [8, 8, 16]
    assert size == 1 or size * need <= 0.8 * free * (1 + 1e-9)
    assert size == 512 or 2 * size * need >= 0.8 * free * (1 - 1e-9)


def test_twice_the_memory_takes_twice_the_batch():
    sizes = [largest_batch(2**power * 1000, 40)[0] for power in range(1, 9)]
    assert sizes == [16, 32, 64, 128, 256, 512, 512, 512]


@pytest.mark.parametrize("room, size", [(12, 8), (7, 4), (0, 4)])
def test_a_device_too_small_to_measure_takes_half_of_what_failed(room, size):
    assert largest_batch(10**9, 1, room=room)[0] == size


@pytest.mark.parametrize("name", ["", "tpu", "mps", "xpu", "meta", "cuda:-1", "cuda:x", "cpu,cuda"])
def test_an_unknown_device_is_refused_with_the_known_ones(name):
    with pytest.raises(ValueError, match=f"^unknown device '{name}'; use auto, cpu, cuda or cuda:N$"):
        choose_device(name)


def test_a_gpu_that_is_not_there_is_refused_with_what_is():
    there = torch.cuda.device_count()
    with pytest.raises(ValueError, match=rf"cuda:{there} is not there \({there} CUDA devices seen\); use --device cpu"):
        choose_device(f"cuda:{there}")


@pytest.mark.parametrize("there", [False, True])
def test_auto_takes_a_gpu_where_there_is_one(monkeypatch, there):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert choose_device().type == ("cuda" if there else "cpu") and choose_device("cpu") == CPU


@pytest.mark.parametrize("native, on_cpu", [(True, "bf16"), (False, "fp32")])
def test_auto_precision_is_fp16_on_cuda_and_what_the_cpu_has(monkeypatch, native, on_cpu):
    monkeypatch.setattr(devices, "multiplies_bfloat16", lambda device: native)
    assert (choose_precision("auto", CUDA), choose_precision("auto", CPU)) == ("fp16", on_cpu)
    assert [choose_precision(name, CUDA) for name in PRECISIONS] == list(PRECISIONS)
    assert [choose_precision(name, CPU) for name in ("fp32", "bf16")] == ["fp32", "bf16"]


@pytest.mark.parametrize(
    "name, device, expected",
    [
        ("fp16", CPU, "on the CPU use --precision fp32 or bf16"),
        ("int8", CUDA, "unknown precision 'int8'"),
        ("", CPU, "unknown precision ''"),
    ],
)
def test_an_unusable_precision_is_refused_with_the_way_out(name, device, expected):
    with pytest.raises(ValueError, match=expected):
        choose_precision(name, device)


@pytest.mark.parametrize("installed", [False, True])
def test_auto_runtime_is_openvino_where_it_is_installed_and_the_cpu_is_used(monkeypatch, installed):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if installed else None)
    assert (choose_runtime("auto", CPU), choose_runtime("auto", CUDA)) == (
        "openvino" if installed else "torch",
        "torch",
    )
    assert [choose_runtime(name, CUDA) for name in ("torch", "compile")] == ["torch", "compile"]
    with pytest.raises(ValueError, match=r"^openvino runs on the CPU here, not on cuda; "):
        choose_runtime("openvino", CUDA)
    with pytest.raises(ValueError, match=r"^unknown runtime 'tensorrt'; use auto, torch, compile, openvino$"):
        choose_runtime("tensorrt", CPU)
    if not installed:
        with pytest.raises(ValueError, match=r"pip install 'pucache\[openvino\]', or use --runtime torch$"):
            choose_runtime("openvino", CPU)


@pytest.mark.parametrize("settings, calls", [({}, 3), ({"MALLOC_ARENA_MAX": "2"}, 0), ({"GLIBC_TUNABLES": ""}, 0)])
def test_freed_memory_is_kept_unless_the_user_set_malloc(monkeypatch, settings, calls):
    asked = []
    monkeypatch.setattr(os, "environ", {"HOME": "/", **settings})
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(
        ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=lambda *setting: asked.append(setting) or 1)
    )
    keep_freed_memory.__wrapped__()
    assert len(asked) == calls


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000", 6), ("200000 100000", 2), ("10000 100000", 1), ("900000 100000", 6), (None, 6)],
)
def test_cores_are_those_the_process_is_bound_to_within_the_quota_of_its_container(monkeypatch, quota, expected):
    def read(path):
        if quota is None:
            raise FileNotFoundError(path)
        return quota + "\n"

    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(6)))
    monkeypatch.setattr(Path, "read_text", read)
    assert devices.cores() == expected


@pytest.mark.parametrize(("quota", "expected"), [("-1", 6), ("200000", 2)])
def test_the_quota_of_an_older_kernel_interface_counts_too(monkeypatch, quota, expected):
    files = {"cpu/cpu.cfs_quota_us": quota, "cpu/cpu.cfs_period_us": "100000"}

    def read(path):
        try:
            return files[str(path.relative_to("/sys/fs/cgroup"))] + "\n"
        except KeyError:
            raise FileNotFoundError(path) from None

    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(6)))
    monkeypatch.setattr(Path, "read_text", read)
    assert devices.cores() == expected
