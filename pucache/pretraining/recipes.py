"""How to train: optimiser, schedule, batch, loss and views, under two names."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch

from .augmentations import VIEWS
from .losses import check_parameters

OPTIMIZERS = ("adam", "sgd")


@dataclass(frozen=True)
class Recipe:
    """Everything about a training but the network and the images.

    Attributes
    ----------
    optimizer : {"adam", "sgd"}
        Adam (betas 0.9 and 0.999), or gradient descent with momentum 0.9.
    lr : float
        Learning rate, of ``adam`` as it is, of ``sgd`` for batches of 256; there it grows with the root of
        the batch (Chen et al. 2020, appendix B.1).
    weight_decay : float
        Not of biases and norms.
    warmup : float
        Share of the steps over which the rate rises from 0; then it falls as a half cosine to 0. With
        ``constant`` it does neither.
    constant : bool
    batch_size : int
        Images whose views are compared with each other, over all processes.
    accumulate : int
        Parts in which a batch passes the network, one after the other, so that it fits into memory. All
        its images stay each other's negatives; batch norm sees a part at a time.
    epochs : int
    n_views : int
        M, of each image.
    views : str
        A set of `pucache.pretraining.augmentations.VIEWS`.
    temperature, tau_plus : float
        See `pucache.pretraining.losses`.
    projector_norm : bool
        Batch norm in the projector.
    """

    optimizer: str
    lr: float
    weight_decay: float
    warmup: float
    constant: bool
    batch_size: int
    epochs: int
    views: str
    projector_norm: bool
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

    def rate(self, step: int, steps: int) -> float:
        """Learning rate of a step, 0 <= step < steps.

        Parameters
        ----------
        step : int
            From 0.
        steps : int
            Of the whole training.

        Returns
        -------
        float
        """
        peak = self.lr * math.sqrt(self.batch_size / 256) if self.optimizer == "sgd" else self.lr
        if self.constant:
            return peak
        rising = max(1, round(self.warmup * steps))
        if step < rising:
            return peak * (step + 1) / rising
        return peak * 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))

    def goes_on_as(self, other: Recipe) -> bool:
        """Whether a training by this recipe can be gone on with by another: more epochs, of a constant rate.

        Parameters
        ----------
        other : Recipe

        Returns
        -------
        bool
        """
        return other == self or (
            self.constant and self.epochs < other.epochs and dataclasses.replace(self, epochs=other.epochs) == other
        )


USUAL_RATES = {"adam": 3e-4, "sgd": 0.06}
RECIPES = {
    "impulses": Recipe("adam", USUAL_RATES["adam"], 0.0, 0.0, True, 128, 100, "impulses", False),
    "modern": Recipe("sgd", USUAL_RATES["sgd"], 1e-4, 0.1, False, 256, 200, "natural", True),
}


def optimizer(recipe: Recipe, model: torch.nn.Module) -> torch.optim.Optimizer:
    """Build the optimiser of a recipe for a model on its device."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    on_gpu = any(parameter.is_cuda for parameter in parameters)
    if recipe.optimizer == "adam":
        return torch.optim.Adam(groups, recipe.lr, fused=on_gpu)
    return torch.optim.SGD(groups, recipe.lr, momentum=0.9, fused=on_gpu)
