"""Cost of crash safety in embedding: `embed`, `embed` without fsync, and the bare pipeline.

    python -m benchmarks.robustness.safety_cost CIFAR_FOLDER WORK [--images 8000] [--rounds 3]
                                     [--paths torch-fp32 openvino-bf16] [--out docs/results/safety-cost.md]

*safe* is `pucache.embedding.embed`. *no fsync* is the same with `os.fsync` doing nothing. *bare* has no parts, no
checksums, no lock and no HDF5: the blocks of the same pipeline are kept in memory and written once,
to a plain .npy file. Every run is a process of its own, the arms in turn, the encoder started and warm
before the clock is; WORK should lie on the disk that caches are for.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.common.command_line import page_parser, print_page

GOAL = 1.05
DTYPE = np.dtype("<f2")
STAGES = ("writing", "merging")  # of the profile of `embed`, as far as safety goes


# --- arms: each in a process of its own --------------------------------------------------------------


def safe(source, encoder, work: Path) -> dict:
    from pucache.cache.paths import parts_folder
    from pucache.cache.reader import CacheFile
    from pucache.embedding.embed import run_embedding

    cache = work / "safe.h5"
    cache.unlink(missing_ok=True)
    shutil.rmtree(parts_folder(cache), ignore_errors=True)  # of a run that was broken off
    began = time.perf_counter()
    report = run_embedding(source, cache, encoder)
    seconds = time.perf_counter() - began
    assert not report.failures and report.computed == report.rows
    stages = {f"{stage}, s": report.profile.seconds[stage] for stage in STAGES}
    digest = content(CacheFile(cache).X)
    cache.unlink()
    return {"seconds": seconds, **stages, "content": digest}


def no_fsync(source, encoder, work: Path) -> dict:
    os.fsync = lambda descriptor: None  # fsync_directory goes through it too
    return safe(source, encoder, work)


def bare(source, encoder, work: Path) -> dict:
    from pucache.cache.keys import encode_keys
    from pucache.embedding.blocks import BlockAssembler
    from pucache.embedding.engine import Job, embed_images
    from pucache.embedding.profile import Profile
    from pucache.embedding.resume import ContentLookup
    from pucache.progress import Silent

    out = work / "bare.npy"
    out.unlink(missing_ok=True)
    began = time.perf_counter()
    listing = source.scan()
    job = Job(
        source=source,
        encoder=encoder,
        keys=listing.keys,
        encoded_keys=encode_keys(listing.keys),
        size_mtime=listing.size_mtime,
        lookup=ContentLookup([]),
    )
    profile = Profile()
    task = BlockAssembler(job, DTYPE, profile)
    blocks = [rows.X for rows, _ in task.blocks(embed_images(job, profile), Silent())]
    np.save(out, np.concatenate(blocks))
    seconds = time.perf_counter() - began
    assert not task.failed and task.computed == len(listing.keys)
    digest = content(np.load(out, mmap_mode="r"))
    out.unlink()
    return {"seconds": seconds, "content": digest}


ARMS = {"safe": safe, "no fsync": no_fsync, "bare": bare}


def run_arm(arm: str, folder: Path, work: Path, path: str) -> dict:
    import torch

    from pucache.allocator import keep_freed_memory

    keep_freed_memory()
    from pucache.encoders.encoder import load_encoder
    from pucache.images.source import open_source

    runtime, precision = path.split("-")
    encoder = load_encoder(device="cpu", runtime=runtime, precision=precision)
    warm_up(encoder, torch.zeros((encoder.runtime.batch_size, *encoder.runtime.input_size, 3), dtype=torch.uint8))
    for image in folder.iterdir():
        image.read_bytes()
    return ARMS[arm](open_source(folder), encoder, work)


def warm_up(encoder, pixels) -> None:
    """In a thread, as the pipeline calls it."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1, initializer=encoder.runtime.enter_thread) as pool:
        pool.submit(encoder.forward, pixels).result()


def content(X: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(X, DTYPE)).hexdigest()


# --- the report --------------------------------------------------------------------------------------


def cell(arm: str, path: str, folder: Path, work: Path) -> dict:
    command = [sys.executable, "-m", __spec__.name, folder, work, "--arm", arm, "--paths", path]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{arm} {path} failed:\n{done.stderr}")
    figures = json.loads(done.stdout.splitlines()[-1])
    summary = ", ".join(f"{what} {value:.4g}" for what, value in figures.items() if what != "content")
    print(f"{path:14s} {arm:9s} {summary}", file=sys.stderr, flush=True)
    return figures


def measure(path: str, folder: Path, work: Path, rounds: int) -> dict[str, list[dict]]:
    """Rounds of all arms; every other round backwards, as a machine may slow down within a round."""
    figures: dict[str, list[dict]] = {arm: [] for arm in ARMS}
    for number in range(rounds):
        for arm in list(ARMS)[:: -1 if number % 2 else 1]:
            figures[arm].append(cell(arm, path, folder, work))
    contents = {row["content"] for rows in figures.values() for row in rows}
    if len(contents) > 1:
        raise SystemExit(f"{path}: the arms gave different embeddings")
    return figures


def table(figures: dict[str, list[dict]], images: int) -> list[str]:
    lines = ["| arm | seconds | images a second | seconds / bare, of a round |", "| --- | --- | --- | --- |"]
    for arm, rows in figures.items():
        seconds = [row["seconds"] for row in rows]
        ratios = [one / other["seconds"] for one, other in zip(seconds, figures["bare"], strict=True)]
        shown = "" if arm == "bare" else spread(ratios)
        lines.append(f"| {arm} | {spread(seconds)} | {images / statistics.median(seconds):.0f} | {shown} |")
    ratio = statistics.median(
        one["seconds"] / other["seconds"] for one, other in zip(figures["safe"], figures["bare"], strict=True)
    )
    stages = [f"{stage} {spread([row[f'{stage}, s'] for row in figures['safe']])} s" for stage in STAGES]
    share = statistics.median(sum(row[f"{stage}, s"] for stage in STAGES) / row["seconds"] for row in figures["safe"])
    return [
        *lines,
        "",
        f"Cost of safety: **{ratio - 1:+.1%}** (goal: at most {GOAL - 1:.0%}). By its own clocks the safe arm spent "
        f"{' and '.join(stages)}, {share:.2%} of its time, though writing goes on beside the encoder.",
    ]


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})"


def main(arguments: argparse.Namespace) -> str:
    from benchmarks.common.environment import environment
    from benchmarks.speed.embed import copy_pngs

    a = arguments
    folder = a.work / f"png-{a.images}"
    copy_pngs(folder, a.folder, a.images)
    lines = [
        "# What crash safety costs embedding",
        "",
        f"`python -m benchmarks.robustness.safety_cost CIFAR_FOLDER WORK --images {a.images} --rounds {a.rounds} "
        f"--paths {' '.join(a.paths)}`: bundled encoder at 224 px, {a.images:,} CIFAR-10 PNG files, float16, "
        f"n = {a.rounds}; medians (smallest to largest). "
        "*safe* is `embed`; *no fsync* the same with `os.fsync` doing nothing; *bare* "
        "the same pipeline without parts, checksums, lock and HDF5, its blocks kept in memory and written once to a "
        "plain .npy file. All arms gave the same embeddings, bit for bit.",
    ]
    for path in a.paths:
        figures = measure(path, folder, a.work, a.rounds)
        lines += ["", f"## {path.replace('-', ', ')}", "", *table(figures, a.images)]
    return "\n".join([*lines, "", environment()]) + "\n"


def default_paths() -> list[str]:
    """The slowest, and the fastest that there is."""
    fastest = "openvino-bf16" if importlib.util.find_spec("openvino") else "torch-bf16"
    return ["torch-fp32", fastest]


if __name__ == "__main__":
    parser = page_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--images", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--paths", nargs="+", default=default_paths(), metavar="RUNTIME-PRECISION")
    parser.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.arm:
        print(json.dumps(run_arm(arguments.arm, arguments.folder, arguments.work, arguments.paths[0])))
    else:
        print_page(main, arguments)
