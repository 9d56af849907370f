"""Checking the outputs of a command against all that it reads, before any work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import click

from pucache.cache.destination import open_destination
from pucache.cache.embedding_cache import files_read
from pucache.storage.outputs import check_distinct, may_replace_derived


def check_outputs(*outputs: tuple[str, str | None, str], reads: Sequence[str] = (), force: bool = False) -> None:
    """Check the outputs of a command before any work: the parameter, the path, and the kind of file of each.

    Each may be written, is no input and no other output, and replaces its own kind alone unless `force` is set; see
    `pucache.storage.outputs`. Inputs are what all other parameters of the command name, and `reads`.
    """
    context = click.get_current_context()
    names = {str(parameter.name): parameter.opts[0] for parameter in context.command.params}
    check_distinct([(names[name], path) for name, path, _ in outputs if path is not None])
    for _, path, kind in outputs:
        if path is not None:
            inputs = chain(reads, _inputs(*(name for name, *_ in outputs)))
            open_destination(path).check(kind, inputs=inputs, force=force)


def check_files(files: Iterable[Path], kind: str, option: str) -> None:
    """As `check_outputs`, of files in the folder that the parameter `option` names."""
    inputs: list[str] | None = None  # read once, for the first file that would be replaced
    for file in files:
        if inputs is None and file.exists():
            inputs = list(dict.fromkeys(_inputs(option)))
        open_destination(file).check(kind, inputs=inputs or ())


def may_write_derived(path: Path, *outputs: str) -> bool:
    """Whether a file whose name was made from an output's may be written; `outputs` are the parameters of outputs."""
    return may_replace_derived(path, _inputs(*outputs))


def _inputs(*outputs: str) -> Iterator[str]:
    """Paths that the parameters of the running command name, but for those of its outputs, and what caches add."""
    parameters = click.get_current_context().params
    return files_read(*(value for name, value in parameters.items() if name not in outputs))
