"""Parts: the finished blocks of an unfinished cache, small cache files in ``CACHE.parts``.

`embed` and `import_embeddings` write parts while they run, and merge them at the end. A run that was killed goes on
from the parts.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from pathlib import Path

import numpy as np

from ..encoders.spec import EncoderSpec
from ..errors import CacheError
from .paths import part_files, parts_folder
from .reader import CacheFile
from .writer import Rows, write_file

log = logging.getLogger("pucache")


class Parts:
    """The parts of one cache; opening them verifies them.

    Parameters
    ----------
    cache : Path
    encoder : EncoderSpec
    dtype : dtype
        Of the stored embeddings.
    name : str, optional
        Name of the cache in messages; by default its path.

    Attributes
    ----------
    folder : Path
    files : list of CacheFile
    dtype : dtype

    Raises
    ------
    CacheError
        A part is of another encoder or dtype.
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
            part.verify()
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
        path = self.folder / f"part-{name or _hash_of(rows, failures)}.h5"
        shape = (len(rows.keys), rows.keys.itemsize, self.dtype)
        write_file(path, self._encoder, source, [rows], shape=shape, failures=failures)
        # a part of the same name is there already where the same images failed before
        self.files = [*(file for file in self.files if file.path != path), CacheFile(path)]

    def remove(self) -> None:
        """Remove the folder, once the cache holds everything."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.files = []


def _hash_of(rows: Rows, failures: dict[str, str]) -> str:
    content = hashlib.sha256(b"\0".join(rows.keys.tolist()) + rows.size_mtime.tobytes())
    content.update("\0".join(failures).encode())
    return content.hexdigest()[:16]
