"""The digest by which caches know the weights of an encoder, whatever file format they came from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class WeightTensor:
    """One tensor of a state dict, described without torch.

    Attributes
    ----------
    name : str
    shape : tuple of int
    dtype : str
        As torch prints it, such as ``torch.float32``.
    content : callable
        Returns the bytes in row-major order.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    content: Callable[[], bytes]


def weights_digest(tensors: Iterable[WeightTensor]) -> str:
    """Hash names, shapes, types and bytes of all tensors but the step counters of batch norms.

    Parameters
    ----------
    tensors : iterable of WeightTensor
        In any order.

    Returns
    -------
    str
        sha256, 64 hexadecimal digits.
    """
    state = hashlib.sha256()
    for tensor in sorted(tensors, key=lambda tensor: tensor.name):
        if tensor.name.endswith("num_batches_tracked"):
            continue
        state.update(f"{tensor.name} {tensor.shape} {tensor.dtype}\n".encode())
        state.update(tensor.content())
    return state.hexdigest()


def digest_of_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """`weights_digest` of a state dict that was read into numpy arrays."""
    return weights_digest(
        WeightTensor(name=name, shape=values.shape, dtype=f"torch.{values.dtype.name}", content=values.tobytes)
        for name, values in arrays.items()
    )
