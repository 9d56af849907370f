"""Devices that are missing, unusable or full: one line each, and whether the CPU goes on."""

import importlib.util
import logging
import os
import warnings
from pathlib import Path

import click
import pytest
import torch
from click.testing import CliRunner

from pucache import devices
from pucache.cli.main import main
from pucache.devices import choose_device, choose_runtime, unusable_cuda

OLD_DRIVER = (
    "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by downloading "
    "and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"
)
TOO_OLD = "The NVIDIA driver on your system is too old (found version 11040)"
FULL = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 139.81 GiB of which 1.10 GiB is "
    "free. Process 4711 has 120.00 GiB memory in use."
)
GB = 10**9
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def no_cuda(monkeypatch):
    """Let torch see no GPU, and say why when it is asked to use one."""

    def refuse(error):
        def init():
            raise error

        monkeypatch.setattr(torch.cuda, "init", init)
        warned = "CUDA initialization: " + str(error)  # as torch warns of all but a machine without a driver
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(warnings.warn(warned, stacklevel=2)))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)

    forget()
    yield refuse
    forget()


def forget():
    unusable_cuda.cache_clear()
    devices._warn_of_unusable_cuda.cache_clear()


def test_with_a_driver_too_old_the_cpu_goes_on_and_one_line_says_so(no_cuda, caplog, recwarn):
    no_cuda(RuntimeError(OLD_DRIVER))
    assert [choose_device().type for _ in range(3)] == ["cpu"] * 3
    assert not recwarn.list
    assert caplog.messages == [f"the GPU cannot be used: {TOO_OLD}; going on with the CPU"]
    assert caplog.records[0].levelno == logging.WARNING


@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_with_a_driver_too_old_cuda_by_name_is_refused(no_cuda, name):
    no_cuda(RuntimeError(OLD_DRIVER))
    with pytest.raises(ValueError) as raised:
        choose_device(name)
    assert str(raised.value) == (f"device {name} cannot be used: {TOO_OLD}; update the driver, or use --device cpu")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and a driver"),
        RuntimeError("No CUDA GPUs are available"),
        AssertionError("Torch not compiled with CUDA enabled"),
    ],
)
def test_a_machine_without_a_gpu_is_no_news(no_cuda, caplog, error):
    no_cuda(error)
    assert choose_device().type == "cpu" and not caplog.messages
    with pytest.raises(ValueError, match=r"^device cuda is not there \(0 CUDA devices seen\); use --device cpu$"):
        choose_device("cuda")


@pytest.mark.parametrize(("named", "expected"), [("cpu", "cpu"), ("auto", "cuda"), ("", "cuda")])
def test_auto_is_what_the_environment_says(monkeypatch, named, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("PUCACHE_DEVICE", named)
    assert choose_device().type == expected
    assert choose_device("cuda").type == "cuda" and choose_device(CPU) == CPU


@pytest.mark.parametrize(
    ("named", "said"),
    [("tpu", "unknown device 'tpu'; use auto, cpu, cuda or cuda:N"), ("cuda:7", "device cuda:7 is not there")],
)
def test_a_device_of_the_environment_that_is_not_there_is_one_line_that_names_it(monkeypatch, named, said):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setenv("PUCACHE_DEVICE", named)
    with pytest.raises(ValueError, match=r"^PUCACHE_DEVICE: ") as raised:
        choose_device()
    assert said in str(raised.value) and choose_device("cpu") == CPU


# --- memory ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "device"),
    [
        (torch.OutOfMemoryError(FULL), "cuda:1, 2.00 GiB wanted"),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"), "cuda:0"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "cuda:0"),
        (RuntimeError("Error in StandardGpuResources.cpp:530: alloc fail type TemporaryMemory"), "cuda:0"),
    ],
)
def test_a_command_on_a_full_device_ends_with_one_line(monkeypatch, error, device):
    @click.command("fail")
    def fail():
        raise error

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (GB, 150 * GB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 10 * GB)
    monkeypatch.setitem(main.commands, "fail", fail)
    ended = CliRunner().invoke(main, ["fail"], prog_name="pucache")
    assert ended.exit_code == 1 and ended.stdout == "" and ended.stderr.count("\n") == 1
    told = f"Error: out of memory on {device}: 1.0 of 150.0 GB free, other processes hold 139.0 GB; "
    assert ended.stderr.startswith(told)


@pytest.mark.parametrize("name", ["", "tpu", "mps", "xpu", "meta", "cuda:-1", "cuda:x", "cpu,cuda"])
def test_an_unknown_device_is_refused_with_the_known_ones(name):
    with pytest.raises(ValueError, match=f"^unknown device '{name}'; use auto, cpu, cuda or cuda:N$"):
        choose_device(name)


@pytest.mark.parametrize("installed", [False, True])
def test_auto_runtime_is_openvino_where_it_is_installed_and_the_cpu_is_used(monkeypatch, installed):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if installed else None)
    chosen = [choose_runtime("auto", device) for device in (CPU, CUDA)]
    assert chosen == ["openvino" if installed else "torch", "torch"]
    with pytest.raises(ValueError, match=r"^openvino runs on the CPU here, not on cuda; "):
        choose_runtime("openvino", CUDA)
    with pytest.raises(ValueError, match=r"^unknown runtime 'tensorrt'; use auto, torch, openvino$"):
        choose_runtime("tensorrt", CPU)
    if not installed:
        with pytest.raises(ValueError, match=r"pip install .*\[openvino\]', or use --runtime torch$"):
            choose_runtime("openvino", CPU)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "max 100000"}, 6),
        ({"cpu.max": "200000 100000"}, 2),
        ({"cpu.max": "10000 100000"}, 1),
        ({"cpu.max": "900000 100000"}, 6),
        ({}, 6),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 6),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2),
    ],
)
def test_cores_are_those_the_process_is_bound_to_within_the_quota_of_its_container(monkeypatch, files, expected):
    def read(path):
        try:
            return files[str(path.relative_to("/sys/fs/cgroup"))] + "\n"
        except KeyError:
            raise FileNotFoundError(path) from None

    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(6)))
    monkeypatch.setattr(Path, "read_text", read)
    assert devices.cores() == expected
