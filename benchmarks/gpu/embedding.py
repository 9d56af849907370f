"""Slices of embedding: the forward pass alone, and end to end from pixels and from JPEG files."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import timm
import torch
from safetensors.torch import save_file

from benchmarks.common.jpegs import write_jpegs
from benchmarks.gpu.slices import Bench, Figure, Slice
from benchmarks.gpu.timing import timed
from benchmarks.speed.embed import forward_alone, hands, pixels
from pucache import load_encoder, open_source
from pucache.cache.paths import parts_folder
from pucache.devices import cores
from pucache.embedding.embed import run_embedding
from pucache.encoders.encoder import Encoder
from pucache.images import loading
from pucache.images.listing import UNKNOWN, Listing
from pucache.images.source import Source

POOL = 64  # pictures that images in memory are made of
END_TO_END = 0.90  # target


def encoder(bench: Bench, runtime: str, *, precision: str = "auto") -> Encoder:
    """The network of the slices, with the weights of --weights, or with random ones."""
    weights = bench.weights or _random_weights(bench)
    settings = {"weights": weights, "device": str(bench.device), "precision": precision}
    return load_encoder(f"timm:{bench.size.encoder}", runtime=runtime, **settings)


def _random_weights(bench: Bench) -> Path:
    path = bench.work / f"{bench.size.encoder}.safetensors"
    if not path.exists():
        torch.manual_seed(0)
        save_file(timm.create_model(bench.size.encoder, num_classes=0).state_dict(), path)
    return path


def jpegs(bench: Bench) -> Source:
    """JPEG files, encoded by all cores."""
    folder = bench.work / f"jpeg-{bench.size.jpegs}"
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}-unfinished")
        write_jpegs(unfinished, bench.size.jpegs, processes=cores())
        unfinished.rename(folder)
    return open_source(folder)


# --- images in memory ------------------------------------------------------------------------------


class Pixels:
    """A source of images that are decoded already: `read` gives their pixels, no two images alike."""

    name = "pixels in memory"

    def __init__(self, count: int, size: tuple[int, int]):
        draw = np.random.default_rng(0)
        self._pool = [draw.integers(0, 256, (*size, 3), np.uint8).tobytes() for _ in range(POOL)]
        self._count = count

    def scan(self) -> Listing:
        return Listing([f"{row:08}" for row in range(self._count)], np.full((self._count, 2), UNKNOWN))

    def read(self, key: str) -> bytes:
        row = int(key)
        return self._pool[row % POOL][:-8] + row.to_bytes(8, "big")


class AsTheyAre:
    """Stands for preprocessing where pixels are read."""

    sufficient_side = 0

    def __init__(self, size: tuple[int, int]):
        self.input_size = size

    def __call__(self, data: bytes) -> torch.Tensor:
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(*self.input_size, 3)


@contextmanager
def decoded_already() -> Iterator[None]:
    """Let loaders, and the processes forked from this one, take what they read as pixels."""
    decode = loading.decode
    loading.decode = lambda data, sufficient_side: data
    try:
        yield
    finally:
        loading.decode = decode


# --- slices ----------------------------------------------------------------------------------------


def forward(bench: Bench, *, runtime: str, precision: str = "auto") -> list[Figure]:
    """Batches in memory."""
    return _forward(bench, encoder(bench, runtime, precision=precision), f"forward alone, {runtime}, {precision}")


def _forward(bench: Bench, loaded: Encoder, name: str) -> list[Figure]:
    start = timed(bench, lambda: _first_batch(loaded), repeats=1)
    runtime = loaded.runtime
    rates = tuple(forward_alone(loaded) for _ in range(bench.size.repeats))
    note = f"batches of {runtime.batch_size}, {loaded.spec.precision}"
    if runtime.cosine is not None:
        note += f", least cosine to float32 {runtime.cosine:.5f}"
    figures = [Figure(name, rates, "images/s", note=note), Figure(f"{name}: start and first batch", (start.cold,))]
    if start.peak is not None:
        figures.append(Figure(f"{name}: peak memory", (torch.cuda.max_memory_allocated(bench.device) / 1e9,), "GB"))
    return figures


def _first_batch(loaded: Encoder) -> None:
    hands(loaded, lambda: loaded.forward(pixels(loaded, loaded.runtime.batch_size or 8)), 1)


def compiled_rate(bench: Bench) -> float | None:
    """Images a second of the compiled forward pass alone; None where this machine cannot compile it."""
    if "compiled" not in bench.kept:
        try:
            loaded = encoder(bench, "compile" if bench.on_gpu else "torch")
            _first_batch(loaded)
            bench.kept["compiled"] = forward_alone(loaded)
        except ModuleNotFoundError:
            bench.kept["compiled"] = None
    return bench.kept["compiled"]


def end_to_end(bench: Bench, loaded: Encoder, source: Source, name: str, *, target: float | None) -> list[Figure]:
    """The whole of `embed` but for the listing, beside the compiled forward pass alone."""
    best = compiled_rate(bench)
    _first_batch(loaded)
    cache, rates = bench.work / "embedded.h5", []
    for _ in range(max(1, bench.size.repeats - 1)):
        cache.unlink(missing_ok=True)
        shutil.rmtree(parts_folder(cache), ignore_errors=True)
        report = run_embedding(source, cache, loaded)
        if report.failures:
            raise RuntimeError(f"{len(report.failures)} of {report.computed} images failed")
        rates.append(report.computed / (report.seconds - report.profile.seconds["listing"]))
    note = f"{report.computed:,} images; the encoder waited {report.profile.waited:.0%} of the time"
    figures = [Figure(name, tuple(rates), "images/s", limit=best, note=note)]
    if best is not None:
        ratios = tuple(rate / best for rate in rates)
        figures.append(Figure(f"{name}: of the compiled forward", ratios, "", target=target, at_least=True))
    return figures


def from_pixels(bench: Bench, *, runtime: str) -> list[Figure]:
    """From pixels that are decoded already: reading, hashing, workers, copies, forward, writing."""
    loaded = encoder(bench, runtime)
    size = loaded.runtime.input_size
    loaded.preprocess = AsTheyAre(size)
    source = Pixels(bench.size.images, size)
    with decoded_already():
        return end_to_end(bench, loaded, source, f"end to end from pixels, {runtime}", target=END_TO_END)


def from_jpeg(bench: Bench) -> list[Figure]:
    """From JPEG files of 500 x 375."""
    loaded = encoder(bench, "compile" if bench.on_gpu else "torch")
    return end_to_end(bench, loaded, jpegs(bench), "end to end from JPEG", target=None)


def agreement(bench: Bench) -> list[Figure]:
    """Least cosine between embeddings of JPEG files by the device and by the CPU in float32."""
    source = jpegs(bench)
    keys = source.scan().keys[:32]
    on_cpu = Bench(torch.device("cpu"), bench.size, bench.work, weights=bench.weights)
    rows = []
    for at, precision in ((bench, "auto"), (on_cpu, "fp32")):
        loaded = encoder(at, "torch", precision=precision)
        images = torch.stack(
            [loaded.preprocess(loading.decode(source.read(key), loaded.preprocess.sufficient_side)) for key in keys]
        )
        X = np.asarray(hands(loaded, lambda: loaded.forward(images), 1)[0], np.float64)  # noqa: B023
        rows.append(X / np.linalg.norm(X, axis=1, keepdims=True))
    return [Figure("least cosine to the CPU's embeddings", (float(np.vecdot(*rows).min()),), "")]


SLICES = (
    Slice("from pixels, compile", partial(from_pixels, runtime="compile"), 3),
    Slice("from JPEG", from_jpeg, 3),
    Slice("agreement: embeddings", agreement),
    Slice("forward, compile", partial(forward, runtime="compile"), 2),
    Slice("forward, torch", partial(forward, runtime="torch")),
    Slice("from pixels, torch", partial(from_pixels, runtime="torch"), 3),
    Slice("forward, torch, bf16", partial(forward, runtime="torch", precision="bf16")),
    Slice("forward, torch, fp32", partial(forward, runtime="torch", precision="fp32")),
)
