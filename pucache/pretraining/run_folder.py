"""The folder of a run: one configuration, one writer."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..encoders import pretrained_file
from ..errors import OutputError, RunError, one_line
from ..storage.atomic import check_writable, exclusive_lock, replacing
from ..version import __version__
from . import checkpoints
from .recipes import Recipe

_RUN, _RESULT = "run.json", "finished.json"
CHECKPOINTS = "checkpoints"
_SHOWN = 40  # characters of a setting that an error tells
FORMAT, VERSION = "pucache-run", 1


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a second writer away; the lock dies with the process that holds it.

    Raises
    ------
    RunError
        Somebody else is training there.
    OutputError
        The folder cannot be made or written.
    """
    _require_own(folder)
    taken = RunError(f"{folder} is being trained in by another process; wait for it, or name another folder")
    with exclusive_lock(check_writable(folder / ".lock"), taken):
        yield


def _require_own(folder: Path) -> None:
    """Refuse a folder of other things, such as the images."""
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file; RUN_DIR is a folder, new or empty or of an earlier run")
    if not folder.is_dir() or (folder / _RUN).exists() or _has_learned(folder):
        return
    others = sorted(path.name for path in folder.iterdir() if not path.name.startswith((".", "images.")))
    if others:
        raise RunError(f"{folder} holds other files ({', '.join(map(repr, others[:3]))}); name a new or empty folder")


def claim(folder: Path, recipe: Recipe, settings: dict[str, Any], provenance: dict[str, Any]) -> None:
    """Write down the configuration of a new run, or make sure that it is that of the run that is there.

    More epochs than before are taken where the learning rate does not depend on them. What has learned
    nothing yet is no run: it gives way to one of another configuration.

    Parameters
    ----------
    folder : Path
    recipe : Recipe
    settings : dict
        What else decides the numbers, JSON-able.
    provenance : dict
        What does not, and is good to know.

    Raises
    ------
    RunError
        Of another configuration, or unreadable.
    """
    differing: list[str] = []
    if (folder / _RUN).exists():
        differing = _differing(*read(folder), recipe, settings)
    elif _has_learned(folder):
        raise RunError(f"{folder} holds an encoder or checkpoints, and no {_RUN} beside them; name another folder")
    if differing and _has_learned(folder):
        raise RunError(
            f"{folder} holds a run of another configuration: {'; '.join(differing)}; "
            "name another folder, or give the same options to go on"
        )
    told = {
        "format": FORMAT,
        "version": VERSION,
        "recipe": vars(recipe),
        "settings": settings,
        "provenance": {**provenance, "pucache": __version__},
    }
    _write(folder / _RUN, told)


def _differing(before: dict[str, Any], earlier: Recipe, recipe: Recipe, settings: dict[str, Any]) -> list[str]:
    """What was otherwise in an earlier configuration, as text."""
    pairs = [(name, before.get(name), value) for name, value in settings.items()]
    if not earlier.goes_on_as(recipe):
        pairs += [(name, getattr(earlier, name), value) for name, value in vars(recipe).items()]
    found = [f"{name} {_short(was)} (now {_short(now)})" for name, was, now in pairs if was != now]
    if before.get("images") != settings.get("images"):
        found = [text for text in found if not text.startswith("images ")]
        found.append(
            "other images than those it was begun with (--weights takes what it has learned to another folder)"
        )
    return found


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN // 2] + "..."


def _has_learned(folder: Path) -> bool:
    return (folder / pretrained_file.NAME).exists() or checkpoints.exist(folder / CHECKPOINTS)


def finish(folder: Path, recipe: Recipe, result: dict[str, Any]) -> None:
    """Write down what a run has come to at its end; a number that is not known is no part of it.

    Raises
    ------
    OutputError
        It cannot be written.
    """
    known = {name: value for name, value in result.items() if not (isinstance(value, float) and math.isnan(value))}
    _write(folder / _RESULT, {"recipe": vars(recipe), "result": known})


def finished(folder: Path, recipe: Recipe) -> dict[str, Any] | None:
    """What `finish` wrote, where that was of this recipe; for a folder that is claimed."""
    try:
        told = json.loads((folder / _RESULT).read_text())
        return dict(told["result"]) if told["recipe"] == vars(recipe) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _write(path: Path, told: dict[str, Any]) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(told, indent=1) + "\n")


def read(folder: Path) -> tuple[dict[str, Any], Recipe]:
    """Settings and recipe of the run in a folder.

    Raises
    ------
    RunError
        Not there, or not what `claim` wrote.
    """
    path = folder / _RUN
    try:
        told = json.loads(path.read_text())
        if told["format"] != FORMAT or told["version"] != VERSION:
            raise ValueError(f"format {told['format']!r}, version {told['version']!r}")
        return dict(told["settings"]), Recipe(**told["recipe"])
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}; expected a folder that pretrain wrote") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(
            f"{path} is not the configuration of a run ({one_line(error)[:120]}); name another folder"
        ) from error
