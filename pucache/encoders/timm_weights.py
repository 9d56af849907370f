"""Weights of a checkpoint in a network of timm: brought to its names and shapes, compared tensor by tensor, loaded."""

from __future__ import annotations

import contextlib
import inspect
import io
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..errors import EncoderError, one_line
from .checkpoints import encoder_tensors


def load_weights(model: Any, name: str, content: dict[Any, Any], holder: str | Path) -> None:
    """Load the weights of a checkpoint into a network; weights of a classifier are left out."""
    classifiers = model.pretrained_cfg.get("classifier") or ()
    classifiers = (classifiers,) if isinstance(classifiers, str) else tuple(classifiers)
    expected = model.state_dict()
    state = encoder_tensors(content, expected, classifiers, holder, partial(_converted, model, name))
    _require_same_tensors(state, expected, f"{holder} does not fit {name}")
    try:
        model.load_state_dict(state, strict=False)
    except RuntimeError as error:  # sparse or quantised tensors, say
        raise EncoderError(f"{holder} does not fit {name}: {one_line(error)}; pass plain tensors") from error


def _converted(model: Any, name: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors by names and in shapes of timm, whose filter knows those of many authors; positions are resampled."""
    convert = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    if convert is None or "flexi" in name or "radio" in name:  # these are resampled in another way
        return tensors
    options = {"adapt_layer_scale": True} if "adapt_layer_scale" in inspect.signature(convert).parameters else {}
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # timm prints what it has looked for
            converted: dict[str, torch.Tensor] = convert(dict(tensors), model, **options)
    except Exception:  # of tensors that are none of this network's
        return tensors
    resized = [each for each in converted if each in tensors and converted[each].numel() != tensors[each].numel()]
    return converted | {each: tensors[each] for each in resized if "pos" not in each}  # a patch of another size is none


def _require_same_tensors(state: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], problem: str) -> None:
    missing = [name for name in expected if name not in state and not name.endswith("num_batches_tracked")]
    foreign = [name for name in state if name not in expected]
    both = [(name, state[name], tensor) for name, tensor in expected.items() if name in state]
    retyped = [
        name
        for name, one, other in both
        if (one.is_complex(), one.is_floating_point()) != (other.is_complex(), other.is_floating_point())
    ]
    reshaped = [name for name, one, other in both if one.shape != other.shape]
    problems = {
        "lacks": missing,
        "has unknown": foreign,
        "has another shape of": reshaped,
        "has another type of": retyped,  # such as quantised numbers, which mean nothing without their scale
    }
    for what, names in problems.items():
        if names:
            raise EncoderError(
                f"{problem}: it {what} {len(names)} of {len(expected)} tensors "
                f"({', '.join(names[:3])}{', ...' if len(names) > 3 else ''}); pass the weights of that model"
            )


def require_finite(model: Any, holder: object) -> None:
    """Raise `EncoderError` where weights are NaN or infinite, or variances negative; `holder` names them."""
    wrong = [
        name
        for name, tensor in model.state_dict().items()
        if not tensor.isfinite().all() or (name.endswith("running_var") and (tensor < 0).any())
    ]
    if wrong:
        raise EncoderError(
            f"{holder} holds NaN, infinity or a negative variance in {len(wrong)} tensors ({', '.join(wrong[:3])}"
            f"{', ...' if len(wrong) > 3 else ''}); expected finite weights: take a copy or an earlier checkpoint"
        )
