"""Ranges and lists in braces, by which shards are usually named: ``{00000..00009}.tar``, ``{train,test}.zip``."""

from __future__ import annotations

import re

_BRACES = re.compile(r"\{(?:(\d+)\.\.(\d+)|([^{}/]*,[^{}/]*))\}")
MOST = 1_000_000  # files


def expand(pattern: str) -> list[str]:
    """The paths that a pattern stands for, in its order; itself where it has no braces of this kind.

    Numbers have as many digits as the first one of their range where that begins with a zero. Raises `ValueError` for
    more than `MOST` paths.
    """
    paths = [pattern]
    while found := _BRACES.search(paths[0]):
        inner = _texts(found)
        if len(inner) * len(paths) > MOST:
            raise ValueError(f"{pattern} stands for more than {MOST:,} files; name fewer")
        paths = [_replaced(path, text) for path in paths for text in inner]
    return paths


def base(pattern: str) -> str:
    """The part of a pattern before its first braces."""
    found = _BRACES.search(pattern)
    return pattern if found is None else pattern[: found.start()]


def _texts(found: re.Match[str]) -> list[str]:
    first, last, listed = found.groups()
    if listed is not None:
        return listed.split(",")
    begin, end = int(first), int(last)
    if abs(end - begin) >= MOST:
        raise ValueError(f"{found[0]} stands for more than {MOST:,} files; name fewer")
    width = max(len(first), len(last)) if "0" in (first[0], last[0]) and max(len(first), len(last)) > 1 else 0
    step = 1 if begin <= end else -1
    return [f"{number:0{width}}" for number in range(begin, end + step, step)]


def _replaced(path: str, text: str) -> str:
    """The path with a text in place of its first braces."""
    return _BRACES.sub(lambda _: text, path, count=1)
