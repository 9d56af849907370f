"""One step of training after the other; each is a function of the state, the seed and its number."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from ..encoders.backbones import share_batch_norm_on_gpus
from ..errors import RunError, one_line
from . import process_group, recipes
from .augmentations import VIEWS, Augment, draw
from .losses import alignment, contrastive_loss, uniformity
from .network import Network
from .recipes import Recipe


@dataclass(frozen=True)
class Geometry:
    """How the projections of a batch lie on the sphere.

    Attributes
    ----------
    alignment, uniformity : float
        See `pucache.pretraining.losses`.
    spread : float
        Standard deviation over the images, times the root of the dimensions: 1 where they fill the sphere
        evenly, 0 where all fall on one point.
    """

    alignment: float
    uniformity: float
    spread: float


def check_compiled(compiled: bool) -> None:
    """Raise `ValueError` where several processes were to train by torch.compile."""
    if compiled and process_group.world_size() > 1:
        raise ValueError("--compile is for one process: batch norm over several breaks its graph; leave it out")


def check_batch(images: int, recipe: Recipe) -> None:
    """Raise `ValueError` where there are fewer images than a batch, or the processes cannot share one evenly."""
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
    """A network, its optimiser and the steps that change them.

    Parameters
    ----------
    network : Network
        Moved to the device.
    recipe : Recipe
    images : int
        How many there are, n.
    seed : int
        Of the order of the images, their views, and whatever the network draws.
    device : torch.device
    numbers : torch.dtype
        float32, or bfloat16 for the products in the network.
    compiled : bool

    Attributes
    ----------
    steps, an_epoch : int
        In all, and in an epoch; what does not fill a batch is left out, another part each time.
    network, optimizer
        As they are by now.
    recipe, device, numbers
        As given.

    Raises
    ------
    ValueError
        Fewer images than a batch, or a batch that the processes cannot share evenly.
    """

    def __init__(
        self,
        network: Network,
        recipe: Recipe,
        *,
        images: int,
        seed: int,
        device: torch.device,
        numbers: torch.dtype,
        compiled: bool = False,
    ):
        check_batch(images, recipe)
        check_compiled(compiled)
        self.recipe, self._seed, self._images = recipe, seed, images
        self.device, self.numbers = device, numbers
        torch.backends.cudnn.benchmark = True  # all batches are of one shape
        try:
            network = network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        except torch.OutOfMemoryError as error:
            raise RunError(f"out of memory on {device} with the network itself; use a smaller --backbone") from error
        if process_group.world_size() > 1:
            shared = share_batch_norm_on_gpus if device.type == "cuda" else process_group.share_batch_norm
            network = shared(network)  # type: ignore[assignment]
        self.network = network.train()
        self.optimizer = recipes.optimizer(recipe, network)
        self._forward = torch.compile(network, dynamic=False) if compiled else network
        self._augment = Augment(VIEWS[recipe.views], network.description.size)
        self.an_epoch = images // recipe.batch_size
        self.steps = recipe.epochs * self.an_epoch

    def rows(self, first: int) -> Iterator[np.ndarray]:
        """Yield this process's share of the rows of each batch, from step `first` on; int64, (b,)."""
        B = self.recipe.batch_size
        b = B // process_group.world_size()
        mine = slice(process_group.rank() * b, (process_group.rank() + 1) * b)
        for epoch in range(first // self.an_epoch, self.recipe.epochs):
            order = np.random.default_rng((self._seed, epoch)).permutation(self._images)
            for batch in range(first - epoch * self.an_epoch, self.an_epoch):
                yield order[batch * B : (batch + 1) * B][mine]
            first = (epoch + 1) * self.an_epoch

    def step(self, number: int, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Take a step; returns the loss of the batch, (), and this process's projections, (b, M, 128).

        Parameters
        ----------
        number : int
            0 <= number < steps.
        images : uint8 tensor, (b, D, D, 3)
            This process's share of the batch.

        Raises
        ------
        RunError
            Out of memory on the device, or torch.compile failed.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.rate(number, self.steps)
        drawn = draw(self._seed, number, self.recipe.batch_size, self.recipe.n_views)
        drawn = drawn[process_group.rank() * len(images) : (process_group.rank() + 1) * len(images)]
        try:
            self.optimizer.zero_grad()
            loss, z = self._backward(number, self._placed(images), self._placed(drawn))
            loss = self._averaged(loss.detach())
            self.optimizer.step()
        except torch._dynamo.exc.TorchDynamoException as error:
            raise RunError(f"torch.compile failed ({one_line(error)[:160]}); leave out --compile") from error
        except RuntimeError as error:
            if not isinstance(error, torch.OutOfMemoryError) and "DefaultCPUAllocator" not in str(error):
                raise
            raise RunError(
                f"out of memory on {self.device} at step {number + 1}; use --accumulate {2 * self.recipe.accumulate}, "
                "which keeps the negatives, or a smaller --batch-size"
            ) from error
        return loss, z.detach()

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the device; what is not pinned would be copied only after all that a GPU has to do."""
        if self.device.type == "cuda" and not tensor.is_cuda:
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)

    def _backward(self, number: int, images: torch.Tensor, drawn: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss, and its gradient, by the whole batch at once or by parts.

        By parts, projections are made twice: first without their graphs, to find the gradient of the loss
        by every projection, then part by part to carry that into the network (Gao et al. 2021, section 3.2).
        """
        parts = list(zip(images.chunk(self.recipe.accumulate), drawn.chunk(self.recipe.accumulate), strict=True))
        if len(parts) == 1:
            z = self._project(number, 0, images, drawn)
            loss = self._loss(z)
            loss.backward()
            return loss, z
        with torch.no_grad(), _statistics_stay(self.network):
            z = torch.cat([self._project(number, place, *part) for place, part in enumerate(parts)])
        z.requires_grad_()
        loss = self._loss(z)
        loss.backward()
        assert z.grad is not None
        for place, (part, gradient) in enumerate(zip(parts, z.grad.chunk(len(parts)), strict=True)):
            self._project(number, place, *part).backward(gradient)
        return loss, z

    def _project(self, number: int, place: int, images: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        """Projections of the views of some images, float32 (b, M, 128)."""
        # for a network that draws, as in dropout
        torch.manual_seed(_mixed(self._seed, number, place, process_group.rank()))
        views = self._augment(images, drawn).flatten(0, 1)
        with torch.autocast(self.device.type, self.numbers, enabled=self.numbers != torch.float32):
            z = self._forward(views)
        return z.float().view(drawn.shape[1], len(images), -1).transpose(0, 1)

    def _loss(self, z: torch.Tensor) -> torch.Tensor:
        return contrastive_loss(z, temperature=self.recipe.temperature, tau_plus=self.recipe.tau_plus)

    def _averaged(self, loss: torch.Tensor) -> torch.Tensor:
        """Average the gradients over the processes, in place, and the loss, which is returned."""
        if process_group.world_size() == 1:
            return loss
        gradients = [p.grad for p in self.network.parameters() if p.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in [*gradients, loss]])
        process_group.all_reduce_sum(flat).div_(process_group.world_size())
        *means, loss = flat.split([gradient.numel() for gradient in [*gradients, loss]])
        torch._foreach_copy_(gradients, [m.view_as(g) for g, m in zip(gradients, means, strict=True)])
        return loss.view(())

    def is_finite(self) -> bool:
        """Whether every parameter and every statistic of the network is."""
        values = [tensor for tensor in self.network.state_dict().values() if tensor.is_floating_point()]
        return bool(torch.stack([tensor.isfinite().all() for tensor in values]).all())


def geometry(z: torch.Tensor) -> Geometry:
    """How projections, (b, M, d), lie."""
    first = torch.nn.functional.normalize(z[:, 0].float(), dim=1)
    spread = first.std(0, correction=0).square().sum().sqrt()
    return Geometry(float(alignment(z)), float(uniformity(z)), float(spread))


@contextlib.contextmanager
def _statistics_stay(model: torch.nn.Module) -> Iterator[None]:
    """Let batch norms use the statistics of the batch, and not take them into their running ones."""
    norms = [module for module in model.modules() if isinstance(module, torch.nn.modules.batchnorm._BatchNorm)]
    tracking = [module for module in norms if module.track_running_stats]
    for module in tracking:
        module.track_running_stats = False
    try:
        yield
    finally:
        for module in tracking:
            module.track_running_stats = True


def _mixed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))
