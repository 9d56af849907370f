"""The finished blocks of an unfinished cache, and embeddings known by content."""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ..cache.keys import encode_keys, find
from ..cache.paths import part_files, parts_folder
from ..cache.reader import CacheFile
from ..cache.writer import Rows, write_file
from ..encoders.spec import EncoderSpec
from ..errors import CacheError
from ..images.source import Listing

log = logging.getLogger("pucache")


class Parts:
    """The finished blocks of an unfinished cache: small cache files in ``CACHE.parts``.

    Parameters
    ----------
    cache : Path
    spec : EncoderSpec
    dtype : dtype
        Of the stored embeddings.
    name : str, optional
        What users call the cache; by default its path.
    safe : callable, optional
        Told the path of each part once it is written.
    """

    def __init__(
        self,
        cache: Path,
        spec: EncoderSpec,
        dtype: np.dtype,
        *,
        name: str = "",
        safe: Callable[[Path], None] | None = None,
    ):
        self.folder = parts_folder(cache)
        self._name = f"{name or cache}.parts"
        self._spec, self._dtype, self._safe = spec, dtype, safe
        self.files: list[CacheFile] = []
        for path in part_files(cache):
            self._adopt(path)
        if self.files:
            log.warning("going on from %d images in %s", sum(map(len, self.files)), self.folder)

    def _adopt(self, path: Path) -> None:
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
        """Write one block durably, under a name that says what it holds."""
        content = hashlib.sha256(b"\0".join(rows.keys.tolist()) + rows.size_mtime.tobytes())
        content.update("\0".join(failures).encode())
        path = self.folder / f"part-{content.hexdigest()[:16]}.h5"
        shape = (len(rows.keys), rows.keys.itemsize, self._dtype)
        write_file(path, self._spec, source, [rows], shape=shape, failures=failures)
        # the same images may have failed again
        self.files = [*(file for file in self.files if file.path != path), CacheFile(path)]
        if self._safe:
            self._safe(path)

    def current(self, listing: Listing, kept: np.ndarray) -> tuple[list[tuple[CacheFile, np.ndarray]], dict[str, str]]:
        """What of this run and the interrupted one still counts, beside the keys kept from the old cache.

        Returns
        -------
        picks : list of (CacheFile, ndarray of int)
            Rows of each part whose file is still as it was when it was embedded.
        failures : dict of str to str
            Listed images that could not be read and have no row.
        """
        keys, picks, failures = encode_keys(listing.keys), [], {}
        taken = np.zeros(len(keys), bool)
        taken[find(keys, kept)] = True
        for file in self.files:
            at = find(keys, file.raw_keys)
            good = at >= 0
            good[good] = (file.size_mtime[good] == listing.size_mtime[at[good]]).all(1) & ~taken[at[good]]
            taken[at[good]] = True
            if good.any():
                picks.append((file, np.flatnonzero(good)))
            failures.update(file.failures)
            file.release()  # there may be more parts than file descriptors
        at = find(keys, encode_keys(list(failures)))
        counts = at >= 0
        counts[counts] = ~taken[at[counts]]
        return picks, {key: reason for (key, reason), here in zip(failures.items(), counts, strict=True) if here}

    def remove(self) -> None:
        """Remove the folder, once the cache holds everything."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.files = []


class Known:
    """Embeddings by content digest, over any number of cache files.

    Parameters
    ----------
    picks : list of (CacheFile, ndarray of int)
        Rows of each file that are as they were written; a damaged one must not be copied under a new seal.
    """

    def __init__(self, picks: list[tuple[CacheFile, np.ndarray]]):
        self._files = [file for file, _ in picks]
        digests = [file.take("digests", rows).reshape(-1).view("S32") for file, rows in picks]
        everything = np.concatenate(digests) if digests else np.empty(0, "S32")
        self._order = np.argsort(everything)
        self.sorted = everything[self._order]
        self._starts = np.cumsum([0, *(len(rows) for _, rows in picks)])
        self._rows = np.concatenate([rows for _, rows in picks]) if picks else np.empty(0, np.int64)

    def __getitem__(self, content: bytes) -> np.ndarray:
        position = self._order[np.searchsorted(self.sorted, np.bytes_(content))]
        number = int(np.searchsorted(self._starts, position, "right")) - 1
        return self._files[number].X[self._rows[position]]
