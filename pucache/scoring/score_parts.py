"""The folder of ``score --parts``: a table for each cache file, and none of shards that are gone."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

from ..cache.embedding_cache import EmbeddingCache
from ..cache.local_copies import folder_of
from ..errors import OutputError
from ..storage.filesystem import folder_files, open_filesystem, store_errors
from ..storage.urls import is_url, path_or_url, without_secrets
from .score_tables import FORMATS, check_output

_NAMES_SHOWN = 3


def part_outputs(cache: EmbeddingCache, folder: str | Path, suffix: str) -> list[str]:
    """Tables of the files of a cache, in their order; checked to be writable before any work.

    Parameters
    ----------
    cache : EmbeddingCache
    folder : path or URL
    suffix : {"csv", "parquet"}

    Returns
    -------
    list of str
        ``FOLDER/NAME.csv`` of the cache file ``NAME.h5``.

    Raises
    ------
    ValueError
        Another suffix; two files have one name; or `folder` has the name of a table.
    OutputError, MissingExtraError
        A table cannot be written; or `folder` holds tables of shards that are gone.
    """
    folder = path_or_url(folder)
    if suffix not in FORMATS:
        raise ValueError(f"parts are tables of {' or '.join(FORMATS)}, got {suffix!r}")
    if os.path.splitext(folder)[1].lower().lstrip(".") in FORMATS:
        raise ValueError(
            f"parts are written to a folder, a table for each cache file, and {without_secrets(folder)} is the name of "
            "a table; name a folder as out"
        )
    paths = [file.path for file in cache.files]
    stems = sorted(path.stem for path in paths)
    twice = next((one for one, other in pairwise(stems) if one == other), None)
    if twice is not None:
        raise ValueError(
            f"two cache files are called {twice}.h5, and their parts would be one; rename one, or score each"
        )
    parts = [f"{folder.rstrip('/') or '/'}/{path.stem}.{suffix}" for path in paths]
    _refuse_surplus(folder, suffix, paths)
    for part in parts[:1] if is_url(folder) else parts:  # one request tells whether a store can be written to
        check_output(part, inputs=paths)
    return parts


def _refuse_surplus(folder: str, suffix: str, shards: list[Path]) -> None:
    """Refuse a folder with tables of shards that are gone: who reads the folder would count their rows.

    Tables of shards that lie beside those scored stay, as several jobs may write to one folder. Nothing is removed.
    """
    surplus = _stems(folder, f".{suffix}") - {path.stem for path in shards}
    try:
        for shard_folder in set(map(folder_of, shards)) if surplus else ():
            surplus -= _stems(shard_folder, ".h5")
    except OutputError:  # such as a store of single files: what lies beside the shards is not known
        return
    if surplus:
        names, more = sorted(f"{stem}.{suffix}" for stem in surplus), len(surplus) - _NAMES_SHOWN
        raise OutputError(
            f"{without_secrets(folder)} holds tables of shards that are gone: {', '.join(names[:_NAMES_SHOWN])}"
            f"{f' and {more} more' if more > 0 else ''}; whoever reads the folder would count their rows. Remove them, "
            "or name another folder as out"
        )


def _stems(folder: str, suffix: str) -> set[str]:
    """Names without the suffix of the visible files that have it; none where the folder does not exist."""
    try:
        if is_url(folder):
            with store_errors(OutputError, "read", without_secrets(folder)):
                names = list(folder_files(*open_filesystem(folder), suffix))
        else:
            names = os.listdir(folder)
    except FileNotFoundError:
        return set()
    except OSError as error:
        raise OutputError(f"cannot list {folder}: {error.strerror}; choose another folder") from error
    return {name.removesuffix(suffix) for name in names if name.endswith(suffix) and not name.startswith(".")}
