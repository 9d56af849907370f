"""Data-parallel training over the processes that ``torchrun`` starts.

Each process holds an equal share of every batch. `DistributedDataParallel` averages the gradients, projections are
gathered with theirs, and batch norms use the statistics of the whole batch: torch's `SyncBatchNorm` on CUDA, the one
below on the CPU, which torch's refuses. The result therefore equals that of one process up to rounding. With one
process all functions here return at once.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from ..devices import device_name
from ..errors import RunError, one_line

_TIMEOUT = datetime.timedelta(days=1)  # the other processes wait while the first one decodes all images
_FAILURES = "failed"  # key in the store: how many processes have failed
_join_numbers = itertools.count()


class FailedElsewhereError(RunError):
    """Another process failed first and reports the reason."""


@contextlib.contextmanager
def joined(device: str) -> Iterator[str]:
    """Join the processes that torchrun started; yields the device of this process.

    ``auto`` and ``cuda`` become the GPU with this process's local rank. If several processes fail, the first one raises
    its own exception and the others raise `FailedElsewhereError`.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or dist.is_initialized():
        yield device
        return
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    name = device_name(device)
    on_cuda = name.startswith("cuda") or (name == "auto" and torch.cuda.is_available())
    if on_cuda:
        _check_gpu(name, local_rank)
        torch.cuda.set_device(local_rank)
    store, own_rank, size = next(rendezvous("env://"))
    # torchrun's store outlives this group: the prefix hides the entries of earlier groups
    store = dist.PrefixStore(f"pucache/{next(_join_numbers)}", store)
    # tensors on the CPU are sent through gloo, so that they do not wait for the GPU
    backends = "cpu:gloo,cuda:nccl" if on_cuda else "gloo"
    dist.init_process_group(backends, store=store, rank=own_rank, world_size=size, timeout=_TIMEOUT)
    failed = False
    try:
        yield f"cuda:{local_rank}" if on_cuda else device
    except BaseException as error:
        failed = True
        if not _is_first_failure(store):
            raise FailedElsewhereError("another process failed or was interrupted first, and says why") from error
        raise
    finally:
        if not (failed and on_cuda):  # after a failure NCCL would wait for collectives that never come
            dist.destroy_process_group()


def _check_gpu(device: str, local_rank: int) -> None:
    if ":" in device:
        raise ValueError(f"--device {device}, but each of several processes has a GPU of its own; use cuda")
    if local_rank >= torch.cuda.device_count():
        raise ValueError(
            f"process {local_rank} of this machine has no GPU ({torch.cuda.device_count()} seen); start fewer"
        )


def _is_first_failure(store: Any) -> bool:
    try:
        return bool(store.add(_FAILURES, 1) == 1)
    except RuntimeError:  # the process that hosts the store has ended
        return False


def is_main_process() -> bool:
    """Whether this process prints the result: the one of rank 0, also before and after `joined`."""
    return int(os.environ.get("RANK", "0")) == 0


def rank() -> int:
    """Number of this process, 0 to `world_size` - 1."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether the memory of a GPU or of the CPU did not suffice."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


@contextlib.contextmanager
def lost_processes_reported() -> Iterator[None]:
    """Raise `RunError` if a collective fails, which means that another process has ended."""
    try:
        yield
    except RuntimeError as error:
        if world_size() == 1 or is_out_of_memory(error):
            raise
        raise RunError(f"process {rank()} has lost the others ({one_line(error, 160)}); start them again") from error


def barrier() -> None:
    """Wait until all processes have called this function."""
    any_process(False)


def any_process(condition: bool) -> bool:
    """Whether a condition holds in at least one process."""
    with lost_processes_reported():
        return bool(sum_over_processes(torch.tensor(float(condition))) > 0)


def broadcast_from_first(value: Any) -> Any:
    """Value that the first process passed; the arguments of the other processes are ignored."""
    values = [value]
    if world_size() > 1:
        with lost_processes_reported():
            dist.broadcast_object_list(values)
    return values[0]


def sum_over_processes(x: torch.Tensor) -> torch.Tensor:
    """Sum of a tensor over the processes, with its gradient: the sum of their gradients."""
    return x if world_size() == 1 else _Sum.apply(x)


def gather(z: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Concatenate z (b, ...) of all processes in rank order, with gradients; all have the same shape.

    Returns also the index of this process's first row in it.
    """
    first, whole = rank() * len(z), world_size() * len(z)
    before, after = z.new_zeros(first, *z.shape[1:]), z.new_zeros(whole - first - len(z), *z.shape[1:])
    return sum_over_processes(torch.cat([before, z, after])), first


class _Sum(torch.autograd.Function):
    # torch.distributed.nn.functional has this too, but is deprecated since torch 2.15 in favour of a private module
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Sum over the processes."""
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        """Sum of the gradients over the processes."""
        return _Sum.forward(ctx, gradients[0])


def share_batch_norm(model: torch.nn.Module) -> torch.nn.Module:
    """Let every batch norm of a model on the CPU use the statistics of all processes, in place.

    Parameter names and timm's fused activations are kept.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.__class__ = type(f"Shared{type(module).__name__}", (_SharedBatchNorm, type(module)), {})
    return model


class _SharedBatchNorm(torch.nn.modules.batchnorm._BatchNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the images of all processes together, and return those of this one."""
        if not self.training:  # evaluation may run in one process alone, so nothing is exchanged
            return super().forward(x)
        whole, first = gather(x)
        return super().forward(whole)[first : first + len(x)]
