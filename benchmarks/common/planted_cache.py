"""Synthetic caches of any size with planted positives, and measurements in child processes.

Files are made in the folder they are given, each by a process of its own, so that no map of one outlives its making,
and found there by name the next time.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.common.processes import figures_of
from pucache.cache.embedding_cache import EmbeddingCache
from pucache.cache.keys import encode_keys
from pucache.cache.layout import VERSION
from pucache.cache.reader import BLOCK_BYTES
from pucache.cache.writer import Rows, write_file
from pucache.encoders.spec import EncoderSpec

LABELLED, PRIOR, STEP = 1000, 0.02, 50_000
MB = 1e6


@dataclass(frozen=True)
class Planted:
    """The files of one size."""

    folder: Path
    n: int
    d: int

    @property
    def name(self) -> str:
        return f"scale-v{VERSION}-{self.n}x{self.d}"

    @property
    def cache(self) -> Path:
        return self.folder / f"{self.name}.h5"

    @property
    def positives(self) -> Path:
        return self.folder / f"{self.name}.txt"

    @property
    def plain(self) -> Path:
        return self.folder / f"{self.name}.bin"

    @property
    def model(self) -> Path:
        return self.folder / f"scale-v{VERSION}-{self.d}.safetensors"


def key(row: int) -> str:
    return f"folder-{row // 1000:04}/image-{row:08}.jpg"


def write(at: Planted) -> None:
    """Positives are shifted along a few directions; the first `LABELLED` of them are labelled."""
    if not 2 * LABELLED / PRIOR <= at.n <= 10_000_000:
        raise SystemExit("sizes from 100,000, for enough hidden positives, to 10,000,000, for keys in order")
    n, d = at.n, at.d
    positive, blocks = planted_rows(n, d, key)
    failures = {f"unreadable/{number:06}.jpg": "truncated" for number in range(n // 100_000)}
    at.positives.write_text("".join(f"{key(row)}\n" for row in np.flatnonzero(positive)[:LABELLED]))
    encoder, shape = EncoderSpec.imported("planted", d), (n, len(key(0)), np.dtype("<f2"))
    write_file(at.cache, encoder, "", blocks, shape=shape, failures=failures)


def planted_rows(n: int, d: int, name: Callable[[int], str]) -> tuple[np.ndarray, Iterator[Rows]]:
    """Truth, bool (n,), and the rows in blocks; `name` is the key of a row."""
    draw = np.random.default_rng(0)
    shift = np.zeros(d, np.float32)
    shift[:32] = 0.5
    positive = draw.random(n) < PRIOR
    # as of CIFAR-10 by the bundled encoder: variance falls as 1 / number, the mean has 0.42 of the mean square
    spectrum = (1 / np.sqrt(1 + np.arange(d))).astype(np.float32)
    mean = np.float32(np.sqrt(0.42 / 0.58 * np.square(spectrum).sum() / d))

    def blocks() -> Iterator[Rows]:
        for begin in range(0, n, STEP):
            size = min(STEP, n - begin)
            X = draw.standard_normal((size, d), np.float32) * spectrum + positive[begin : begin + size, None] * shift
            X += mean
            digests = draw.integers(0, 256, (size, 32), np.uint8)
            sizes = np.stack([draw.integers(20_000, 200_000, size), draw.integers(1 << 60, 1 << 61, size)], 1)
            yield Rows(encode_keys([name(row) for row in range(begin, begin + size)]), X.astype("<f2"), digests, sizes)

    return positive, blocks()


def write_plain(at: Planted) -> None:
    """The embeddings' bytes alone."""
    with at.plain.open("wb") as stream:
        for _, X in EmbeddingCache(at.cache).blocks():
            stream.write(np.ascontiguousarray(X))


def train_model(at: Planted) -> None:
    from pucache import train_pu

    train_pu(EmbeddingCache(at.cache), at.positives, prior=PRIOR).save(at.model)


MAKERS = {call.__name__: call for call in (write, write_plain, train_model)}


def prepare(at: Planted) -> None:
    """Make the cache where it is not there."""
    at.folder.mkdir(parents=True, exist_ok=True)
    if not at.cache.exists():
        make("write", at)


def prepare_with_model(at: Planted) -> None:
    """Make the cache, and a model trained on 100,000 rows, where they are not there."""
    prepare(at)
    if not at.model.exists():
        small = Planted(at.folder, 100_000, at.d)
        prepare(small)
        make("train_model", small)
        if small.cache != at.cache:
            small.cache.unlink()


def make(what: str, at: Planted) -> None:
    """Make some of the files."""
    cell(__spec__.name, what, at)


# --- measuring ---------------------------------------------------------------------------------------


def cell(module: str, name: str, at: Planted) -> dict[str, float]:
    """Run one measurement of a module in a process of its own: python -m MODULE --cell NAME FOLDER ROWS DIM."""
    command = [sys.executable, "-m", module, "--cell", name, str(at.folder), str(at.n), str(at.d)]
    figures = figures_of(command, f"{name} at {at.n:,} x {at.d}")
    summary = ", ".join(f"{what} {value:.4g}" for what, value in figures.items())
    print(f"{at.n:>10,} x {at.d}  {name:32s} {summary}", file=sys.stderr, flush=True)
    return figures


def asked_for_a_cell() -> tuple[str, Planted] | None:
    """In that process: which one; None in the one that a user starts."""
    if sys.argv[1:2] != ["--cell"]:
        return None
    name, folder, n, d = sys.argv[2:]
    return name, Planted(Path(folder), int(n), int(d))


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


if __name__ == "__main__" and (asked := asked_for_a_cell()):
    MAKERS[asked[0]](asked[1])
    print("{}")
