"""What searches neighbours: faiss or torch, on a GPU or on the CPU.

faiss is used on a GPU where its build sees one, else torch where torch sees one, else faiss on the CPU. torch takes
the place of faiss where faiss is not installed; approximate indexes need faiss.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from ..errors import MissingExtraError

if TYPE_CHECKING:
    import torch

FAISS_GPU, TORCH_GPU = "faiss on the GPU", "torch on the GPU"
FAISS_CPU, TORCH_CPU, NUMPY_CPU = "faiss on the CPU", "torch on the CPU", "numpy on the CPU"
_TORCH_PAYS = 1 << 28  # values of a cache from which on a GPU gains more than importing torch and starting CUDA take


def find_faiss() -> Any | None:
    """The module faiss; None where it is not installed, or lacks a library that it needs."""
    try:
        import faiss
    except ImportError:
        return None
    return faiss


def require_faiss() -> Any:
    """The module faiss.

    Raises
    ------
    MissingExtraError
        faiss cannot be imported.
    """
    try:
        import faiss
    except ImportError as error:
        raise MissingExtraError(
            f"an ivf, hnsw or ivfpq index needs faiss, which cannot be imported ({error}); pip install faiss-cpu, or "
            "use --index exact, which needs torch alone"
        ) from error
    return faiss


def find_gpu(device: str | torch.device, *, values: int | None = None) -> torch.device | None:
    """The GPU that a device names; None for the CPU.

    Parameters
    ----------
    device : str or torch.device
        ``auto`` is a GPU where there is one.
    values : int, optional
        Values of the rows to search: ``auto`` is the CPU where they are few and torch is not imported yet.

    Raises
    ------
    ValueError
        The device has no such name or is not there.
    """
    few = values is not None and values <= _TORCH_PAYS
    if device == "cpu" or (device == "auto" and few and "torch" not in sys.modules):
        return None
    from ..devices import choose_device  # imports torch

    chosen = choose_device(device)
    return chosen if chosen.type == "cuda" else None


def faiss_gpu(device: str | torch.device) -> int | None:
    """Number of the GPU for faiss; None where faiss sees none, or `device` is the CPU."""
    faiss = find_faiss()
    if faiss is None or device == "cpu" or faiss.get_num_gpus() == 0:
        return None
    gpu = find_gpu(device)
    return None if gpu is None or (gpu.index or 0) >= faiss.get_num_gpus() else gpu.index or 0


@cache
def faiss_resources() -> Any:
    """Memory and streams of faiss on GPUs, made once."""
    return require_faiss().StandardGpuResources()
