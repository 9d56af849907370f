"""The folder of a run: one configuration, one writer."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock

from .. import __version__
from ..durable import check_writable, replacing
from ..errors import RunError
from .recipes import Recipe

_RUN = "run.json"
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
    lock = filelock.FileLock(check_writable(folder / ".lock"))
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout as error:
        raise RunError(
            f"{folder} is being trained in by another process; wait for it, or name another folder"
        ) from error
    try:
        yield
    finally:
        lock.release()


def claim(folder: Path, recipe: Recipe, settings: dict[str, Any], provenance: dict[str, Any]) -> None:
    """Write down the configuration of a new run, or make sure that it is that of the run that is there.

    More epochs than before are taken where the learning rate does not depend on them.

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
    path = folder / _RUN
    if path.exists():
        before, earlier = read(folder)
        differing = [
            f"{name} {before.get(name)} (now {value})" for name, value in settings.items() if before.get(name) != value
        ]
        differing += [
            text
            for text in earlier.differences(recipe)
            if not (text.startswith("epochs ") and _goes_on(earlier, recipe))
        ]
        if differing:
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
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path} is not the configuration of a run ({str(error)[:120]}); name another folder") from error


def _goes_on(before: Recipe, now: Recipe) -> bool:
    return before.constant and now.epochs >= before.epochs
