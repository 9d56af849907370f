"""Shards by Ray against the local engine, on one machine: embedding, scoring and retrieval.

    python -m benchmarks.speed.distributed DIR FOLDER [--quick] [--out docs/results/distributed.md]

DIR is a folder of CIFAR-10. Shards of planted positives are written into FOLDER (1.2 GB), and found there the next
time. The engines take turns in one process that has joined the cluster; imports, the start of the cluster and a first
run of each operation, in which worker processes start, come before the clock. Every output of the cluster is compared
with that of the local engine, byte by byte. At last a worker process is killed in some more runs of each operation, and
the outputs are compared again.
"""

import argparse
import hashlib
import os
import random
import shutil
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pucache.threads import set_thread_defaults

set_thread_defaults()  # as commands do, before numpy is imported

import numpy as np  # noqa: E402

from benchmarks.common.cells import table  # noqa: E402
from benchmarks.common.command_line import page_parser, print_page  # noqa: E402
from benchmarks.common.environment import environment  # noqa: E402
from benchmarks.common.image_classes import write_manifest  # noqa: E402
from benchmarks.common.planted_cache import Planted, prepare_with_model  # noqa: E402
from pucache.allocator import keep_freed_memory  # noqa: E402
from pucache.cache.embedding_cache import EmbeddingCache  # noqa: E402
from pucache.cache.merging import merge  # noqa: E402
from pucache.cache.reader import CacheFile  # noqa: E402
from pucache.embedding.embed import EmbedOptions, run_embedding  # noqa: E402
from pucache.encoders.deferred import EncoderOptions  # noqa: E402
from pucache.images.source import open_source  # noqa: E402
from pucache.retrieval.retrieve import retrieve_positives  # noqa: E402
from pucache.scaling.embed_shards import embed_shards  # noqa: E402
from pucache.scaling.rank_shards import rank_shards  # noqa: E402
from pucache.scaling.score_shards import score_shards  # noqa: E402
from pucache.scaling.tasks import cluster_tasks  # noqa: E402
from pucache.scoring.score import score  # noqa: E402

WORKER = b"ray::_apply"  # name of a worker process that is at work
Write = Callable[[Path], object]


@dataclass(frozen=True)
class Sizes:
    images: int = 4000
    image_shards: int = 8
    rows: int = 2_000_000
    dim: int = 256
    shards: int = 16
    rounds: int = 3
    kills: int = 3  # of each operation


QUICK = Sizes(images=64, image_shards=2, rows=200_000, dim=32, shards=4, rounds=1, kills=1)


@dataclass(frozen=True)
class Operation:
    """What is measured: how each engine writes its output, and what the output of the cluster must be.

    `expected` is that of the local engine where nothing else is said.
    """

    name: str
    amount: int
    local: Write
    by_ray: Write
    suffix: str = ""
    expected: Write | None = None


def write_shards(at: Planted, count: int) -> Path:
    """Divide the rows among files of consecutive rows; returns their folder."""
    folder = at.folder / f"{at.name}-in-{count}"
    if not folder.exists():
        whole, making = CacheFile(at.cache), folder.with_suffix(".making")
        making.mkdir(exist_ok=True)
        for number, rows in enumerate(np.array_split(np.arange(at.n), count)):
            path = making / f"shard-{number:04}.h5"
            merge(path, [(whole, rows)], encoder=whole.encoder, dtype=whole.dtype, source="", failures={})
        making.rename(folder)
    return folder


def embedding(images: Path, sizes: Sizes) -> Operation:
    """One file by the local engine against shards by the cluster; these are to be those of ``--shard I/N``."""
    count = sizes.image_shards

    def one_by_one(out: Path) -> None:
        for number in range(1, count + 1):
            options = EmbedOptions(shard=(number, count))
            run_embedding(open_source(images), out / f"{number:05}.h5", EncoderOptions(), options=options)

    return Operation(
        "embed",
        sizes.images,
        lambda out: run_embedding(open_source(images), out / "cache.h5", EncoderOptions()),
        lambda out: embed_shards(images, out, count),
        expected=one_by_one,
    )


def scoring(shards: Path, at: Planted, suffix: str) -> Operation:
    return Operation(
        f"score to {suffix[1:]}",
        at.n,
        lambda out: score(at.model, EmbeddingCache(shards), out),
        lambda out: score_shards(at.model, EmbeddingCache(shards), out),
        suffix,
    )


def retrieval(shards: Path, at: Planted, name: str, **options) -> Operation:
    def local(out: Path) -> None:
        retrieve_positives(EmbeddingCache(shards), at.positives, k=1000, device="cpu", **options).save(out)

    def by_ray(out: Path) -> None:
        rank_shards(EmbeddingCache(shards), at.positives, k=1000, **options).save(out)

    return Operation(f"retrieve by {name}", at.n, local, by_ray, ".csv")


def run(operation: Operation, write: Write, folder: Path) -> tuple[float, str]:
    """Seconds of one run, and a hash of the names and contents of what it wrote."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    out, began = folder / f"out{operation.suffix}", time.perf_counter()
    write(out)
    seconds = time.perf_counter() - began
    print(f"{operation.name:36s} {'Ray' if write is operation.by_ray else 'local':6} {seconds:6.2f} s", flush=True)
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".lock"]
    return seconds, hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in files)).hexdigest()


def run_by_ray(operation: Operation, folder: Path, expected: str) -> float:
    """Seconds of a run by the cluster; ends the benchmark where its output is another one."""
    seconds, output = run(operation, operation.by_ray, folder)
    if output != expected:
        raise SystemExit(f"{operation.name}: the output of the cluster differs from that of the local engine")
    return seconds


def ancestors(number: int) -> list[int]:
    """Processes that started a process, directly or not."""
    numbers = []
    while number > 1:
        number = int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])
        numbers.append(number)
    return numbers


def kill_a_worker(killed: list[int]) -> None:
    """Kill a process of this benchmark's cluster that runs a task, if there is one."""
    for process in Path("/proc").glob("[0-9]*"):
        number = int(process.name)
        try:
            if (process / "cmdline").read_bytes().startswith(WORKER) and os.getpid() in ancestors(number):
                os.kill(number, signal.SIGKILL)
                killed.append(number)
                return
        except OSError:
            continue  # it has ended


def with_kills(operation: Operation, folder: Path, expected: str, usual: float, count: int) -> list[int]:
    """Run an operation again, a worker process killed at a random moment of each run; their numbers."""
    draw, killed = random.Random(0), []  # noqa: S311
    for _ in range(count):
        timer = threading.Timer(draw.uniform(0, usual), kill_a_worker, [killed])
        timer.start()
        run_by_ray(operation, folder, expected)
        timer.cancel()
        timer.join()
    return killed


def row(operation: Operation, seconds: list[tuple[float, float]]) -> list[str]:
    local, ray = (statistics.median(values) for values in zip(*seconds, strict=True))
    ratios = [local_seconds / ray_seconds for local_seconds, ray_seconds in seconds]
    ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    return [operation.name, f"{local:.2f}", f"{ray:.2f}", f"{operation.amount / ray:,.0f}", ratio]


def main(arguments: argparse.Namespace) -> str:
    keep_freed_memory()
    os.environ["SOURCE_DATE_EPOCH"] = "1700000000"  # equal bytes
    sizes, folder = QUICK if arguments.quick else Sizes(), arguments.folder.resolve()
    at = Planted(folder, sizes.rows, sizes.dim)
    prepare_with_model(at)
    shards, files = write_shards(at, sizes.shards), sorted(arguments.images.resolve().glob("**/*.png"))
    drawn = sorted(np.random.default_rng(0).permutation(len(files))[: sizes.images])
    keys = [str(files[number].relative_to(arguments.images.resolve())) for number in drawn]
    images = write_manifest(folder / "images.csv", arguments.images.resolve(), keys)
    operations = [
        embedding(images, sizes),
        scoring(shards, at, ".csv"),
        scoring(shards, at, ".parquet"),
        retrieval(shards, at, "similarity"),
        retrieval(shards, at, "classifier", model=at.model, by="classifier"),
    ]
    rows, killed = [], []
    with tempfile.TemporaryDirectory(dir=folder) as name, cluster_tasks():
        work = Path(name) / "run"
        for operation in operations:
            _, expected = run(operation, operation.expected or operation.local, work)
            run_by_ray(operation, work, expected)  # a first run
            seconds = [
                (run(operation, operation.local, work)[0], run_by_ray(operation, work, expected))
                for _ in range(sizes.rounds)
            ]
            rows.append(row(operation, seconds))
            usual = statistics.median(ray for _, ray in seconds)
            killed += with_kills(operation, work, expected, usual, sizes.kills)
    parts = [
        "# Ray on one machine",
        f"`python -m benchmarks.speed.distributed DIR FOLDER{' --quick' * arguments.quick}`: the bundled encoder on "
        f"{sizes.images:,} PNG files of CIFAR-10, into one file by the local engine and into {sizes.image_shards} "
        f"shards by Ray; a cache of {sizes.rows:,} x {sizes.dim} float16 in {sizes.shards} shards, planted positives. "
        f"Ray has a worker for each core. The engines take turns; medians of {sizes.rounds}. Seconds include opening "
        "the cache, loading the encoder, the check of the nodes and writing the output, but not the start of Ray and "
        "of its worker processes. All outputs of Ray were equal to those of the local engine, byte by byte "
        "(embedding: to the shards of `--shard I/N`).",
        table(["", "local, s", "Ray, s", "a second, Ray", "rate over local (median of rounds; range)"], rows),
        f"Each operation was run {sizes.kills} times more, a worker process killed (SIGKILL) at a random moment; "
        f"{len(killed)} were at work and killed. Every output was the same.",
        environment(),
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    parser = page_parser(__doc__)
    parser.add_argument("images", type=Path, metavar="DIR")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--quick", action="store_true", help="few images and rows, one round")
    print_page(main, parser.parse_args())
