import ctypes
import importlib.util
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pucache import devices
from pucache.allocator import keep_freed_memory
from pucache.devices import PRECISIONS, choose_device, choose_precision, choose_runtime
from pucache.errors import EncoderError
from pucache.runtime import Runtime

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


def runtime(model=None, precision="fp32"):
    return Runtime(model or Recorder(), MEAN, STD, input_size=SIZE, device=CPU, precision=precision, batch_size=BATCH)


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
    assert model.seen[0].dtype == PRECISIONS[precision] and rows.dtype == np.float32
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
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=lambda *setting: asked.append(setting)))
    keep_freed_memory.__wrapped__()
    assert len(asked) == calls
