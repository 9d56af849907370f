"""Choice of device, precision and runtime, and the cores that this process may use."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import one_line

if TYPE_CHECKING:
    import numpy as np
    import torch

log = logging.getLogger("pucache")
PRECISIONS = ("fp32", "bf16", "fp16")
RUNTIMES = ("torch", "openvino")
_OTHERS = 0.05  # share of a GPU's memory above which what is neither free nor torch's is that of other processes


def device_name(device: str | torch.device) -> str:
    """Name of a device; in place of ``auto`` what the environment variable PUCACHE_DEVICE says, if it is set."""
    return os.environ.get("PUCACHE_DEVICE") or "auto" if device == "auto" else str(device)


def choose_device(device: str | torch.device = "auto") -> torch.device:
    """Return the device called `device`; ``auto`` is PUCACHE_DEVICE, else CUDA where there is one, else the CPU.

    A `torch.device` is returned as it is: it may be one of another machine. Where there is a GPU that torch cannot use,
    as with a driver that is too old, ``auto`` is the CPU, and the log says why. Raises `ValueError` for a device that
    has no such name or is not there.
    """
    import torch

    if isinstance(device, torch.device):
        return device
    if (name := device_name(device)) != device:
        try:
            return choose_device(name)
        except ValueError as error:
            raise ValueError(f"PUCACHE_DEVICE: {error}") from error
    if device == "auto":
        # torch warns of a driver in several lines; `unusable_cuda` says the same on one
        with warnings.catch_warnings(record=True, action="always") as caught:
            available = torch.cuda.is_available()
        if caught:
            _warn_of_unusable_cuda()
        return torch.device("cuda" if available else "cpu")
    return _named(device)


def _named(device: str) -> torch.device:
    import torch

    try:
        chosen = torch.device(device)
    except RuntimeError:
        chosen = None
    if chosen is None or chosen.type not in ("cpu", "cuda"):
        raise ValueError(f"unknown device {device!r}; use auto, cpu, cuda or cuda:N")
    if chosen.type == "cuda":
        _check_is_there(chosen)
    return chosen


def _check_is_there(device: torch.device) -> None:
    import torch

    with warnings.catch_warnings(record=True, action="always"):
        count = torch.cuda.device_count()
    if (device.index or 0) < count:
        return
    fault = None if count else unusable_cuda()
    if fault is not None:
        raise ValueError(f"device {device} cannot be used: {fault}; update the driver, or use the device cpu")
    raise ValueError(f"device {device} is not there ({count} CUDA devices seen); use the device cpu")


# what torch says where there is no GPU to be used, or none may be
_NO_GPU = re.compile("no NVIDIA driver|No CUDA GPUs are available|not compiled with CUDA")


@cache
def unusable_cuda() -> str | None:
    """Say on one line why torch cannot use the GPU that is there, such as an old driver; else None."""
    import torch

    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return None if _NO_GPU.search(str(error)) else re.split(r"\.\s", one_line(error))[0].rstrip(".")
    return None


@cache
def _warn_of_unusable_cuda() -> None:
    fault = unusable_cuda()
    if fault is not None:
        log.warning("the GPU cannot be used: %s; going on with the CPU", fault)


def free_memory(device: torch.device) -> int:
    """Bytes that tensors may take on a CUDA device; what torch holds for later tensors counts as free."""
    import torch

    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + held


def upload(values: np.ndarray | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy an array or a tensor to a device; only pinned memory is copied without waiting for the GPU's queue."""
    import numpy as np
    import torch

    on_gpu = device.type == "cuda"
    if isinstance(values, torch.Tensor):
        host = values.pin_memory() if on_gpu and not values.is_cuda else values
    else:
        host = torch.from_numpy(np.empty(0, values.dtype)).new_empty(values.shape, pin_memory=on_gpu)
        host.numpy()[...] = values
    return host.to(device, non_blocking=True)


# an allocation of torch, of cuBLAS or faiss, or of the driver where another process has taken everything
_SHORTAGE = re.compile("CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|cudaMalloc|alloc fail")


def device_memory_shortage(error: BaseException) -> str | None:
    """Describe on one line, with remedies, that a GPU has no memory left; None if an error is about something else."""
    if "torch" not in sys.modules:
        return None
    import torch

    if not isinstance(error, torch.OutOfMemoryError) and not (
        isinstance(error, RuntimeError) and _SHORTAGE.search(str(error))
    ):
        return None
    named = re.search(r"GPU (\d+) ", str(error))
    wanted = re.search(r"Tried to allocate ([\d.]+ \w+)", str(error))
    device = torch.device("cuda", int(named[1]) if named else 0)
    request = f", {wanted[1]} wanted" if wanted else ""
    return (
        f"out of memory on {device}{request}{_memory_in_use(device)}; use a smaller batch, the device cpu, or a GPU "
        "with more free memory"
    )


def _memory_in_use(device: torch.device) -> str:
    """Free and total memory of a GPU, and what other processes hold of it; empty where the driver does not say."""
    import torch

    try:
        free, total = torch.cuda.mem_get_info(device)
        own = torch.cuda.memory_reserved(device)
    except (RuntimeError, AssertionError):
        return ""
    others = total - free - own
    shared = f", other processes hold {others / 1e9:.1f} GB" if others > _OTHERS * total else ""
    return f": {free / 1e9:.1f} of {total / 1e9:.1f} GB free{shared}"


def choose_precision(precision: str, device: torch.device) -> str:
    """``fp32``, ``bf16`` or ``fp16``: ``auto`` is fp16 on CUDA, bf16 on a CPU that multiplies it natively, or fp32."""
    if precision == "auto":
        if device.type == "cuda":
            return "fp16"
        return "bf16" if multiplies_bfloat16(device) else "fp32"
    if precision not in PRECISIONS:
        raise ValueError(f"unknown precision {precision!r}; use auto, {', '.join(PRECISIONS)}")
    if precision == "fp16" and device.type == "cpu":
        raise ValueError("fp16 is for CUDA; on the CPU use --precision fp32 or bf16")
    return precision


def choose_training_precision(precision: str, device: torch.device) -> str:
    """Return ``fp32`` or ``bf16``; ``auto`` is bf16 where the processor multiplies it natively."""
    if precision == "fp16":
        raise ValueError("fp16 is not for training; use --precision bf16 or fp32")
    if precision == "auto":
        return "bf16" if multiplies_bfloat16(device) else "fp32"
    return choose_precision(precision, device)


def choose_runtime(runtime: str, device: torch.device) -> str:
    """Return ``torch`` or ``openvino``; ``auto`` is OpenVINO where it is installed and the CPU is used."""
    installed = importlib.util.find_spec("openvino") is not None
    if runtime == "auto":
        return "openvino" if device.type == "cpu" and installed else "torch"
    if runtime not in RUNTIMES:
        raise ValueError(f"unknown runtime {runtime!r}; use auto, {', '.join(RUNTIMES)}")
    if runtime == "openvino" and device.type != "cpu":
        raise ValueError(f"openvino runs on the CPU here, not on {device}; use --runtime torch")
    if runtime == "openvino" and not installed:
        raise ValueError("openvino is not installed; pip install -e '.[openvino]', or use --runtime torch")
    return runtime


def follow(
    existing: str | None, choose: Callable[[str, torch.device], str], requested: str, device: torch.device
) -> str:
    """Choose what is requested; for ``auto`` what an existing cache has, where this machine supports it."""
    if requested == "auto" and existing:
        with contextlib.suppress(ValueError):  # a GPU's precision, say, or a runtime that is not installed
            return choose(existing, device)
    return choose(requested, device)


_limit: int | None = None


def limit_cores(count: int) -> None:
    """Let `cores` return at most `count` from now on: a task of a cluster has a share of its node."""
    global _limit
    _limit = count


def cores() -> int:
    """Cores that this process may use: those it is bound to, a container's quota, and no more than `limit_cores`."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limits = [limit for limit in (_quota(), _limit) if limit is not None]
    return max(1, min(bound, *map(round, limits))) if limits else bound


def _quota() -> float | None:
    """Cores that a container's cgroup, of version 2 or 1, grants; None where it sets no limit."""
    cgroup = Path("/sys/fs/cgroup")
    for files in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            quota, period = map(int, " ".join((cgroup / file).read_text() for file in files).split())
            if quota > 0:
                return quota / period
    return None


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether the processor multiplies bfloat16 natively, and so several times as fast as float32."""
    import torch

    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def torch_dtype(precision: str) -> torch.dtype:
    """The type of tensors in a precision: ``fp32``, ``bf16`` or ``fp16``."""
    import torch

    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
