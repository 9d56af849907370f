"""Several processes that train one model, as ``torchrun`` starts them; alone, everything here does nothing.

Each process has its share of every batch. Projections are gathered with their gradients, batch
statistics are those of the whole batch, and gradients of parameters are averaged, so that the result
does not depend on the number of processes but for rounding.
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

from ..errors import RunError, one_line

_PATIENCE = datetime.timedelta(days=1)  # others wait while one decodes the images
_FAILED = "failed"  # counts the processes that did
_times = itertools.count()


class FailedElsewhereError(RunError):
    """Another process failed first, and says why."""


@contextlib.contextmanager
def joined(device: str) -> Iterator[str]:
    """Join the processes that torchrun started, for a while; yields the device of this one.

    Of several that fail, the first raises what it was, the others what comes of it.

    Parameters
    ----------
    device : str
        As the user gave it; ``auto`` and ``cuda`` become the GPU of this process's number.

    Raises
    ------
    ValueError
        Processes beyond the GPUs of this machine, or one GPU named for all.
    FailedElsewhereError
        Of the processes this was not the first to fail, or to be interrupted.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or dist.is_initialized():
        yield device
        return
    mine = int(os.environ.get("LOCAL_RANK", "0"))
    on_cuda = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    if on_cuda:
        if ":" in device:
            raise ValueError(f"--device {device}, but each of several processes has a GPU of its own; use cuda")
        if mine >= torch.cuda.device_count():
            raise ValueError(
                f"process {mine} of this machine has no GPU ({torch.cuda.device_count()} seen); start fewer"
            )
        torch.cuda.set_device(mine)
    store, number, count = next(rendezvous("env://"))
    store = dist.PrefixStore(f"pucache/{next(_times)}", store)  # torchrun's outlives us: nothing of an earlier time
    # what is on the host goes its own way, so that it does not wait for the GPU
    backends = "cpu:gloo,cuda:nccl" if on_cuda else "gloo"
    dist.init_process_group(backends, store=store, rank=number, world_size=count, timeout=_PATIENCE)
    failed = False
    try:
        yield f"cuda:{mine}" if on_cuda else device
    except BaseException as error:
        failed = True
        if not _is_first_to_fail(store):
            raise FailedElsewhereError("another process failed or was interrupted first, and says why") from error
        raise
    finally:
        if not (failed and on_cuda):  # NCCL would wait there for what the others will never do
            dist.destroy_process_group()


def _is_first_to_fail(store: Any) -> bool:
    try:
        return bool(store.add(_FAILED, 1) == 1)
    except RuntimeError:  # it went with the process that kept it
        return False


def speaks() -> bool:
    """Whether this process tells of the result; known also before it joins the others, and after it left them."""
    return int(os.environ.get("RANK", "0")) == 0


def rank() -> int:
    """Number of this process, 0 to `world` - 1."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """How many processes there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def wait() -> None:
    """Wait until all processes are here."""
    anywhere(False)


def anywhere(here: bool) -> bool:
    """Whether something is so at any of the processes."""
    if world() == 1:
        return here
    on_host = "cpu:" in dist.get_backend_config()
    told = torch.tensor(float(here), device="cpu" if on_host else "cuda")
    return bool(add_up(told) > 0)


def from_first(value: Any) -> Any:
    """What the first process passes, at every one of them."""
    if world() == 1:
        return value
    box = [value]
    with _company():
        dist.broadcast_object_list(box)
    return box[0]


def add_up(x: torch.Tensor) -> torch.Tensor:
    """Sum over the processes, in place.

    Raises
    ------
    RunError
        Another process is gone.
    """
    with _company():
        dist.all_reduce(x)
    return x


@contextlib.contextmanager
def _company() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RunError(f"process {rank()} has lost the others ({one_line(error)[:160]}); start them again") from error


def gather(z: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Concatenate the tensors of all processes, in their order, and say where that of this one begins.

    The gradient of what any process does with the result comes back to the one that brought it, summed.
    """
    if world() == 1:
        return z, 0
    return _Gather.apply(z), rank() * len(z)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: torch.Tensor) -> torch.Tensor:
        """Concatenate."""
        ctx.rows = len(z)
        pieces = [torch.empty_like(z, memory_format=torch.contiguous_format) for _ in range(world())]
        with _company():
            dist.all_gather(pieces, z.contiguous())
        return torch.cat(pieces)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        """Sum over the processes, and take what belongs to this one."""
        gradient = add_up(gradients[0].clone(memory_format=torch.contiguous_format))
        return gradient[rank() * ctx.rows : (rank() + 1) * ctx.rows]


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Sum over the processes."""
        return add_up(x.clone())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        """The same."""
        return add_up(gradients[0].clone(memory_format=torch.contiguous_format))


def share_batch_norm(model: torch.nn.Module) -> torch.nn.Module:
    """Let every batch norm of a model on the CPU use the statistics of all processes, in place.

    Torch has that for GPUs alone. Names, parameters and whatever follows the norm within its module stay.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.__class__ = type(f"Shared{type(module).__name__}", (_Shared, type(module)), {})
    return model


class _Shared(torch.nn.modules.batchnorm._BatchNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise (b, C, ...) by the mean and variance over all processes; then timm's activation, if any."""
        if not self.training:  # by one process alone, it may be
            return super().forward(x)
        over = [axis for axis in range(x.ndim) if axis != 1]
        shape = (1, -1, *[1] * (x.ndim - 2))
        count = x.numel() // x.shape[1] * world()
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        mean = _Sum.apply(exact.sum(over)) / count
        centred = exact - mean.view(shape)
        variance = _Sum.apply(centred.square().sum(over)) / count
        self._keep(mean.detach(), variance.detach() * (count / max(1, count - 1)))
        scale = (variance + self.eps).rsqrt() * (1 if self.weight is None else self.weight)
        shift = 0 if self.bias is None else self.bias.view(shape)
        x = (centred * scale.view(shape) + shift).to(x.dtype)
        for name in ("drop", "act"):
            follows = getattr(self, name, None)
            x = x if follows is None else follows(x)
        return x

    def _keep(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Move the running statistics, as torch does."""
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance, share)
