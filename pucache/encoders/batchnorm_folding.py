"""Folding the batch norms of a frozen network into the convolutions before them."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.nn.utils.parametrize import is_parametrized


@torch.no_grad()
def fold_batch_norm(model: nn.Module, pixels: torch.Tensor) -> nn.Module:
    """Return a copy of a frozen float32 model in which each batch norm is folded into the convolution before it.

    One forward pass of ``pixels``, (B, 3, H, W), shows which norm follows which convolution, so any architecture will
    do. The folded model is compared with the original on the same input. Where they disagree, because the output of a
    convolution is also used elsewhere, the original is returned.
    """
    folded = copy.deepcopy(model)
    convolution_before = _find_convolutions_before_norms(folded, pixels)
    if not convolution_before:
        return model
    for parent in list(folded.modules()):
        for name, child in list(parent.named_children()):
            if child in convolution_before and isinstance(child, nn.BatchNorm2d):
                convolution = convolution_before[child]
                fused = fuse_conv_bn_eval(convolution, child)
                convolution.weight, convolution.bias = fused.weight, fused.bias
                setattr(parent, name, _drop_and_activation(child))
    expected, actual = model(pixels), folded(pixels)
    agrees = torch.linalg.vector_norm(actual - expected) <= 1e-3 * torch.linalg.vector_norm(expected)
    return folded if agrees else model


def _find_convolutions_before_norms(model: nn.Module, pixels: torch.Tensor) -> dict[nn.Module, nn.Conv2d]:
    """Run the model; map each batch norm whose input is the output of a convolution to that convolution."""
    source_of: dict[int, nn.Conv2d] = {}  # by id of the output
    convolution_before: dict[nn.Module, nn.Conv2d] = {}
    outputs = []  # kept alive, so that no two have the same id

    def watch(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        if isinstance(module, nn.Conv2d):
            source_of[id(output)] = module
            outputs.append(output)
        elif id(inputs[0]) in source_of:
            convolution_before[module] = source_of[id(inputs[0])]

    watched = [module for module in model.modules() if _plain_convolution(module) or _frozen_norm(module)]
    if not any(isinstance(module, nn.BatchNorm2d) for module in watched):
        return {}
    hooks = [module.register_forward_hook(watch) for module in watched]
    try:
        model(pixels)
    finally:
        for hook in hooks:
            hook.remove()
    return convolution_before


def _plain_convolution(module: nn.Module) -> bool:
    return isinstance(module, nn.Conv2d) and not is_parametrized(module)


def _frozen_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.BatchNorm2d) and module.running_mean is not None


def _drop_and_activation(norm: nn.BatchNorm2d) -> nn.Module:
    """What a norm of timm does beside normalising."""
    layers = (getattr(norm, name, None) for name in ("drop", "act"))
    modules = [layer for layer in layers if isinstance(layer, nn.Module)]
    return nn.Sequential(*modules) if modules else nn.Identity()
