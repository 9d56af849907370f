"""`pucache cache-dir`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from pucache.cache.local_copies import LocalCopies, LocalCopy
from pucache.cache.local_copies import cache_dir as run

from . import options, output


@options.command("cache-dir")
@options.option("--clear", is_flag=True, help="Remove copies for reading from this machine.")
@options.as_json
def cache_dir(clear: bool) -> None:
    """Print the copies of remote caches on this machine.

    A cache behind a URL (s3://...) is copied to this machine when it is read, and written here before it is
    sent. The copies lie in the folder PUCACHE_WORK, else in pucache below XDG_CACHE_HOME or ~/.cache.

    --clear removes copies for reading of this machine, and nothing behind a URL. A copy is made again when it is
    needed; a process that reads a copy keeps what it has mapped. Everything else stays and is listed: files that
    are written here with the parts of unfinished caches, review sessions, and other files beside the copies.

    \b
    pucache cache-dir
    pucache cache-dir --clear
    """
    local = run(clear=clear)
    output.print_result({"bytes": local.bytes, **dataclasses.asdict(local)}, _lines(local, clear))


def _lines(local: LocalCopies, clear: bool) -> Iterator[str]:
    if clear:
        yield f"removed {_total(local.removed)}"
    yield f"{local.folder}: {_total(local.copies)}"
    for copy in local.copies:
        unfinished = f", {copy.unfinished_parts:,} unfinished parts" if copy.unfinished_parts else ""
        yield f"{copy.url}: {_size(copy.bytes)}, for {copy.purpose}{unfinished}"


def _total(copies: tuple[LocalCopy, ...]) -> str:
    count = len(copies)
    return f"{count:,} {'copy' if count == 1 else 'copies'}, {_size(sum(copy.bytes for copy in copies))}"


def _size(count: int) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB")):
        if count >= unit:
            return f"{count / unit:,.1f} {name}"
    return f"{count / 1e3:,.1f} KB"
