"""Embedding speed: each stage, the forward pass, and end to end, against a plain DataLoader with timm.

    python -m benchmarks.speed.embed CIFAR_FOLDER WORK [--images 8000] [--rounds 3] [--out docs/results/embed-cpu.md]

CIFAR_FOLDER holds PNG files. JPEG files of 500 x 375 are cropped from scikit-learn's two sample
photographs into WORK. Every cell is a process of its own, so that none inherits the allocator of
another; rounds go through all cells in turn, and medians are told. `end to end` is the whole of
`pucache.embedding.embed` but for the encoder's start, which is told apart: listing, reading, hashing,
decoding, resizing, embedding, writing, merging.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

from benchmarks.common.command_line import page_parser, print_page
from benchmarks.common.environment import environment
from benchmarks.common.jpegs import write_jpegs

JPEGS = 3000
PATHS = (("torch", "fp32"), ("torch", "bf16"), ("openvino", "fp32"), ("openvino", "bf16"))
FORWARD_SECONDS = 4.0
PEER_BATCH, PEER_IMAGES = 64, 384


# --- cells: each in a process of its own -----------------------------------------------------------


def end_to_end(folder: Path, work: Path, path: str, device: str, threads: int) -> dict:
    """Forward alone, end to end, forward alone again; ratios are to the mean of the two."""
    from pucache.embedding.embed import run_embedding
    from pucache.encoders.encoder import load_encoder
    from pucache.images.source import open_source

    runtime, precision = path.split("-")
    encoder = load_encoder(device=device, runtime=runtime, precision=precision)
    began = time.perf_counter()
    hands(encoder, lambda: encoder.forward(pixels(encoder, encoder.runtime.batch_size or 8)), 1)
    start = time.perf_counter() - began
    before = forward_alone(encoder)
    cache = work / "embed.h5"
    cache.unlink(missing_ok=True)
    report = run_embedding(open_source(folder), cache, encoder)
    after = forward_alone(encoder)
    whole = report.computed / report.seconds
    cache.unlink()
    return {
        "forward": (before + after) / 2,
        "end to end": whole,
        "ratio": whole / ((before + after) / 2),
        "start": start,
        "cosine": report.cosine,
        "peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def hands(encoder, call, count: int) -> list:
    """Call in threads as the pipeline makes them; return what each gave."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(count, initializer=encoder.runtime.enter_thread) as pool:
        return [future.result() for future in [pool.submit(call) for _ in range(count)]]


def pixels(encoder, count: int):
    import torch

    draw = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, *encoder.runtime.input_size, 3), dtype=torch.uint8, generator=draw)


def forward_alone(encoder) -> float:
    """Images a second of the runtime, all its streams busy with pixels that are in memory."""
    batch, done, stop = pixels(encoder, encoder.runtime.batch_size), [], threading.Event()

    def loop() -> None:
        encoder.forward(batch)
        while not (stop.is_set() and done):
            began = time.perf_counter()
            encoder.forward(batch)
            done.append((began, time.perf_counter()))

    timer = threading.Timer(FORWARD_SECONDS, stop.set)
    timer.start()
    hands(encoder, loop, encoder.runtime.caller_threads)
    first, last = min(began for began, _ in done), max(ended for _, ended in done)
    return len(done) * len(batch) / (last - first)


def stages(folder: Path, work: Path, path: str, device: str, threads: int) -> dict:
    """Images a second of reading with hashing, decoding, resizing, and the three together, in so many threads."""
    from concurrent.futures import ThreadPoolExecutor

    import torch

    from pucache.allocator import keep_freed_memory
    from pucache.encoders.encoder import load_encoder
    from pucache.images.decoding import decode
    from pucache.images.loading import ChunkLoader
    from pucache.images.source import image_digest, open_source

    keep_freed_memory()
    encoder = load_encoder(device=device, runtime="torch", precision="fp32")
    source = open_source(folder)
    listing = source.scan()
    keys, sizes = listing.keys, listing.size_mtime[:, 0].tolist()
    prepare = ChunkLoader(source, encoder.preprocess, keys, sizes, chunk_size=32)
    data = [source.read(key) for key in keys]
    decoded = [decode(one, encoder.preprocess.sufficient_side) for one in data[:1000]]

    def rate(call, items) -> float:
        with ThreadPoolExecutor(threads, initializer=lambda: torch.set_num_threads(1)) as pool:
            began = time.perf_counter()
            for _ in pool.map(lambda rows: [call(one) for one in rows], np.array_split(items, 20 * threads)):
                pass
            return len(items) / (time.perf_counter() - began)

    return {
        "reading and hashing": rate(lambda row: image_digest(source.read(keys[row])), np.arange(len(keys))),
        "decoding": rate(lambda row: decode(data[row], encoder.preprocess.sufficient_side), np.arange(len(keys))),
        "resizing": rate(lambda row: encoder.preprocess(decoded[row]).contiguous(), np.arange(len(decoded))),
        "all three": len(keys) / len(prepare) * rate(prepare, np.arange(len(prepare))),
    }


def peer(folder: Path, work: Path, path: str, device: str, threads: int) -> dict:
    files = sorted(file for file in folder.rglob("*") if file.suffix in (".png", ".jpg"))[: PEER_IMAGES + PEER_BATCH]
    return {"end to end": plain_loop(files)[1]}


def plain_loop(files: list[Path], workers: int = 0) -> tuple[np.ndarray, float]:
    """What people write first: a Dataset of PIL images, timm's transform, a DataLoader, the model as it comes.

    Features, and images a second after the first batch.
    """
    import timm
    import torch
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset

    from pucache.encoders.backbones import bundled

    model = bundled().eval()
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))

    class Files(Dataset):
        def __len__(self):
            return len(files)

        def __getitem__(self, index):
            return transform(Image.open(files[index]).convert("RGB"))

    rows = []
    with torch.no_grad():
        for number, batch in enumerate(DataLoader(Files(), batch_size=PEER_BATCH, num_workers=workers)):
            if number == 1:
                began = time.perf_counter()
            rows.append(model(batch).numpy())
    return np.concatenate(rows), (len(files) - PEER_BATCH) / (time.perf_counter() - began)


def allocator(folder: Path, work: Path, path: str, device: str, threads: int) -> dict:
    """The forward pass alone without and with `pucache.allocator`, for which MALLOC_ in the environment stands."""
    from pucache.encoders.encoder import load_encoder

    runtime, precision = path.split("-")
    encoder = load_encoder(device=device, runtime=runtime, precision=precision)
    hands(encoder, encoder.runtime.start, 1)
    return {"forward": forward_alone(encoder)}


def again(folder: Path, work: Path, path: str, device: str, threads: int) -> dict:
    """Run once more on a folder that has not changed, as the command line does it, but for the imports."""
    from pucache.cache.destination import encoder_of_existing
    from pucache.embedding.embed import run_embedding
    from pucache.encoders.encoder import load_encoder
    from pucache.images.source import open_source

    cache = work / "again.h5"
    if not cache.exists():
        report = run_embedding(open_source(folder), cache, load_encoder(device=device))
        return {"rows": report.rows, "peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    began = time.perf_counter()
    report = run_embedding(open_source(folder), cache, load_encoder(device=device, like=encoder_of_existing(cache)))
    assert not report.computed
    return {"seconds": time.perf_counter() - began, "rows": report.rows}


CELLS = {call.__name__: call for call in (end_to_end, stages, peer, allocator, again)}


# --- the report --------------------------------------------------------------------------------------


class Bench:
    """Runs cells, each in its own process, and keeps every figure."""

    def __init__(self, arguments: argparse.Namespace):
        self._arguments = arguments
        self.figures: dict[tuple, list[dict]] = {}

    def cell(self, name: str, folder: Path, path: str = "", threads: int = 2, **variables: str) -> None:
        a = self._arguments
        command = [sys.executable, "-m", __spec__.name, folder, a.work, "--cell", name, "--path", path]
        command += ["--device", a.device, "--threads", str(threads)]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})
        if done.returncode:
            raise SystemExit(f"{name} {path} failed:\n{done.stderr}")
        figures = json.loads(done.stdout.splitlines()[-1])
        key = (name, folder, path, threads, *variables)
        self.figures.setdefault(key, []).append(figures)
        print(*map(str, key), {k: v and round(v, 3) for k, v in figures.items()}, file=sys.stderr, flush=True)

    def median(self, name: str, folder: Path, path: str = "", threads: int = 2, *variables: str) -> dict[str, float]:
        rows = self.figures[name, folder, path, threads, *variables]
        return {
            key: statistics.median(row[key] for row in rows) if rows[0][key] is not None else None for key in rows[0]
        }

    def spread(self, key: str, name: str, folder: Path, path: str) -> str:
        values = [row[key] for row in self.figures[name, folder, path, 2]]
        return f"{min(values):.3g} to {max(values):.3g}"


def copy_pngs(folder: Path, source: Path, count: int) -> None:
    """So many PNG files, drawn from all of them, in a folder of their own; nothing where it exists."""
    if folder.exists():
        return
    files = sorted(source.glob("**/*.png"))
    folder.mkdir(parents=True)
    for number in np.random.default_rng(0).permutation(len(files))[:count]:
        shutil.copy2(files[number], folder / f"{number:06}.png")


def main(arguments: argparse.Namespace) -> str:
    arguments.work.mkdir(parents=True, exist_ok=True)
    everything, png, jpeg = arguments.folder, arguments.work / "png", arguments.work / "jpeg"
    copy_pngs(png, everything, arguments.images)
    if not jpeg.exists():
        write_jpegs(jpeg, JPEGS)
    bench, paths = Bench(arguments), [f"{runtime}-{precision}" for runtime, precision in PATHS]
    (arguments.work / "again.h5").unlink(missing_ok=True)
    for _ in range(arguments.rounds):
        for folder in (png, jpeg):
            bench.cell("peer", folder)
            for threads in (1, 2):
                bench.cell("stages", folder, threads=threads)
            for path in paths:
                bench.cell("end_to_end", folder, path)
    for _ in range(arguments.rounds):
        for path in ("torch-fp32", "torch-bf16"):
            bench.cell("allocator", png, path)
            bench.cell("allocator", png, path, MALLOC_PERTURB_="0")
    for _ in range(1 + arguments.rounds):
        bench.cell("again", everything)
    return report(bench, png, jpeg, paths, arguments)


def report(bench: Bench, png: Path, jpeg: Path, paths: list[str], arguments: argparse.Namespace) -> str:
    lines = [
        "# Embedding on the CPU",
        "",
        f"`python -m benchmarks.speed.embed CIFAR_FOLDER WORK`: bundled encoder at 224 px, {arguments.images:,} "
        f"CIFAR-10 PNG files and {JPEGS:,} JPEG files of 500 x 375, float16 cache; images a second, medians of "
        f"{arguments.rounds} rounds.",
    ]
    for name, folder in (("PNG files of 32 x 32", png), ("JPEG files of 500 x 375", jpeg)):
        plain = bench.median("peer", folder)["end to end"]
        one, two = (bench.median("stages", folder, threads=threads) for threads in (1, 2))
        lines += ["", f"## {name}", "", "| stage alone | one thread | two |", "| --- | --- | --- |"]
        lines += [f"| {stage} | {one[stage]:,.0f} | {two[stage]:,.0f} |" for stage in one]
        lines += [
            "",
            f"A plain `DataLoader` (batches of {PEER_BATCH}, other settings default) with timm's model: {plain:.0f}.",
            "",
            "| path | forward alone | end to end | end to end / forward | of what sharing the cores allows "
            "| x DataLoader | cosine to fp32, least of 8 images of noise | start, s | peak MB |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
        for path in paths:
            row = bench.median("end_to_end", folder, path)
            shared = 1 / (1 / row["forward"] + 1 / (2 * one["all three"]))
            cosine = "" if row["cosine"] is None else f"{row['cosine']:.4f}"
            lines.append(
                f"| {path.replace('-', ' ')} | {row['forward']:.0f} | {row['end to end']:.0f} | **{row['ratio']:.2f}** "
                f"({bench.spread('ratio', 'end_to_end', folder, path)}) | {row['end to end'] / shared:.2f} "
                f"| {row['end to end'] / plain:.1f} | {cosine} | {row['start']:.1f} | {row['peak MB']:.0f} |"
            )
    lines += ["", "## The allocator", "", "| forward alone | glibc's defaults | one heap, nothing returned | |"]
    lines.append("| --- | --- | --- | --- |")
    for path in ("torch-fp32", "torch-bf16"):
        with_it = bench.median("allocator", png, path)["forward"]
        without = bench.median("allocator", png, path, 2, "MALLOC_PERTURB_")["forward"]
        lines.append(f"| {path.replace('-', ' ')} | {without:.0f} | {with_it:.0f} | {with_it / without:.2f}x |")
    first, *later = bench.figures["again", arguments.folder, "", 2]
    seconds = statistics.median(row["seconds"] for row in later)
    lines += [
        "",
        "## Again, with nothing changed",
        "",
        f"{later[0]['rows']:,} images: {seconds:.2f} s after imports, encoder and listing included. The run that made "
        f"the cache peaked at {first['peak MB']:.0f} MB.",
        "",
        environment(),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = page_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--images", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cell", choices=CELLS, help=argparse.SUPPRESS)
    parser.add_argument("--path", default="", help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        print(
            json.dumps(
                CELLS[arguments.cell](
                    arguments.folder, arguments.work, arguments.path, arguments.device, arguments.threads
                )
            )
        )
    else:
        print_page(main, arguments)
    shutil.rmtree(arguments.work / "embed.h5.parts", ignore_errors=True)
