"""Parts: the finished blocks of an unfinished cache, small cache files in ``CACHE.parts``; and the writer's lock.

`embed` and `import_embeddings` write parts while they run, and merge them at the end. A killed `embed` goes on from its
parts.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ..encoders.spec import EncoderSpec
from ..errors import CacheError, CacheLockedError
from ..storage.atomic import exclusive_lock, folder_for_output
from .embedding_cache import EmbeddingCache
from .reader import CacheFile
from .writer import Rows, write_file

log = logging.getLogger("pucache")


@contextmanager
def writer_lock(cache: Path, name: str = "") -> Iterator[None]:
    """Exclude a second writer of `cache`, called `name` in the message; the end of the process releases the lock."""
    lock = cache.with_name(f".{cache.name}.lock")
    locked = CacheLockedError(f"{name or cache} is being written by another process (lock {lock}); wait for it")
    with folder_for_output(cache.parent), exclusive_lock(lock, locked):
        try:
            yield
        finally:
            if not cache.exists() and not parts_folder(cache).exists():  # refused: leave nothing beside the images
                lock.unlink(missing_ok=True)


def parts_folder(cache: Path) -> Path:
    """Folder of the parts of an unfinished cache."""
    return cache.with_name(cache.name + ".parts")


def part_files(cache: Path) -> list[Path]:
    """Existing parts of an unfinished cache, sorted by name."""
    try:
        return sorted(parts_folder(cache).glob("part-*.h5"))
    except FileNotFoundError:  # another writer has just removed the folder
        return []


class Parts:
    """The parts of one cache; opening them verifies them. `name` stands for the cache in messages.

    Raises `CacheError` where a part is of another encoder or dtype.
    """

    def __init__(self, cache: Path, encoder: EncoderSpec, dtype: np.dtype, *, name: str = ""):
        self.folder = parts_folder(cache)
        self._name = f"{name or cache}.parts"
        self._encoder, self.dtype = encoder, dtype
        self.files: list[CacheFile] = []
        for path in part_files(cache):
            self._open(path)
        if self.files:
            log.warning("going on from %d images in %s", sum(map(len, self.files)), self.folder)

    def _open(self, path: Path) -> None:
        """Open one part; a damaged one is set aside."""
        try:
            part = CacheFile(path)
            EmbeddingCache(part).verify()
        except CacheError as error:
            aside = path.with_suffix(".damaged")
            path.replace(aside)
            log.warning("%s; set aside as %s, its images are embedded again", str(error).split(";")[0], aside.name)
            return
        differing = part.encoder.differences(self._encoder) + ["dtype"] * (part.dtype != self.dtype)
        if differing:
            raise CacheError(
                f"{self._name} holds unfinished work of {part.encoder} in {part.dtype}, not of {self._encoder} in "
                f"{self.dtype} (they differ in {', '.join(differing)}); finish it with the command it was begun with, "
                "or remove the folder"
            )
        part.release()
        self.files.append(part)

    def add(self, rows: Rows, failures: dict[str, str], source: str, *, name: str = "") -> None:
        """Write one block durably as ``part-NAME.h5``; by default NAME is a hash of its keys."""
        content = hashlib.sha256(b"\0".join(rows.keys.tolist()) + rows.size_mtime.tobytes())
        content.update("\0".join(failures).encode())
        path = self.folder / f"part-{name or content.hexdigest()[:16]}.h5"
        shape = (len(rows.keys), rows.keys.itemsize, self.dtype)
        write_file(path, self._encoder, source, [rows], shape=shape, failures=failures)
        # a part of the same name is there already where the same images failed before
        self.files = [*(file for file in self.files if file.path != path), CacheFile(path)]

    def remove(self) -> None:
        """Remove the folder, once the cache holds everything."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.files = []
