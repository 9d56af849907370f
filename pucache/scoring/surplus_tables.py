"""Tables of an earlier run that no shard has any more, in the folder into which a table of each shard is written."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ..cache.local_copies import folder_of
from ..errors import OutputError
from ..storage.filesystem import folder_files, open_filesystem, store_errors
from ..storage.urls import is_url, without_secrets

_NAMES_SHOWN = 3


def refuse_surplus_tables(folder: str, tables: Iterable[str], shards: Iterable[Path]) -> None:
    """Refuse a folder with tables of shards that are gone: who reads the folder would count their rows.

    Tables of shards that lie beside those scored stay, as several jobs may write to one folder. Nothing is removed.

    Parameters
    ----------
    folder : path or URL
        It need not exist.
    tables : iterable of str
        What is to be written to the folder, with one suffix: ``FOLDER/NAME.csv``.
    shards : iterable of Path
        The cache files that are scored, or local copies of them.

    Raises
    ------
    OutputError
        There are such tables, or the folder cannot be listed.
    """
    written = {table.rpartition("/")[2] for table in tables}
    suffix = os.path.splitext(next(iter(written)))[1]
    surplus = _names(folder, suffix) - written
    if not surplus:
        return
    try:
        stems = {name.removesuffix(".h5") for beside in set(map(folder_of, shards)) for name in _names(beside, ".h5")}
    except OutputError:  # such as a store of single files: what lies beside the shards is not known
        return
    surplus -= {f"{stem}{suffix}" for stem in stems}
    if surplus:
        names, more = sorted(surplus)[:_NAMES_SHOWN], max(0, len(surplus) - _NAMES_SHOWN)
        raise OutputError(
            f"{without_secrets(folder)} holds tables of shards that are gone: {', '.join(names)}"
            f"{f' and {more} more' if more else ''}; whoever reads the folder would count their rows. Remove them, or "
            "name another folder as out"
        )


def _names(folder: str, suffix: str) -> set[str]:
    """Names of visible files with a suffix; none where the folder does not exist."""
    if is_url(folder):
        with store_errors(OutputError, "read", without_secrets(folder)):
            return set(folder_files(*open_filesystem(folder), suffix))
    try:
        return {name for name in os.listdir(folder) if name.endswith(suffix) and not name.startswith(".")}
    except FileNotFoundError:
        return set()
    except OSError as error:
        raise OutputError(f"cannot list {folder}: {error.strerror}; choose another folder") from error
