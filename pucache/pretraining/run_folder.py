"""The folder of a run: one configuration, one writer."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..encoders import pretrained_file
from ..errors import OutputError, RunError, one_line
from ..storage.atomic import check_writable, exclusive_lock, replacing
from ..version import __version__
from . import checkpoints
from .recipes import Recipe

_CONFIGURATION, _RESULT = "run.json", "finished.json"
CHECKPOINTS = "checkpoints"
_MAX_SETTING_LENGTH = 40  # characters of a setting in an error message
FORMAT, VERSION = "pucache-run", 1


@dataclass(frozen=True)
class RunSettings:
    """Settings beside the recipe that change the result of a run.

    Attributes
    ----------
    architecture, stem, size
        See `pucache.encoders.pretrained_file.Description`.
    weights : str
        Digest of the weights from which training starts, or ``random``.
    seed : int
    precision : str
    images : str
        Digest of the keys and sizes of the images.
    """

    architecture: str
    stem: str
    size: int
    weights: str
    seed: int
    precision: str
    images: str


@dataclass(frozen=True)
class Provenance:
    """Facts about a run that do not change its result.

    Attributes
    ----------
    source : str
        Name of the source.
    listed : int
        Number of images in it.
    processes : int
        Number of processes that train.
    """

    source: str
    listed: int
    processes: int


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a run folder for one writer; the lock ends with the process that holds it.

    Raises
    ------
    RunError
        Another process is training in the folder, or the folder holds other files.
    OutputError
        The folder cannot be made or written.
    """
    _refuse_other_files(folder)
    in_use = RunError(f"{folder} is being trained in by another process; wait for it, or name another folder")
    with exclusive_lock(check_writable(folder / ".lock"), in_use):
        yield


def _refuse_other_files(folder: Path) -> None:
    """Refuse a folder that holds something else, such as the images."""
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file; RUN_DIR is a folder, new or empty or of an earlier run")
    if not folder.is_dir() or (folder / _CONFIGURATION).exists() or _has_trained(folder):
        return
    others = sorted(path.name for path in folder.iterdir() if not path.name.startswith((".", "images.")))
    if others:
        raise RunError(f"{folder} holds other files ({', '.join(map(repr, others[:3]))}); name a new or empty folder")


def claim(folder: Path, recipe: Recipe, settings: RunSettings, provenance: Provenance) -> None:
    """Write the configuration of a new run, or check it against that of the existing run.

    A run may continue with more epochs if its learning rate is constant. A run that has written no encoder
    and no checkpoint yet may be replaced by one of another configuration.

    Raises
    ------
    RunError
        The folder holds a run of another configuration, or its configuration is unreadable.
    """
    differences: list[str] = []
    if (folder / _CONFIGURATION).exists():
        earlier_settings, earlier_recipe = read_configuration(folder)
        differences = _differences(earlier_settings, earlier_recipe, settings, recipe)
    elif _has_trained(folder):
        raise RunError(
            f"{folder} holds an encoder or checkpoints, and no {_CONFIGURATION} beside them; name another folder"
        )
    if differences and _has_trained(folder):
        raise RunError(
            f"{folder} holds a run of another configuration: {'; '.join(differences)}; "
            "name another folder, or give the same options to go on"
        )
    configuration = {
        "format": FORMAT,
        "version": VERSION,
        "recipe": vars(recipe),
        "settings": vars(settings),
        "provenance": {**vars(provenance), "pucache": __version__},
    }
    _write_json(folder / _CONFIGURATION, configuration)


def _differences(
    earlier_settings: dict[str, Any], earlier_recipe: Recipe, settings: RunSettings, recipe: Recipe
) -> list[str]:
    """What differs from the configuration of an earlier run, as text."""
    pairs = [(name, earlier_settings.get(name), value) for name, value in vars(settings).items() if name != "images"]
    if not earlier_recipe.can_continue_as(recipe):
        pairs += [(name, getattr(earlier_recipe, name), value) for name, value in vars(recipe).items()]
    texts = [f"{name} {_shorten(old)} (now {_shorten(new)})" for name, old, new in pairs if old != new]
    if earlier_settings.get("images") != settings.images:
        texts.append(
            "other images than those it was begun with (--weights takes what it has learned to another folder)"
        )
    return texts


def _shorten(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _MAX_SETTING_LENGTH else text[: _MAX_SETTING_LENGTH // 2] + "..."


def _has_trained(folder: Path) -> bool:
    return (folder / pretrained_file.NAME).exists() or checkpoints.exist(folder / CHECKPOINTS)


def write_result(folder: Path, recipe: Recipe, result: dict[str, Any]) -> None:
    """Write the result of a finished run; NaN values are left out.

    Raises
    ------
    OutputError
        The file cannot be written.
    """
    values = {name: value for name, value in result.items() if not (isinstance(value, float) and math.isnan(value))}
    _write_json(folder / _RESULT, {"recipe": vars(recipe), "result": values})


def read_result(folder: Path, recipe: Recipe) -> dict[str, Any] | None:
    """Result that `write_result` wrote, if it was of this recipe, else None."""
    try:
        content = json.loads((folder / _RESULT).read_text())
        return dict(content["result"]) if content["recipe"] == vars(recipe) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n")


def read_configuration(folder: Path) -> tuple[dict[str, Any], Recipe]:
    """Settings and recipe of the run in a folder.

    Raises
    ------
    RunError
        The file is missing, or `claim` did not write it.
    """
    path = folder / _CONFIGURATION
    try:
        content = json.loads(path.read_text())
        if content["format"] != FORMAT or content["version"] != VERSION:
            raise ValueError(f"format {content['format']!r}, version {content['version']!r}")
        return dict(content["settings"]), Recipe(**content["recipe"])
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}; expected a folder that pretrain wrote") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(
            f"{path} is not the configuration of a run ({one_line(error)[:120]}); name another folder"
        ) from error
