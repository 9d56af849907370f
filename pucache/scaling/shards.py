"""Paths as every node of a cluster finds them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..storage.atomic import folder_for_output, temporary_file
from ..storage.urls import is_url, path_or_url


def absolute(path: str | Path) -> str:
    """The path as every node finds it: tasks run in a folder of Ray."""
    location = path_or_url(path)
    return location if is_url(location) else os.path.abspath(location)


@contextmanager
def probe_file(folder: str | Path) -> Iterator[str]:
    """Path of a file by which nodes know that they see the folder; "" where it is a URL."""
    location = absolute(folder)
    if is_url(location):
        yield ""
        return
    with folder_for_output(Path(location)), temporary_file(Path(location, "nodes")) as file:
        yield str(file)
