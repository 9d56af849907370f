"""The map of a report, computed in a child process beside the report's training.

The map takes one core for seconds, and so does the training. A child process rather than a thread, because
the map needs BLAS limited to one thread, a limit that would hold for the training too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ..devices import cores
from ..storage.rows import RowMatrix, take_rows
from .embedding_map import EmbeddingMap, embedding_map

MIN_ROWS = 500  # a child takes about two seconds to start; smaller maps take less
_EMBEDDINGS, _MAP = "embeddings.npy", "map.npz"


class BackgroundMap:
    """`embedding_map` of some rows of X, in a child process where that pays; the result is the same.

    Leaving the context ends the child process.

    Parameters
    ----------
    X : ndarray or StackedRows, (n, d)
    seed : int
    """

    def __init__(self, X: RowMatrix, *, seed: int):
        self._X, self._seed = X, seed
        self._rows = np.empty(0, np.int64)
        self._folder: Path | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._cleanup = ExitStack()

    def __enter__(self) -> BackgroundMap:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cleanup.close()

    def start(self, rows: np.ndarray) -> None:
        """Start to map rows, int64 (m,), ascending; call this once."""
        self._rows = rows
        if len(rows) < MIN_ROWS or cores() < 2:
            return
        try:
            folder = self._cleanup.enter_context(tempfile.TemporaryDirectory(prefix="pucache-map-"))
            self._folder = Path(folder)
            np.save(self._folder / _EMBEDDINGS, take_rows(self._X, rows))
            self._child = _start_child(self._folder, self._seed)
        except OSError:  # no space or no processes left; `result` computes the map itself
            return
        self._cleanup.callback(_end, self._child)

    def result(self) -> EmbeddingMap:
        """Wait for the map; where the child process failed, compute it in this process."""
        if self._folder is not None and self._child is not None and self._child.wait() == 0:
            return replace(_load(self._folder / _MAP), rows=self._rows)
        return embedding_map(self._X, self._rows, seed=self._seed)


def _start_child(folder: Path, seed: int) -> subprocess.Popen[bytes]:
    # -P: no module of the working directory is imported
    command = [sys.executable, "-P", "-m", "pucache.pages.background_map", str(folder), str(seed)]
    # instead, pucache is imported from where this process has it
    modules = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(modules)}
    devnull = subprocess.DEVNULL
    return subprocess.Popen(  # noqa: S603 - our own module; no shell
        command, stdin=devnull, stdout=devnull, stderr=devnull, env=environment
    )


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.kill()
    child.wait()


def _save(path: Path, layout: EmbeddingMap) -> None:
    arrays: dict[str, Any] = {name: value for name, value in vars(layout).items() if value is not None}
    np.savez(path, **arrays)


def _load(path: Path) -> EmbeddingMap:
    with np.load(path, allow_pickle=False) as arrays:
        return EmbeddingMap(
            rows=arrays["rows"],
            pca=arrays["pca"],
            tsne=arrays.get("tsne"),
            explained=float(arrays["explained"]),
        )


def _map_in_child(folder: Path, seed: int) -> None:
    """In the child process: map the embeddings that the parent saved."""
    X = np.load(folder / _EMBEDDINGS)
    _save(folder / _MAP, embedding_map(X, np.arange(len(X)), seed=seed))


if __name__ == "__main__":
    _map_in_child(Path(sys.argv[1]), int(sys.argv[2]))
