"""Several processes that train one model, as ``torchrun`` starts them; alone, everything here does nothing.

Each process has its share of every batch. Projections are gathered with their gradients, batch
statistics are those of the whole batch, and gradients of parameters are averaged, so that the result
does not depend on the number of processes but for rounding.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

_PATIENCE = datetime.timedelta(days=1)  # others wait while one decodes the images


@contextlib.contextmanager
def joined(device: str) -> Iterator[str]:
    """Join the processes that torchrun started, for a while; yields the device of this one.

    Parameters
    ----------
    device : str
        As the user gave it; ``auto`` and ``cuda`` become the GPU of this process's number.

    Raises
    ------
    ValueError
        Processes beyond the GPUs of this machine.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or dist.is_initialized():
        yield device
        return
    mine = int(os.environ.get("LOCAL_RANK", "0"))
    on_cuda = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    if on_cuda:
        if mine >= torch.cuda.device_count():
            raise ValueError(
                f"process {mine} of this machine has no GPU ({torch.cuda.device_count()} seen); start fewer"
            )
        torch.cuda.set_device(mine)
    dist.init_process_group("nccl" if on_cuda else "gloo", timeout=_PATIENCE)
    try:
        yield f"cuda:{mine}" if on_cuda else device
    finally:
        dist.destroy_process_group()


def rank() -> int:
    """Number of this process, 0 to `world` - 1."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """How many processes there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def wait() -> None:
    """Wait until all processes are here."""
    if world() > 1:
        dist.barrier()


def from_first(value: Any) -> Any:
    """What the first process passes, at every one of them."""
    if world() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box)
    return box[0]


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
        pieces = [torch.empty_like(z) for _ in range(world())]
        dist.all_gather(pieces, z.contiguous())
        return torch.cat(pieces)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        """Sum over the processes, and take what belongs to this one."""
        gradient = gradients[0].contiguous()
        dist.all_reduce(gradient)
        return gradient[rank() * ctx.rows : (rank() + 1) * ctx.rows]


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Sum over the processes."""
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        """The same."""
        gradient = gradients[0].clone()
        dist.all_reduce(gradient)
        return gradient


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
        if not self.training:
            return super().forward(x)
        over = [axis for axis in range(x.ndim) if axis != 1]
        shape = (1, -1, *[1] * (x.ndim - 2))
        count = x.numel() // x.shape[1] * world()
        mean = _Sum.apply(x.float().sum(over)) / count
        centred = x.float() - mean.view(shape)
        variance = _Sum.apply(centred.square().sum(over)) / count
        with torch.no_grad():
            if self.running_mean is not None and self.running_var is not None and self.momentum is not None:
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(variance * (count / max(1, count - 1)), self.momentum)
        scale = (variance + self.eps).rsqrt() * (1 if self.weight is None else self.weight)
        shift = 0 if self.bias is None else self.bias.view(shape)
        x = (centred * scale.view(shape) + shift).to(x.dtype)
        for name in ("drop", "act"):
            follows = getattr(self, name, None)
            x = x if follows is None else follows(x)
        return x
