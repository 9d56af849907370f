"""Training recipes: optimiser, schedule, batch, loss and views, under two names."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch

from .augmentations import VIEWS
from .losses import check_parameters

OPTIMIZERS = ("adam", "sgd")
_REFERENCE_BATCH = 256  # batch size for which the learning rate of sgd is stated


@dataclass(frozen=True)
class Recipe:
    """All settings of a training except the network and the images; by default those of ``modern``.

    Attributes
    ----------
    optimizer : {"adam", "sgd"}
        Adam (betas 0.9 and 0.999), or gradient descent with momentum 0.9.
    lr : float
        Learning rate. For ``sgd`` it is stated for batches of 256 and grows with the square root of the
        batch size (Chen et al. 2020, appendix B.1).
    weight_decay : float
        Not applied to biases and norms.
    warmup : float
        Share of the steps over which the learning rate rises linearly from 0. Afterwards it falls to 0 along
        half a cosine. Ignored if `constant`.
    constant : bool
        Keep the learning rate constant.
    batch_size : int
        Number of images whose views are compared with each other, over all processes.
    accumulate : int
        Number of equal parts in which a batch passes through the network, one after the other, to save memory.
        All images of the batch stay negatives of each other; batch norm sees one part at a time.
    epochs : int
    n_views : int
        M, number of views per image.
    views : str
        Name of a set of `pucache.pretraining.augmentations.VIEWS`.
    temperature, tau_plus : float
        See `pucache.pretraining.losses`.
    projector_norm : bool
        Use batch norm in the projector.
    """

    optimizer: str = "sgd"
    lr: float = 0.06
    weight_decay: float = 1e-4
    warmup: float = 0.1
    constant: bool = False
    batch_size: int = 256
    epochs: int = 200
    views: str = "natural"
    projector_norm: bool = True
    temperature: float = 0.5
    tau_plus: float = 0.1
    n_views: int = 2
    accumulate: int = 1

    def __post_init__(self) -> None:
        check_parameters(self.temperature, self.tau_plus)
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"unknown optimizer {self.optimizer!r}; use {' or '.join(OPTIMIZERS)}")
        if self.views not in VIEWS:
            raise ValueError(f"unknown views {self.views!r}; use {', '.join(VIEWS)}")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"the learning rate must be above 0, got {self.lr:g}")
        if not 0 <= self.weight_decay < math.inf or not 0 <= self.warmup <= 1:
            raise ValueError("the weight decay must not be below 0, nor the warm-up beyond 0 to 1")
        if self.batch_size < 2:
            raise ValueError(
                f"batch size {self.batch_size}: an image is compared with others, so at least 2; 256 is usual"
            )
        if self.n_views < 2:
            raise ValueError(f"{self.n_views} views: a view is compared with others of its image, so at least 2")
        if self.epochs < 1 or self.accumulate < 1:
            raise ValueError("epochs and accumulate must be at least 1")
        if self.batch_size % self.accumulate:
            raise ValueError(f"a batch of {self.batch_size} does not divide into {self.accumulate} equal parts")

    def learning_rate(self, step: int, steps: int) -> float:
        """Learning rate of one of so many steps, 0 <= step < steps."""
        peak = self.lr * math.sqrt(self.batch_size / _REFERENCE_BATCH) if self.optimizer == "sgd" else self.lr
        if self.constant:
            return peak
        warmup_steps = max(1, round(self.warmup * steps))
        if step < warmup_steps:
            return peak * (step + 1) / warmup_steps
        return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / max(1, steps - warmup_steps)))

    def can_continue_as(self, other: Recipe) -> bool:
        """Whether the recipes are equal, or the learning rate is constant and `other` only has more epochs."""
        return other == self or (
            self.constant and self.epochs < other.epochs and dataclasses.replace(self, epochs=other.epochs) == other
        )


RECIPES = {
    "impulses": Recipe(
        optimizer="adam",
        lr=3e-4,
        weight_decay=0.0,
        warmup=0.0,
        constant=True,
        batch_size=128,
        epochs=100,
        views="impulses",
        projector_norm=False,
    ),
    "modern": Recipe(),
}


def find_recipe(recipe: str | Recipe) -> Recipe:
    """Recipe of a name; a `Recipe` is returned as it is."""
    if isinstance(recipe, Recipe):
        return recipe
    if recipe not in RECIPES:
        raise ValueError(f"unknown recipe {recipe!r}; use {' or '.join(RECIPES)}")
    return RECIPES[recipe]


def build_optimizer(recipe: Recipe, model: torch.nn.Module) -> torch.optim.Optimizer:
    """Build the optimiser of a recipe for a model that is on its device."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    on_gpu = any(parameter.is_cuda for parameter in parameters)
    if recipe.optimizer == "adam":
        return torch.optim.Adam(groups, recipe.lr, fused=on_gpu)
    return torch.optim.SGD(groups, recipe.lr, momentum=0.9, fused=on_gpu)
