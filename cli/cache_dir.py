"""`pucache cache-dir`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from . import options, output

if TYPE_CHECKING:
    from pucache.cache.local_copies import LocalCopies, LocalCopy


@click.command()
@click.option("--clear", is_flag=True, help="Remove the copies that no process uses.")
@options.as_json
def cache_dir(clear: bool, as_json: bool) -> None:
    """Print where this machine keeps copies of remote caches, how many and how large.

    The folder is PUCACHE_WORK, else ~/.cache/pucache. With --clear, copies that a running process uses
    are kept, and so are parts of unfinished caches, which may not be in the store yet. A copy that was
    removed is downloaded again when it is needed.

    \b
    pucache cache-dir
    pucache cache-dir --clear
    """
    from pucache.cache.local_copies import cache_dir as run

    local = run(clear=clear)
    result = {
        "folder": str(local.folder),
        "bytes": local.bytes,
        "copies": [_as_dict(copy) for copy in local.copies],
        "removed": [_as_dict(copy) for copy in local.removed],
    }
    output.print_result(result, list(_lines(local, clear)), as_json)


def _as_dict(copy: LocalCopy) -> dict[str, Any]:
    return dataclasses.asdict(copy) | {"folder": str(copy.folder)}


def _lines(local: LocalCopies, clear: bool) -> Iterator[str]:
    if clear:
        yield f"removed {_total(local.removed)}"
    yield f"{local.folder}: {_total(local.copies)}"
    for copy in local.copies:
        if copy.kept_because:
            yield f"kept {_name(copy)}: {copy.kept_because}"
        else:
            yield f"{_name(copy)}: {_size(copy.bytes)}, for {copy.purpose}{', in use' if copy.in_use else ''}"


def _total(copies: tuple[LocalCopy, ...]) -> str:
    count = len(copies)
    return f"{count:,} {'copy' if count == 1 else 'copies'}, {_size(sum(copy.bytes for copy in copies))}"


def _name(copy: LocalCopy) -> str:
    return copy.url or str(copy.folder)


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"
