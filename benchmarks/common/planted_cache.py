"""Synthetic caches of any size with planted positives, and files in and out of the page cache.

Files are made in the folder they are given, each by a process of its own, so that no map of one outlives its making,
and found there by name the next time.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.common.processes import alone
from pucache.cache.embedding_cache import EmbeddingCache
from pucache.cache.keys import encode_keys
from pucache.cache.layout import VERSION
from pucache.cache.reader import BLOCK_BYTES
from pucache.cache.writer import Rows, write_file
from pucache.encoders.spec import EncoderSpec

LABELLED, PRIOR, STEP = 1000, 0.02, 50_000


@dataclass(frozen=True)
class Planted:
    """The files of one size: from 100,000 rows, for enough hidden positives, to 10,000,000, for keys in order."""

    folder: Path
    n: int
    d: int

    def file(self, ending: str) -> Path:
        return self.folder / f"scale-v{VERSION}-{self.n}x{self.d}.{ending}"

    @property
    def cache(self) -> Path:
        return self.file("h5")

    @property
    def positives(self) -> Path:
        return self.file("txt")

    @property
    def plain(self) -> Path:
        """The embeddings' bytes alone."""
        return self.file("bin")

    @property
    def model(self) -> Path:
        return self.file("safetensors")


def prepare(at: Planted) -> None:
    """Make the files that are not there."""
    for path, write in ((at.cache, write_cache), (at.plain, write_plain), (at.model, train_model)):
        if not path.exists():
            alone(write, at)


def write_cache(at: Planted) -> None:
    """Positives are shifted along a few directions; the first `LABELLED` of them are labelled."""
    n, d = at.n, at.d
    draw = np.random.default_rng(0)
    positive = draw.random(n) < PRIOR
    failures = {f"unreadable/{number:06}.jpg": "truncated" for number in range(n // 100_000)}
    at.positives.write_text("".join(f"{key(row)}\n" for row in np.flatnonzero(positive)[:LABELLED]))
    encoder, shape = EncoderSpec.imported("planted", d), (n, len(key(0)), np.dtype("<f2"))
    write_file(at.cache, encoder, "", planted_rows(positive, d, draw), shape=shape, failures=failures)


def key(row: int) -> str:
    return f"folder-{row // 1000:04}/image-{row:08}.jpg"


def planted_rows(positive: np.ndarray, d: int, draw: np.random.Generator) -> Iterator[Rows]:
    """The rows in blocks."""
    shift = np.zeros(d, np.float32)
    shift[:32] = 0.5
    # as of CIFAR-10 by the bundled encoder: variance falls as 1 / number, the mean has 0.42 of the mean square
    spectrum = (1 / np.sqrt(1 + np.arange(d))).astype(np.float32)
    mean = np.float32(np.sqrt(0.42 / 0.58 * np.square(spectrum).sum() / d))
    for begin in range(0, len(positive), STEP):
        y = positive[begin : begin + STEP, None]
        size = len(y)
        X = draw.standard_normal((size, d), np.float32) * spectrum + y * shift + mean
        digests = draw.integers(0, 256, (size, 32), np.uint8)
        sizes = np.stack([draw.integers(20_000, 200_000, size), draw.integers(1 << 60, 1 << 61, size)], 1)
        yield Rows(encode_keys([key(row) for row in range(begin, begin + size)]), X.astype("<f2"), digests, sizes)


def write_plain(at: Planted) -> None:
    with at.plain.open("wb") as stream:
        for _, X in EmbeddingCache(at.cache).blocks():
            stream.write(np.ascontiguousarray(X))


def train_model(at: Planted) -> None:
    from pucache import train_pu

    train_pu(EmbeddingCache(at.cache), at.positives, prior=PRIOR).save(at.model)


# --- the page cache ----------------------------------------------------------------------------------


def file_blocks(path: Path):
    buffer = np.empty(BLOCK_BYTES, np.uint8)
    with path.open("rb", buffering=0) as stream:
        while read := stream.readinto(buffer):
            yield buffer[:read]


def keep(path: Path) -> None:
    """Read a file into the page cache, anew: pages that were written lie there otherwise, and are read faster."""
    drop(path)
    for _ in file_blocks(path):
        pass


def drop(path: Path) -> None:
    """Take a file out of the page cache; only clean pages go, and none that another process has just let go."""
    for _ in range(20):
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            there = still_there(stream.fileno(), path.stat().st_size)
        if there is None:
            return
        time.sleep(0.25)
    raise SystemExit(f"{path} could not be dropped from the page cache: byte {there} is still there")


def still_there(stream: int, size: int) -> int | None:
    """One of 32 bytes of a file that lies in the page cache."""
    for offset in np.linspace(0, size - 1, 32).astype(int).tolist():
        try:
            os.preadv(stream, [bytearray(1)], offset, os.RWF_NOWAIT)
        except BlockingIOError:
            continue
        return offset
    return None
