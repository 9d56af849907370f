"""Speed on a GPU, and whether the CPU finds the same.

    python -m benchmarks.gpu FOLDER [--device cuda] [--quick] [--checks CHECK ...] [--out docs/results/gpu.md]

Figures of each check are kept in FOLDER, so the command can be repeated until all are done: one that is there already,
of the same commit and device, is not run again. The page has all figures, with the name of the card. pucache need not
be installed: run it in a checkout. ``--device cpu --quick`` tries the script itself. Beside it: ``python -m pytest
--slow tests/cuda``.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.common.cells import measured, table
from benchmarks.common.command_line import page_parser, write_page
from benchmarks.common.environment import environment
from benchmarks.common.row_cache import write_row_cache
from pucache import EmbeddingCache, load_encoder, open_source, train_pu
from pucache.embedding.embed import run_embedding
from pucache.heads.solve import fit_heads
from pucache.retrieval.retrieve import rank_unlabelled
from pucache.retrieval.scorers import Similarity

PRIOR, LABELLED, PENALTY, BLOCK = 0.0741, 600, 1e-5, 1 << 15


@dataclass(frozen=True)
class Bench:
    """Device and sizes; `quick` takes sizes that a CPU finishes in seconds."""

    device: str
    work: Path
    quick: bool

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    @cached_property
    def y(self) -> np.ndarray:
        """True classes, bool (n,)."""
        return np.random.default_rng(0).random(self.size(1_000_000, 2_000)) < PRIOR

    @cached_property
    def s(self) -> np.ndarray:
        """PU labels, int8 (n,)."""
        s, positive = np.zeros(len(self.y), np.int8), np.flatnonzero(self.y)
        s[positive[: min(LABELLED, len(positive) // 2)]] = 1
        return s

    @cached_property
    def many(self) -> EmbeddingCache:
        """Planted positives among rows with a decaying spectrum, float16 (n, 1280)."""
        path, dim = self.work / f"many-{len(self.y)}.h5", self.size(1280, 32)
        if path.exists():
            return EmbeddingCache(path)
        X, scale = np.empty((len(self.y), dim), np.float16), np.sqrt(1 + np.arange(dim, dtype=np.float32) / 8)
        for first in range(0, len(X), BLOCK):
            y = self.y[first : first + BLOCK]
            block = np.random.default_rng((1, first)).standard_normal((len(y), dim), np.float32) / scale
            block[y, : min(64, dim)] += 0.35
            X[first : first + BLOCK] = block
        return write_row_cache(path, X)


def write_pngs(folder: Path, count: int) -> None:
    """PNG files of 32 px of noise."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    for number in range(count):
        image = Image.fromarray(draw.integers(0, 256, (32, 32, 3), np.uint8))
        image.save(folder / f"{number:06}.png", compress_level=1)


def seconds(device: str, call: Callable[[], object], repeats: int = 1) -> dict[str, float]:
    """Seconds of the first call, and the median of those after it; the device has finished each."""
    taken = []
    for _ in range(1 + repeats):
        began = time.perf_counter()
        call()
        if device != "cpu":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - began)
    return {"first": taken[0], "seconds": median(taken[1:])}


def once(call: Callable[[], Any]) -> tuple[Any, float]:
    """Result and seconds of one call that waits for its device."""
    began = time.perf_counter()
    return call(), time.perf_counter() - began


# --- checks ----------------------------------------------------------------------------------------


def train_many(bench: Bench) -> dict[str, object]:
    """`train_pu` on a million rows, by default a sample of them, first without the time of a CPU, which comes last."""
    fits = [once(partial(train_pu, bench.many, bench.s, device=device)) for device in (bench.device, "cpu")]
    here, there = (model.margins(bench.many.X[:10_000]) for model, _ in fits)
    taken = {"seconds": fits[0][1], "seconds on the CPU": fits[1][1]}
    return {"rows": len(bench.s), **taken, "correlation": float(np.corrcoef(here, there)[0, 1])}


def heads_many(bench: Bench) -> dict[str, object]:
    """54 heads on a million rows, on the device and on the CPU: reading, moments and uploading included."""
    seeds = np.arange(bench.size(54, 2))
    fit = partial(fit_heads, bench.many.X, bench.s, penalty=PENALTY, seed=seeds)
    taken = seconds(bench.device, partial(fit, device=bench.device))
    on_cpu = once(partial(fit, device="cpu"))[1]
    return {"rows": len(bench.s), "heads": len(seeds), **taken, "seconds on the CPU": on_cpu}


def ranking(bench: Bench) -> dict[str, object]:
    """The first thousand rows by similarity, on the device and on the CPU."""
    found: dict[str, object] = {"rows": len(bench.s)}
    for kind in ("whitened", "topk"):

        def rank(device: str, kind: str = kind) -> np.ndarray:
            wanted = bench.size(1000, 100)
            return rank_unlabelled(bench.many, bench.s, k=wanted, scorer=Similarity(kind, device)).rows

        found[f"{kind}, seconds"] = seconds(bench.device, lambda: rank(bench.device))["seconds"]
        there, found[f"{kind}, seconds on the CPU"] = once(lambda: rank("cpu"))
        found[f"{kind}, shared"] = len(np.intersect1d(rank(bench.device), there)) / len(there)
    return found


def embedding(bench: Bench, *, count: int) -> dict[str, object]:
    """Images a second of `embed` by its defaults and of the forward pass alone; when the first batch was embedded."""
    count, loaded = bench.size(count, 8), load_encoder(device=bench.device)
    folder = bench.work / f"png-{count}"
    write_pngs(folder, count)
    cache = folder.with_suffix(".h5")
    cache.unlink(missing_ok=True)
    report = run_embedding(open_source(folder), cache, loaded)
    profile, taken = report.profile, report.seconds - report.profile.seconds["listing"]
    after = (report.computed - loaded.runtime.batch_size) / max(taken - profile.first_batch, 1e-3)
    pixels = torch.zeros((loaded.runtime.batch_size, *loaded.runtime.input_size, 3), dtype=torch.uint8)
    alone = len(pixels) / seconds(bench.device, lambda: loaded.runtime(pixels), 3)["seconds"]
    return {
        "images": report.computed,
        "precision": loaded.spec.precision,
        "images/s": report.computed / taken,
        "first batch, s": profile.first_batch,
        "images/s after it": after,
        "forward alone, images/s": alone,
        "encoder waited": profile.waited,
    } | {f"{stage}, s": value for stage, value in profile.seconds.items()}


# those of what changed since a card ran it, or that none has run
CHECKS: dict[str, Callable[[Bench], dict[str, object]]] = {
    "embedding, 1,000 PNG": partial(embedding, count=1_000),
    "embedding, 30,000 PNG": partial(embedding, count=30_000),
    "heads, a million rows": heads_many,
    "train_pu, a million rows": train_many,
    "ranking, a million rows": ranking,
}


def page(lines: list[dict]) -> str:
    """The results as a page: a table of the checks that give the same figures."""
    tables: dict[tuple[str, ...], list[list]] = {}
    for line in lines:
        tables.setdefault(tuple(line), []).append([_rounded(value) for value in line.values()])
    parts = [table(list(figures), rows) for figures, rows in tables.items()]
    told = "`python -m benchmarks.gpu FOLDER`: each figure is of one run on one machine; read ratios, not milliseconds."
    return "\n\n".join(["# CUDA", told, *parts, environment()]) + "\n"


def _rounded(value: object) -> object:
    if not isinstance(value, float):
        return value
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}" if abs(value) >= 0.01 else f"{value:.1g}"


if __name__ == "__main__":
    parser = page_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--checks", nargs="+", choices=CHECKS, default=list(CHECKS), metavar="CHECK")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(options.device, options.folder, options.quick)
    wanted = [{"check": name} for name in options.checks]
    lines = measured(bench.work, f"gpu-{bench.device}", wanted, lambda check: CHECKS[check](bench))
    write_page(page(lines), options.out)
