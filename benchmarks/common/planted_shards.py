"""Planted rows as shards, dealt by hash as `embed --shard I/N` deals images, and as one packed file.

`shards.py` uses it. Files are made by a process of their own, and found there by name the next time:

    python -m benchmarks.common.planted_shards FOLDER ROWS DIM SHARDS
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.common.planted_cache import LABELLED, PRIOR, planted_rows
from pucache.cache.keys import encode_keys
from pucache.cache.writer import Rows, write_file
from pucache.encoders.spec import EncoderSpec

FORMS = ("packed", "shards")
_MODEL_ROWS = 100_000
_WRITTEN_ROWS = 1 << 16


@dataclass(frozen=True)
class PlantedShards:
    """The files of one size; both forms hold the same rows."""

    folder: Path
    n: int
    d: int
    shards: int

    @property
    def _name(self) -> str:
        return f"planted-{self.n}x{self.d}"

    def cache(self, form: str) -> Path:
        """The packed file, or the folder of shards."""
        return self.folder / (f"{self._name}.h5" if form == "packed" else f"{self._name}-{self.shards}-shards")

    @property
    def positives(self) -> Path:
        return self.folder / f"{self._name}.txt"

    @property
    def truth(self) -> Path:
        """Truth by row number in the packed file, bool (n,)."""
        return self.folder / f"{self._name}.npy"

    @property
    def model(self) -> Path:
        return self.folder / f"planted-{self.d}.safetensors"

    def files(self, form: str) -> list[Path]:
        cache = self.cache(form)
        return sorted(cache.glob("*.h5")) if cache.is_dir() else [cache]


def key(row: int) -> str:
    return f"folder-{row // 1000:06}/image-{row:09}.jpg"


def row_of(name: str) -> int:
    return int(name[-13:-4])


def prepare(at: PlantedShards, forms: tuple[str, ...] = FORMS) -> None:
    """Make what is missing of the forms, each in a process of its own."""
    at.folder.mkdir(parents=True, exist_ok=True)
    missing = [form for form in forms if not at.cache(form).exists()]
    if missing or not at.model.exists():
        command = [sys.executable, "-m", __spec__.name, at.folder, at.n, at.d, at.shards, *missing]
        subprocess.run(list(map(str, command)), check=True)


def make(at: PlantedShards, forms: list[str]) -> None:
    """Write the rows to an unsorted file by shard first, from which each shard is then written in order."""
    if at.n < 2 * LABELLED / PRIOR:
        raise SystemExit(f"at least {2 * LABELLED / PRIOR:,.0f} rows, for enough hidden positives")
    if "packed" in forms:
        positive, blocks = planted_rows(at.n, at.d, key)
        _write_labels(at, positive)
        _write(at.cache("packed"), blocks, at.n, at.d)
    if "shards" in forms:
        positive, blocks = planted_rows(at.n, at.d, key)
        _write_labels(at, positive)
        _write_shards(at, blocks)
    if not at.model.exists():
        _write_model(at)


def _write_labels(at: PlantedShards, positive: np.ndarray) -> None:
    np.save(at.truth, positive)
    at.positives.write_text("".join(f"{key(int(row))}\n" for row in np.flatnonzero(positive)[:LABELLED]))


def _write_shards(at: PlantedShards, blocks: Iterator[Rows]) -> None:
    home = np.random.default_rng(1).integers(at.shards, size=at.n)
    record = np.dtype([("X", "<f2", at.d), ("digest", "u1", 32), ("size_mtime", "<i8", 2)])
    ends = np.cumsum([0, *np.bincount(home, minlength=at.shards)])
    folder, unsorted = at.cache("shards"), at.cache("shards").with_suffix(".rows")
    making = folder.with_suffix(".making")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir()
    begin, filled = 0, ends[:-1].copy()
    written = np.memmap(unsorted, record, "w+", shape=at.n)
    for rows in blocks:
        homes = home[begin : begin + len(rows.keys)]
        for shard in range(at.shards):
            dealt = np.flatnonzero(homes == shard)
            records = written[filled[shard] : filled[shard] + len(dealt)]
            records["X"], records["digest"] = rows.X[dealt], rows.digests[dealt]
            records["size_mtime"] = rows.size_mtime[dealt]
            filled[shard] += len(dealt)
        begin += len(rows.keys)
    for shard in range(at.shards):
        numbers, records = np.flatnonzero(home == shard), written[ends[shard] : ends[shard + 1]]
        _write(making / f"shard-{shard:04}.h5", _rows_of(numbers, records), len(numbers), at.d)
    unsorted.unlink()
    making.rename(folder)


def _rows_of(numbers: np.ndarray, records: np.ndarray) -> Iterator[Rows]:
    for begin in range(0, len(numbers), _WRITTEN_ROWS):
        part = slice(begin, begin + _WRITTEN_ROWS)
        keys = encode_keys([key(row) for row in numbers[part].tolist()])
        X, digests, sizes = (
            np.ascontiguousarray(records[part][name]) for name in ("X", "digest", "size_mtime")
        )  # fmt: skip
        yield Rows(keys, X, digests, sizes)


def _write(path: Path, blocks: Iterator[Rows], n: int, d: int) -> None:
    write_file(
        path, EncoderSpec.imported("planted", d), "", blocks, shape=(n, len(key(0)), np.dtype("<f2")), failures={}
    )


def _write_model(at: PlantedShards) -> None:
    from pucache import train_pu

    small = PlantedShards(at.folder, _MODEL_ROWS, at.d, 1)
    if small.n != at.n:
        make_small = not small.cache("packed").exists()
        if make_small:
            positive, blocks = planted_rows(small.n, small.d, key)
            _write_labels(small, positive)
            _write(small.cache("packed"), blocks, small.n, small.d)
    train_pu(small.cache("packed"), small.positives, prior=PRIOR, method="linear").save(at.model)


if __name__ == "__main__":
    folder, n, d, shards, *forms = sys.argv[1:]
    make(PlantedShards(Path(folder), int(n), int(d), int(shards)), forms)
