"""How a forward pass is run: device, precision, memory format.

A `Runtime` takes uint8 pixels and gives float32 embeddings. Every batch that reaches the model
has one fixed shape, the last one being padded, so a row does not depend on how many came with it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys

import numpy as np
import torch

from .errors import EncoderError

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def choose_device(device: str = "auto") -> torch.device:
    """Return the device called `device`; ``auto`` is CUDA where there is one, else the CPU.

    Raises
    ------
    ValueError
        The device has no such name or is not there.
    """
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
    """Return ``fp32``, ``bf16`` or ``fp16``; ``auto`` is fp16 on CUDA and fp32 on the CPU."""
    if precision == "auto":
        return "fp16" if device.type == "cuda" else "fp32"
    if precision not in PRECISIONS:
        raise ValueError(f"unknown precision {precision!r}; use auto, {', '.join(PRECISIONS)}")
    if precision == "fp16" and device.type == "cpu":
        raise ValueError("fp16 is for CUDA; on the CPU use --precision fp32 or bf16")
    return precision


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether the processor multiplies bfloat16 natively, and so several times as fast as float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


class Runtime:
    """Runs a frozen model on fixed-shape batches of uint8 pixels.

    Parameters
    ----------
    model : torch.nn.Module
        Maps normalised (B, 3, H, W) to (B, d) or anything that pools to it.
    mean, std : tuple of 3 floats
        Of pixels scaled to [0, 1].
    device : torch.device
    precision : {"fp32", "bf16", "fp16"}
    batch_size : int
        The one batch shape that is ever run.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        *,
        device: torch.device,
        precision: str,
        batch_size: int,
    ):
        if device.type == "cpu":
            keep_freed_memory()
        self.device, self.precision, self.batch_size = device, precision, batch_size
        self._dtype = PRECISIONS[precision]
        self._model = model.eval().requires_grad_(False).to(device, self._dtype)
        self._model = self._model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        shape = (1, 3, 1, 1)
        self._mean = torch.tensor(mean, device=device).mul(255).view(shape)
        self._scale = torch.tensor(std, device=device).mul(255).reciprocal().view(shape)

    @torch.inference_mode()
    def __call__(self, pixels: torch.Tensor) -> np.ndarray:
        """Embed up to `batch_size` images.

        Parameters
        ----------
        pixels : uint8 tensor, (b, 3, H, W), b <= batch_size

        Returns
        -------
        ndarray of float32, (b, d)
        """
        rows = len(pixels)
        if rows < self.batch_size:
            padding = pixels.new_zeros((self.batch_size - rows, *pixels.shape[1:]))
            pixels = torch.cat([pixels, padding])
        batch = pixels.to(self.device, non_blocking=True).float().sub_(self._mean).mul_(self._scale)
        batch = batch.to(self._dtype, memory_format=torch.channels_last)
        try:
            return self._model(batch)[:rows].float().cpu().numpy()
        except torch.OutOfMemoryError as error:
            raise EncoderError(
                f"out of memory on {self.device} with batches of {self.batch_size}; pass a smaller --batch-size"
            ) from error


@functools.cache
def keep_freed_memory() -> None:
    """Let glibc keep large freed blocks instead of returning them to the kernel.

    Every activation above 128 KiB would otherwise be mapped, zeroed by the kernel and unmapped
    again in each forward pass: twice to three times the time of the computation itself. Does nothing
    off glibc, or where the user set MALLOC_* themselves.
    """
    if not sys.platform.startswith("linux") or any(name.startswith("MALLOC_") for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        m_trim_threshold, m_mmap_threshold = -1, -3
        mallopt(m_mmap_threshold, 1 << 30)
        mallopt(m_trim_threshold, -1)  # never: one gibibyte helps or not by the luck of the heap's layout
