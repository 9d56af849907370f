"""Batch norm of a frozen network, folded into the convolutions before it."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.nn.utils.parametrize import is_parametrized


@torch.no_grad()
def fold_batch_norm(model: nn.Module, pixels: torch.Tensor) -> nn.Module:
    """Return the model with every batch norm that follows a convolution folded into its weights.

    Which norm follows which convolution is seen by running the model once, so any architecture will
    do. The result is held against the original on that input; where a convolution's output is also
    used elsewhere, so that folding would change the function, the original is returned.

    Parameters
    ----------
    model : torch.nn.Module
        In evaluation mode, float32.
    pixels : float32 tensor, (B, 3, H, W)
        Input to run it with.
    """
    folded = copy.deepcopy(model)
    after = _norms_after_convolutions(folded, pixels)
    if not after:
        return model
    for parent in list(folded.modules()):
        for name, child in list(parent.named_children()):
            if child in after and isinstance(child, nn.BatchNorm2d):
                convolution = after[child]
                fused = fuse_conv_bn_eval(convolution, child)
                convolution.weight, convolution.bias = fused.weight, fused.bias
                setattr(parent, name, _what_is_left(child))
    expected, found = model(pixels), folded(pixels)
    same = torch.linalg.vector_norm(found - expected) <= 1e-3 * torch.linalg.vector_norm(expected)
    return folded if same else model


def _norms_after_convolutions(model: nn.Module, pixels: torch.Tensor) -> dict[nn.Module, nn.Conv2d]:
    made_by: dict[int, nn.Conv2d] = {}
    after: dict[nn.Module, nn.Conv2d] = {}
    alive = []  # so that no two outputs share an id

    def watch(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        if isinstance(module, nn.Conv2d):
            made_by[id(output)] = module
            alive.append(output)
        elif id(inputs[0]) in made_by:
            after[module] = made_by[id(inputs[0])]

    watched = [module for module in model.modules() if _plain_convolution(module) or _frozen_norm(module)]
    if not any(isinstance(module, nn.BatchNorm2d) for module in watched):
        return {}
    hooks = [module.register_forward_hook(watch) for module in watched]
    try:
        model(pixels)
    finally:
        for hook in hooks:
            hook.remove()
    return after


def _plain_convolution(module: nn.Module) -> bool:
    return isinstance(module, nn.Conv2d) and not is_parametrized(module)


def _frozen_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.BatchNorm2d) and module.running_mean is not None


def _what_is_left(norm: nn.BatchNorm2d) -> nn.Module:
    """timm's norms also drop and activate."""
    rest = [part for part in (getattr(norm, name, None) for name in ("drop", "act")) if isinstance(part, nn.Module)]
    return nn.Sequential(*rest) if rest else nn.Identity()
