"""Parts: the finished blocks of an unfinished run, small cache files in ``CACHE.parts``."""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..cache.keys import encode_keys, find_sorted
from ..cache.paths import part_files, parts_folder
from ..cache.reader import CacheFile
from ..cache.writer import Rows, write_file
from ..encoders.spec import EncoderSpec
from ..errors import CacheError

log = logging.getLogger("pucache")


@dataclass(frozen=True)
class PartContents:
    """What parts hold of a listing.

    Attributes
    ----------
    picks : list of (CacheFile, ndarray of int)
        Rows of each part whose image is unchanged since it was embedded.
    has_row : ndarray of bool, (n,)
        Listed images that have a row in the existing cache or in a part.
    failures : dict of str to str
        Listed images that could not be read and have no row, with the reason.
    failed : ndarray of int64
        Positions of the failures in the listing.
    """

    picks: list[tuple[CacheFile, np.ndarray]]
    has_row: np.ndarray
    failures: dict[str, str]
    failed: np.ndarray


class Parts:
    """The parts of one cache.

    Parameters
    ----------
    cache : Path
    spec : EncoderSpec
    dtype : dtype
        Of the stored embeddings.
    name : str, optional
        Name of the cache in messages; by default its path.
    on_written : callable, optional
        Called with the path of each part once it is on disk.

    Attributes
    ----------
    files : list of CacheFile

    Raises
    ------
    CacheError
        A part is of another encoder or dtype.
    """

    def __init__(
        self,
        cache: Path,
        spec: EncoderSpec,
        dtype: np.dtype,
        *,
        name: str = "",
        on_written: Callable[[Path], None] | None = None,
    ):
        self.folder = parts_folder(cache)
        self._name = f"{name or cache}.parts"
        self._spec, self._dtype, self._on_written = spec, dtype, on_written
        self.files: list[CacheFile] = []
        for path in part_files(cache):
            self._open(path)
        if self.files:
            log.warning("going on from %d images in %s", sum(map(len, self.files)), self.folder)

    def _open(self, path: Path) -> None:
        try:
            part = CacheFile(path)
            part.verify()
        except CacheError as error:
            aside = path.with_suffix(".damaged")
            path.replace(aside)
            log.warning("%s; set aside as %s, its images are embedded again", str(error).split(";")[0], aside.name)
            return
        differing = part.encoder.differences(self._spec) + ["dtype"] * (part.dtype != self._dtype)
        if differing:
            raise CacheError(
                f"{self._name} holds unfinished work of {part.encoder} in {part.dtype}, not of {self._spec} in "
                f"{self._dtype} (they differ in {', '.join(differing)}); finish it with the command it was begun with, "
                "or remove the folder"
            )
        part.release()
        self.files.append(part)

    def add(self, rows: Rows, failures: dict[str, str], source: str) -> None:
        """Write one block durably, under a name that is a hash of its keys."""
        content = hashlib.sha256(b"\0".join(rows.keys.tolist()) + rows.size_mtime.tobytes())
        content.update("\0".join(failures).encode())
        path = self.folder / f"part-{content.hexdigest()[:16]}.h5"
        shape = (len(rows.keys), rows.keys.itemsize, self._dtype)
        write_file(path, self._spec, source, [rows], shape=shape, failures=failures)
        # a part of the same name is there already where the same images failed before
        self.files = [*(file for file in self.files if file.path != path), CacheFile(path)]
        if self._on_written:
            self._on_written(path)

    def contents(self, keys: np.ndarray, size_mtime: np.ndarray, has_row: np.ndarray) -> PartContents:
        """Find what the parts hold of a listing.

        Parameters
        ----------
        keys : ndarray of bytes (dtype S), (n,)
            Listed keys, sorted.
        size_mtime : ndarray of int64, (n, 2)
        has_row : ndarray of bool, (n,)
            Images that have a row in the existing cache.
        """
        picks: list[tuple[CacheFile, np.ndarray]] = []
        failures: dict[str, str] = {}
        has_row = has_row.copy()
        for file in self.files:
            positions = find_sorted(keys, file.raw_keys)
            valid = positions >= 0
            listed = positions[valid]
            valid[valid] = (file.size_mtime[valid] == size_mtime[listed]).all(1) & ~has_row[listed]
            has_row[positions[valid]] = True
            if valid.any():
                picks.append((file, np.flatnonzero(valid)))
            failures.update(file.failures)
            file.release()  # there may be more parts than file descriptors
        positions = find_sorted(keys, encode_keys(list(failures)))
        valid = positions >= 0
        valid[valid] = ~has_row[positions[valid]]
        current = {key: reason for (key, reason), is_valid in zip(failures.items(), valid, strict=True) if is_valid}
        return PartContents(picks=picks, has_row=has_row, failures=current, failed=positions[valid])

    def remove(self) -> None:
        """Remove the folder, once the cache holds everything."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.files = []
