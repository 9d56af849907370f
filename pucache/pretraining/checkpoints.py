"""Checkpoints of a training: the last two are kept, so that a damaged one costs only a little work."""

from __future__ import annotations

import contextlib
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import OutputError, RunError, one_line
from ..storage import tensor_file
from ..storage.atomic import fsync_directory, make_folder

log = logging.getLogger("pucache")

KIND = tensor_file.Kind(
    format="pucache-checkpoint",
    version=1,
    noun="checkpoint",
    error=RunError,
    expected="one that pretrain wrote",
    remedy="an earlier one is needed",
)
MAX_BYTES = 1 << 36
_KEPT = 2  # number of checkpoints that stay on disk


def save(
    folder: Path, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]
) -> None:
    """Write the state after a step, and remove all checkpoints but the last two.

    Parameters
    ----------
    folder : Path
    step : int
        Number of steps taken.
    model : Module
    optimizer : Optimizer
    state : dict
        Further JSON values, which `load` returns.

    Raises
    ------
    OutputError
        The file cannot be written.
    """
    tensors = {f"model.{name}": _array(tensor) for name, tensor in model.state_dict().items()}
    for number, values in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": _array(value) for name, value in values.items() if value is not None}
    path = folder / f"{step:010}.safetensors"
    try:
        make_folder(folder)
        tensor_file.write(path, KIND, tensors, {**state, "step": step})
        for _, older in _list(folder)[:-_KEPT]:
            older.unlink(missing_ok=True)
        fsync_directory(folder)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {one_line(error)}; the one before it is untouched") from error


def load(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
    """Load the last undamaged checkpoint into a model and its optimiser.

    Returns
    -------
    dict or None
        The `state` that was saved, with ``step``; None if there is no checkpoint.

    Raises
    ------
    RunError
        There are checkpoints, and all are damaged or of another network.
    """
    checkpoints = _list(folder)
    for step, path in reversed(checkpoints):
        try:
            tensors, state = tensor_file.read(path, KIND, max_bytes=MAX_BYTES)
            _restore(path, tensors, model, optimizer)
        except RunError as error:
            log.warning("%s", error)
            continue
        if state.get("step") == step:
            if step < checkpoints[-1][0]:
                log.warning("going back to the state after step %d", step)
            return state
        log.warning("%s is the checkpoint of another step; an earlier one is needed", path)
    if checkpoints:
        raise RunError(f"no checkpoint in {folder} is whole; remove that folder to begin anew, or copy one back")
    return None


def exist(folder: Path) -> bool:
    """Whether a folder holds a checkpoint, damaged or not."""
    return bool(_list(folder))


def set_aside_after(folder: Path, step: int) -> None:
    """Rename the damaged checkpoints after a step, so that later saves do not count them as the last two."""
    for later, path in _list(folder):
        if later > step:
            with contextlib.suppress(OSError):
                path.rename(path.with_suffix(".damaged"))


def _list(folder: Path) -> list[tuple[int, Path]]:
    """Step and path of each checkpoint, by step."""
    if not folder.is_dir():
        return []
    paths = [path for path in folder.iterdir() if re.fullmatch(r"\d{10}\.safetensors", path.name)]
    return sorted((int(path.stem), path) for path in paths)


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().contiguous().numpy()


def _restore(
    path: Path, tensors: dict[str, np.ndarray], model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    parts: dict[str, dict[str, torch.Tensor]] = {"model": {}, "optimizer": {}}
    for name, values in tensors.items():
        part, _, rest = name.partition(".")
        parts.setdefault(part, {})[rest] = torch.from_numpy(values)
    states: dict[int, dict[str, torch.Tensor]] = {}
    try:
        for name, tensor in parts["optimizer"].items():
            number, _, field = name.partition(".")
            states.setdefault(int(number), {})[field] = tensor
        states = _match_parameter_strides(states, optimizer)
        model.load_state_dict(parts["model"])
        optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})
    except (RuntimeError, ValueError, KeyError, IndexError) as error:
        raise RunError(f"{path} is of another network or optimiser") from error


def _match_parameter_strides(
    states: dict[int, dict[str, torch.Tensor]], optimizer: torch.optim.Optimizer
) -> dict[int, dict[str, torch.Tensor]]:
    """Optimiser states with the strides of their parameters, which fused optimisers assume and torch does not check.

    Raises `ValueError` for a state that is neither of its parameter's shape nor a scalar.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {
        number: {name: _with_strides_of(parameters[number], tensor) for name, tensor in fields.items()}
        for number, fields in states.items()
    }


def _with_strides_of(parameter: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.ndim:
        return tensor
    if tensor.shape != parameter.shape:
        raise ValueError("a state has another shape than its parameter")
    return torch.empty_like(parameter, dtype=tensor.dtype, device="cpu").copy_(tensor)
