"""Choice of device, precision and runtime, and the cores that this process may use."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PRECISIONS = ("fp32", "bf16", "fp16")
RUNTIMES = ("torch", "compile", "openvino")


def choose_device(device: str | torch.device = "auto") -> torch.device:
    """Return the device called `device`; ``auto`` is CUDA where there is one, else the CPU.

    A `torch.device` is returned as it is: it may be one of another machine.

    Raises
    ------
    ValueError
        The device has no such name or is not there.
    """
    import torch

    if isinstance(device, torch.device):
        return device
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        chosen = None
    if chosen is None or chosen.type not in ("cpu", "cuda"):
        raise ValueError(f"unknown device {device!r}; use auto, cpu, cuda or cuda:N")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device {device} is not there ({torch.cuda.device_count()} CUDA devices seen); use --device cpu"
        )
    return chosen


def choose_precision(precision: str, device: torch.device) -> str:
    """Return ``fp32``, ``bf16`` or ``fp16``.

    ``auto`` is fp16 on CUDA, bf16 on a CPU that multiplies it natively, and fp32 elsewhere.
    """
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
    """Return ``torch``, ``compile`` or ``openvino``; ``auto`` is OpenVINO where it is installed and the CPU is used."""
    installed = importlib.util.find_spec("openvino") is not None
    if runtime == "auto":
        return "openvino" if device.type == "cpu" and installed else "torch"
    if runtime not in RUNTIMES:
        raise ValueError(f"unknown runtime {runtime!r}; use auto, {', '.join(RUNTIMES)}")
    if runtime == "openvino" and device.type != "cpu":
        raise ValueError(f"openvino runs on the CPU here, not on {device}; use --runtime torch or compile")
    if runtime == "openvino" and not installed:
        raise ValueError("openvino is not installed; pip install 'pucache[openvino]', or use --runtime torch")
    return runtime


def cores() -> int:
    """Cores that this process may use: those it is bound to, and no more than a container's quota."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota()
    return bound if quota is None else max(1, min(bound, round(quota)))


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
