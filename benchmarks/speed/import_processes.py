"""Imports of a folder in processes of their own, undisturbed and killed, for `benchmarks.speed.imports`.

Nothing that loads torch is imported here: it would count in the memory of the imports.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.common.planted_cache import drop, file_blocks, keep, memory

ORDERS = ("keys in the order of the rows", "keys in another order")
STATES = ("from the page cache", "from the disk")
WRITE_BYTES = 1 << 22


@dataclass(frozen=True)
class Source:
    """A folder of parts.

    Attributes
    ----------
    folder : Path
    rows, dim, parts : int
    """

    folder: Path
    rows: int
    dim: int
    parts: int

    @property
    def path(self) -> Path:
        return self.folder / f"clip-{self.rows}x{self.dim}-{self.parts}"

    @property
    def cache(self) -> Path:
        return self.folder / "imported.h5"

    def metadata(self, order: str) -> Path:
        return self.path / ("metadata" if order == ORDERS[0] else "metadata-permuted")

    @property
    def files(self) -> list[Path]:
        return sorted(path for path in self.path.rglob("*") if path.is_file())


# --- processes of their own -----------------------------------------------------------------------------------


def write_source(at: Source) -> None:
    """Write the parts, and metadata in both orders of keys."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    draw, size = np.random.default_rng(0), at.rows // at.parts
    spectrum = (1 / np.sqrt(1 + np.arange(at.dim))).astype(np.float32)
    permuted = np.random.default_rng(1).permutation(at.rows)
    for folder in ("img_emb", *(at.metadata(order).name for order in ORDERS)):
        (at.path / folder).mkdir(parents=True)
    for part in range(at.parts):
        rows = np.arange(part * size, (part + 1) * size)
        X = draw.standard_normal((size, at.dim), np.float32) * spectrum
        np.save(at.path / "img_emb" / f"img_emb_{part}.npy", X.astype(np.float16))
        captions = [f"a photograph, number {row}" for row in rows.tolist()]
        for order, numbers in zip(ORDERS, (rows, permuted[rows]), strict=True):
            names = [f"{number // 10_000:05}/{number:09}.jpg" for number in numbers.tolist()]
            table = pa.table({"image_path": names, "caption": captions})
            pq.write_table(table, at.metadata(order) / f"metadata_{part}.parquet")


def run_import(at: Source, order: str, segment: int | None) -> None:
    """Import, and print the seconds, the peak memory and how many rows an earlier run had written."""
    import pyarrow.parquet  # noqa: F401

    from pucache.cache import importing

    if segment:
        importing.BLOCK_BYTES = segment
    print("ready", flush=True)
    began = time.perf_counter()
    report = importing.import_embeddings(at.path, at.cache, metadata=at.metadata(order))
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "peak": memory()["VmHWM"], "resumed": report.resumed_rows}))


def start(at: Source, what: str, segment: int | None = None) -> subprocess.Popen[str]:
    """Start one of these processes; an import has loaded its libraries when this returns."""
    numbers = map(str, (at.rows, at.dim, at.parts, segment or 0))
    command = [sys.executable, "-m", __spec__.name, what, str(at.folder), *numbers]
    environ = os.environ | {"SOURCE_DATE_EPOCH": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
    if what in ORDERS:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def finished(process: subprocess.Popen[str]) -> str | None:
    """The last line of a process that has succeeded; None of one that was killed."""
    lines = process.communicate()[0].splitlines()
    if process.returncode == -signal.SIGKILL:
        return None
    if process.returncode:
        raise SystemExit(f"{' '.join(process.args)} failed")
    return lines[-1] if lines else ""


def make_source(at: Source) -> None:
    """Write the folder where it is not there; one that was not finished is removed first."""
    if at.path.exists():
        return
    making = Source(at.folder / "making", at.rows, at.dim, at.parts)
    shutil.rmtree(making.folder, ignore_errors=True)
    finished(start(making, "write"))
    making.path.rename(at.path)
    making.folder.rmdir()


# --- measuring ------------------------------------------------------------------------------------------------


def write_seconds(path: Path, size: int) -> float:
    """Seconds of writing and syncing a file of some bytes."""
    block = np.random.default_rng(0).integers(0, 256, WRITE_BYTES, np.uint8)
    began = time.perf_counter()
    with path.open("wb", buffering=0) as stream:
        for start_byte in range(0, size, WRITE_BYTES):
            stream.write(block[: size - start_byte])
        os.fsync(stream.fileno())
    seconds = time.perf_counter() - began
    path.unlink()
    return seconds


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    for block in file_blocks(path):
        digest.update(block)
    return digest.hexdigest()


def clear(at: Source) -> None:
    """Remove the cache and what an unfinished import left."""
    at.cache.unlink(missing_ok=True)
    shutil.rmtree(at.cache.with_name(at.cache.name + ".parts"), ignore_errors=True)


def undisturbed(at: Source, order: str, segment: int | None) -> dict:
    """Bytes and hash of what an import writes."""
    clear(at)
    finished(start(at, order, segment))
    return {"bytes": at.cache.stat().st_size, "sha256": sha256(at.cache)}


def imported(at: Source, order: str, state: str) -> dict[str, float]:
    """Seconds and memory of an import."""
    clear(at)
    for file in at.files:
        (drop if state == STATES[1] else keep)(file)
    return json.loads(finished(start(at, order)) or "")


def written(at: Source, size: int) -> dict[str, float]:
    """Seconds of writing as many bytes as the cache has."""
    clear(at)
    return {"seconds": write_seconds(at.folder / "written.bin", size)}


@dataclass
class Kills:
    """What killed imports did.

    Attributes
    ----------
    struck : int
        Processes that were killed.
    completed : int
        Imports that ended after one or more kills.
    resumed : list of int
        Rows that runs that ended found written by those killed before.
    """

    struck: int
    completed: int
    resumed: list[int]


def killed(at: Source, order: str, *, kills: int, seconds: float, whole: str, segment: int | None, seed: int) -> Kills:
    """Kill imports at random moments; each that ends must have written the same bytes."""
    clear(at)
    draw, result, since = np.random.default_rng(seed), Kills(0, 0, []), 0
    while result.struck < kills or since:
        process = start(at, order, segment)
        if result.struck < kills:
            time.sleep(draw.uniform(0, seconds))
            process.kill()
        line = finished(process)
        if line is None:
            result.struck, since = result.struck + 1, since + 1
            if at.cache.exists() and sha256(at.cache) != whole:
                raise SystemExit(f"{order}: a killed import has left another {at.cache}")
            continue
        if sha256(at.cache) != whole:
            raise SystemExit(f"{order}: after {result.struck} kills the cache differs from the undisturbed one")
        result.completed += bool(since)
        result.resumed += [json.loads(line)["resumed"]] if since else []
        since = 0
        clear(at)
    return result


if __name__ == "__main__":
    name, folder, *numbers = sys.argv[1:]
    rows, dim, parts, segment = map(int, numbers)
    source = Source(Path(folder), rows, dim, parts)
    write_source(source) if name == "write" else run_import(source, name, segment or None)
