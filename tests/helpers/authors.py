"""Untrained networks of timm, and their tensors by the names of those who train them."""

import re

import timm
import torch

IMAGES = torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(0)) * 2 - 1


def network(name, **settings):
    """An untrained network whose biases, tokens and scales are not all zero or one."""
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=0, **settings).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    return model


def renamed(state, *rules):
    for pattern, name in rules:
        state = {re.sub(pattern, name, each): tensor for each, tensor in state.items()}
    return state


def dinov2(model):
    state = dict(model.state_dict())
    return state | {"mask_token": torch.ones(1, state["cls_token"].shape[-1])}


def dinov2_with_registers(model):
    """As Meta has them: the class token's position is not yet added to it."""
    state = dinov2(model)
    position = torch.full_like(state["cls_token"], 0.1)
    state["register_tokens"], state["cls_token"] = state.pop("reg_token"), state["cls_token"] - position
    state["pos_embed"] = torch.cat([position, state["pos_embed"]], 1)
    return state
