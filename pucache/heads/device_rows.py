"""Copies between the host and a CUDA device, for the search of neighbours."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..devices import free_memory

__all__ = ["free_memory", "upload"]


def upload(values: np.ndarray, device: torch.device) -> Tensor:
    """Copy an array to a device; float64 becomes float32."""
    tensor = torch.tensor(values)
    return (tensor.float() if tensor.dtype == torch.float64 else tensor).to(device)
