"""Groups of the images of a review, which it keeps in its folder, so that what takes its labels knows them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..labels.groups import group_of_each, numbered
from ..storage.table_writer import write_rows
from ..storage.tables import read_table

KEPT_GROUPS = "groups.csv"
_COLUMNS = {"key": ("key",), "group": ("group",)}


def keep_groups(folder: Path, cache: EmbeddingCache, group: np.ndarray) -> None:
    """Write the group of each row, int64 (n,), by key; a table without rows says that all are independent."""
    several = np.flatnonzero(np.bincount(group, minlength=len(group))[group] > 1)
    rows = zip(cache.keys[several], cache.keys[group[several]], strict=True)
    write_rows(folder / KEPT_GROUPS, [list(_COLUMNS), *map(list, rows)])


def kept_groups(folder: Path, cache: EmbeddingCache) -> np.ndarray | None:
    """First row of each row's group, int64 (n,), as they were kept; None where nobody has said anything of groups."""
    path = folder / KEPT_GROUPS
    if not path.exists():
        return None
    table = read_table(path, _COLUMNS)
    there = cache.keys.rows([row["key"] for row in table]) >= 0
    pairs = [(row["key"], row["group"]) for row, known in zip(table, there, strict=True) if known]
    return numbered(group_of_each(cache, pairs, str(path)))
