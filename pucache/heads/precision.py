"""Types that the factors of float32 matrix products are rounded to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..devices import multiplies_bfloat16


@contextmanager
def reduced_precision(device: torch.device) -> Iterator[None]:
    """Round the factors of float32 matrix products to the fastest type of the processor; sums stay float32."""
    fastest = "tf32"
    if device.type == "cpu":
        fastest = "bf16" if multiplies_bfloat16(device) else "ieee"
    with _rounded_to(fastest, device):
        yield


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Do not round the factors of float32 matrix products, even within `reduced_precision`."""
    with _rounded_to("ieee", device):
        yield


@contextmanager
def _rounded_to(precision: str, device: torch.device) -> Iterator[None]:
    backend: Any = torch.backends.cuda.matmul
    if device.type == "cpu":
        backend = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # missing in the stubs
    before = backend.fp32_precision
    backend.fp32_precision = precision
    try:
        yield
    finally:
        backend.fp32_precision = before
