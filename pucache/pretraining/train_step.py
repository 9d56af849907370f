"""Training steps: each is a function of the previous state, the seed and the number of the step."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from ..devices import upload
from ..encoders.backbones import share_batch_norm_on_gpus
from ..errors import RunError, one_line
from . import process_group
from .augmentations import VIEWS, Augment, random_numbers
from .losses import contrastive_loss
from .network import Network
from .recipes import Recipe, build_optimizer

log = logging.getLogger("pucache")


def check_batch(images: int, recipe: Recipe) -> None:
    """Raise `ValueError` if there are fewer images than a batch, or the processes cannot share a batch evenly."""
    if images < 2:
        raise ValueError("there is one image only, and images are compared with each other; pass a folder of more")
    if images < recipe.batch_size:
        raise ValueError(
            f"{images:,} images are fewer than a batch of {recipe.batch_size:,}; "
            f"use --batch-size {min(images, 256)} or less"
        )
    parts = process_group.world_size() * recipe.accumulate
    if recipe.batch_size % parts:
        raise ValueError(
            f"a batch of {recipe.batch_size} does not divide evenly among {process_group.world_size()} processes x "
            f"{recipe.accumulate} parts; choose a multiple of {parts}"
        )


class Training:
    """A network, its optimiser and the steps that update them.

    `seed` is that of the order of the n `images`, of their views and of dropout; `dtype` is float32, or bfloat16 for
    mixed precision in the network. Raises `ValueError` where there are fewer images than a batch, or the processes
    cannot share a batch evenly.
    """

    def __init__(
        self,
        network: Network,
        recipe: Recipe,
        *,
        images: int,
        seed: int,
        device: torch.device,
        dtype: torch.dtype,
    ):
        check_batch(images, recipe)
        torch.backends.cudnn.benchmark = True  # all batches have one shape
        torch.backends.cudnn.allow_tf32 = False  # fp32 must not mean TF32
        self.recipe, self._seed, self._images = recipe, seed, images
        self.device, self.dtype = device, dtype
        try:
            network = network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        except torch.OutOfMemoryError as error:
            raise RunError(f"out of memory on {device} with the network itself; use a smaller --backbone") from error
        self._shared = process_group.world_size() > 1
        self._forward: Any = network
        if self._shared:
            share = share_batch_norm_on_gpus if device.type == "cuda" else process_group.share_batch_norm
            network = share(network)  # type: ignore[assignment]
            unused = _has_unused_parameters(network)  # which torch does not expect unless it is told
            self._forward = DistributedDataParallel(network, find_unused_parameters=unused)
        self.network = network.train()
        self.optimizer = build_optimizer(recipe, network)
        self._augment = Augment(VIEWS[recipe.views], network.description.size, device)
        self._projections: Callable[..., torch.Tensor] = self._project_views  # or the same, compiled
        self._loss: Callable[..., torch.Tensor] = contrastive_loss
        self.steps_per_epoch = images // recipe.batch_size  # the images left over differ from epoch to epoch
        self.steps = recipe.epochs * self.steps_per_epoch  # of the whole training

    def batch_rows(self, first_step: int) -> Iterator[np.ndarray]:
        """Yield this process's rows of each batch from a step on, int64 (b,)."""
        B = self.recipe.batch_size
        b = B // process_group.world_size()
        own = slice(process_group.rank() * b, (process_group.rank() + 1) * b)
        for epoch in range(first_step // self.steps_per_epoch, self.recipe.epochs):
            order = np.random.default_rng((self._seed, epoch)).permutation(self._images)
            for batch in range(first_step - epoch * self.steps_per_epoch, self.steps_per_epoch):
                yield order[batch * B : (batch + 1) * B][own]
            first_step = (epoch + 1) * self.steps_per_epoch

    def step(self, number: int, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Take one step with this process's share of the batch, uint8 (b, D, D, 3).

        Returns the loss of the whole batch, and the projections z (b, M, 128) of this process's images. Raises
        `RunError` where the device is out of memory, or another process has ended.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.learning_rate(number, self.steps)
        try:
            self.optimizer.zero_grad()
            with process_group.lost_processes_reported():
                loss, z = self._backward(number, images)
                loss = process_group.sum_over_processes(loss.detach()) / process_group.world_size()
            self.optimizer.step()
        except RuntimeError as error:
            if not process_group.is_out_of_memory(error):
                raise
            raise RunError(
                f"out of memory on {self.device} at step {number + 1} with parts of "
                f"{-(-len(images) // self.recipe.accumulate)} images; use --accumulate {2 * self.recipe.accumulate}, "
                f"which keeps the negatives, or a --batch-size below {self.recipe.batch_size}"
            ) from error
        return loss, z.detach()

    def compile(self, number: int, images: torch.Tensor) -> None:
        """Compile views, network and loss by a trial of a step, which changes nothing else.

        Steps stay the same up to rounding, dropout included. Where compiling fails, a warning says why, and steps go on
        as before. Only for one process.
        """
        before = [buffer.clone() for buffer in self.network.buffers()]
        plain = self._projections, self._loss
        torch.compiler.reset()  # what was compiled for another training counts towards a limit
        options: Any = {"fallback_random": True}  # dropout by the same numbers
        self._projections, self._loss = (torch.compile(part, dynamic=False, options=options) for part in plain)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # advice to programmers
                self._backward(number, images)
        except Exception as error:  # compilers raise almost anything
            self._projections, self._loss = plain
            reason = one_line(error).partition(" Set TORCHDYNAMO")[0][:160]
            log.warning("the training step cannot be compiled (%s); going on without", reason)
        finally:
            torch._foreach_copy_(list(self.network.buffers()), before)
            self.optimizer.zero_grad()

    def _backward(self, number: int, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss of this process's images and its gradient, by the whole batch at once or by parts.

        By parts, projections are computed twice: first without graphs, for the gradient of the loss with respect to all
        projections, then part by part with graphs, to propagate it into the network (Gao et al. 2021, section 3.2).
        """
        randoms = random_numbers(self._seed, number, images=self.recipe.batch_size, views=self.recipe.n_views)
        randoms = randoms[process_group.rank() * len(images) : (process_group.rank() + 1) * len(images)]
        images, randoms = upload(images, self.device), upload(randoms, self.device)
        parts = list(zip(images.chunk(self.recipe.accumulate), randoms.chunk(self.recipe.accumulate), strict=True))
        if len(parts) == 1:
            z = self._project(number, 0, images, randoms)
            loss = self._contrast(z)
            loss.backward()
            return loss, z
        with torch.no_grad():
            buffers = list(self.network.buffers())
            before = [buffer.clone() for buffer in buffers]
            z = torch.cat([self._project(number, index, *part) for index, part in enumerate(parts)])
            torch._foreach_copy_(buffers, before)  # the second pass moves the running statistics
        z.requires_grad_()
        loss = self._contrast(z)
        loss.backward()
        assert z.grad is not None
        for index, (part, gradient) in enumerate(zip(parts, z.grad.chunk(len(parts)), strict=True)):
            with self._forward.no_sync() if self._shared and index + 1 < len(parts) else contextlib.nullcontext():
                self._project(number, index, *part).backward(gradient)
        return loss, z

    def _project(self, number: int, part: int, images: torch.Tensor, randoms: torch.Tensor) -> torch.Tensor:
        """Projections of the views of some images, float32 (b, M, 128)."""
        # seeds dropout: the same in both passes of a part
        seeds = np.random.SeedSequence((self._seed, number, part, process_group.rank()))
        torch.manual_seed(int(seeds.generate_state(1, np.uint64)[0] >> np.uint64(1)))
        return self._projections(images, randoms)

    def _project_views(self, images: torch.Tensor, randoms: torch.Tensor) -> torch.Tensor:
        views = self._augment(images, randoms).flatten(0, 1)
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            z = self._forward(views)
        return z.float().view(randoms.shape[1], len(images), -1).transpose(0, 1)

    def _contrast(self, z: torch.Tensor) -> torch.Tensor:
        return self._loss(z, temperature=self.recipe.temperature, tau_plus=self.recipe.tau_plus)

    def is_finite(self) -> bool:
        """Whether all parameters and running statistics of the network are finite."""
        values = [tensor for tensor in self.network.state_dict().values() if tensor.is_floating_point()]
        return bool(torch.stack([tensor.isfinite().all() for tensor in values]).all())


def _has_unused_parameters(network: Network) -> bool:
    """Whether a trained parameter has no part in the projections."""
    size = network.description.size
    network.eval()(network.mean.new_zeros(1, 3, size, size)).sum().backward()
    unused = any(parameter.grad is None for parameter in network.parameters() if parameter.requires_grad)
    network.zero_grad()
    return unused
