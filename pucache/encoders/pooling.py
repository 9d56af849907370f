"""Pooling of timm's networks, and what the authors of some recommend for retrieval and few labels."""

from __future__ import annotations

import copy
from fnmatch import fnmatch
from typing import Any

import torch

from ..errors import EncoderError

# network: pooling and side in pixels that its authors use where timm's defaults are others
FAMILIES = {
    # arXiv:2304.07193; 224 px is the size of its evaluation, facebookresearch/dinov2, dinov2/data/transforms.py
    "vit_*_dinov2*": ("token", 224),
    # arXiv:2508.10104; timm.models.eva: "Pass global_pool='token' to match upstream, preferred for retrieval, few-shot"
    "vit_*_dinov3*": ("token", None),
}
_POOLINGS = ("token", "avg", "map", "max", "avgmax", "catavgmax")


def authors_choice(network: str) -> tuple[str | None, int | None]:
    """Pooling and side in pixels of a network's authors; None where these are timm's."""
    return next((choice for names, choice in FAMILIES.items() if fnmatch(network, names)), (None, None))


def pooling_of(model: torch.nn.Module) -> str:
    """Name of the pooling in timm's terms (``avg``, ``token``, ...), or ``model`` where it has no choice."""
    pool = getattr(model, "global_pool", None)
    name = pool if isinstance(pool, str) else getattr(pool, "pool_type", None)
    return name or "model"


def set_pooling(model: Any, name: str, pooling: str) -> None:
    """Change the pooling, in place; weights stay as they are, so nothing that is untrained comes in."""
    if not _takes(model, pooling):
        offered = [each for each in _POOLINGS if _takes(copy.deepcopy(model), each)]
        choice = f"use one of {', '.join(offered)}" if offered else "leave it out, as there is no choice"
        raise EncoderError(f"{name} has no pooling {pooling!r}; {choice}")


def _takes(model: Any, pooling: str) -> bool:
    try:
        model.reset_classifier(0, pooling)
    except Exception:  # timm asserts, and some networks take no pooling
        return False
    return pooling in _POOLINGS and pooling_of(model) == pooling
