"""Checks of `benchmarks.gpu`: speed on a GPU, and whether the CPU finds the same."""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.common.environment import environment

PRIOR, LABELLED, PENALTY, BLOCK = 0.0741, 600, 1e-5, 1 << 15


@dataclass(frozen=True)
class Bench:
    """Device and sizes; `quick` takes sizes that a CPU finishes in seconds."""

    device: str
    work: Path
    quick: bool = False

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    @functools.cached_property
    def y(self) -> np.ndarray:
        """True classes, bool (n,)."""
        return np.random.default_rng(0).random(self.size(1_000_000, 2_000)) < PRIOR

    @functools.cached_property
    def s(self) -> np.ndarray:
        """PU labels, int8 (n,)."""
        s, positive = np.zeros(len(self.y), np.int8), np.flatnonzero(self.y)
        s[positive[: min(LABELLED, len(positive) // 2)]] = 1
        return s

    def X(self, dim: int) -> np.ndarray:
        """Planted positives among rows with a decaying spectrum, float16 (n, dim)."""
        X, scale = np.empty((len(self.y), dim), np.float16), np.sqrt(1 + np.arange(dim, dtype=np.float32) / 8)
        for first in range(0, len(X), BLOCK):
            y = self.y[first : first + BLOCK]
            block = np.random.default_rng((1, first)).standard_normal((len(y), dim), np.float32) / scale
            block[y, : min(64, dim)] += 0.35
            X[first : first + BLOCK] = block
        return X

    def written(self, name: str) -> Path:
        """A folder or file that the process beside this one writes, once it is whole."""
        while not (self.work / f"{name}.whole").exists():
            time.sleep(0.2)
        return self.work / name


def seconds(device: str, call: Callable[[], object], repeats: int = 1) -> dict[str, float]:
    """Seconds of the first call, and the median of those after it; the device has finished each."""
    taken = []
    for _ in range(1 + repeats):
        began = time.perf_counter()
        call()
        if device != "cpu":
            done = torch.cuda.Event(blocking=True)
            done.record()
            done.synchronize()
        taken.append(time.perf_counter() - began)
    return {"first": taken[0], "seconds": median(taken[1:])}


def once(call: Callable[[], Any]) -> tuple[Any, float]:
    """Result and seconds of one call on the CPU."""
    began = time.perf_counter()
    result = call()
    return result, time.perf_counter() - began


# --- checks ----------------------------------------------------------------------------------------


def machine(bench: Bench) -> dict[str, object]:
    """Hardware and versions."""
    found: dict[str, object] = {"environment": environment()}
    if bench.device != "cpu":
        found["memory, GB"] = torch.cuda.get_device_properties(bench.device).total_memory / 1e9
    return found


def train_many(bench: Bench) -> dict[str, object]:
    """`train_pu` on a million rows, by default a sample of them, first without the time of a CPU, which comes last."""
    from pucache import EmbeddingCache, train_pu

    cache, s = EmbeddingCache(bench.written("many.h5")), bench.s
    fits = [(device, once(lambda device=device: train_pu(cache, s, device=device))) for device in (bench.device, "cpu")]
    here, there = (model.margins(cache.X[:10_000]) for _, (model, _) in fits)
    taken = {"seconds": fits[0][1][1], "seconds on the CPU": fits[1][1][1]}
    return {"rows": len(s), **taken, "correlation": float(np.corrcoef(here, there)[0, 1])}


def heads_many(bench: Bench) -> dict[str, object]:
    """54 heads on a million rows, on the device and on the CPU: reading, moments and uploading included."""
    from pucache import EmbeddingCache
    from pucache.heads.solve import fit_heads

    X, count = EmbeddingCache(bench.written("many.h5")).X, bench.size(54, 2)

    def fit(device: str):
        return fit_heads(X, bench.s, penalty=PENALTY, seed=np.arange(count), device=device)

    taken = seconds(bench.device, lambda: fit(bench.device))
    return {"rows": len(X), "heads": count, **taken, "seconds on the CPU": once(lambda: fit("cpu"))[1]}


def ranking(bench: Bench) -> dict[str, object]:
    """The first thousand rows by similarity, on the device and on the CPU."""
    from pucache import EmbeddingCache
    from pucache.retrieval.retrieve import rank_unlabelled
    from pucache.retrieval.similarity import Similarity

    cache, s = EmbeddingCache(bench.written("many.h5")), bench.s
    found = {}
    for kind in ("whitened", "topk"):

        def rank(device: str, kind: str = kind) -> np.ndarray:
            return rank_unlabelled(cache, s, k=bench.size(1000, 100), scorer=Similarity(kind, device)).rows

        found[f"{kind}, seconds"] = seconds(bench.device, lambda: rank(bench.device))["seconds"]
        there, found[f"{kind}, seconds on the CPU"] = once(lambda: rank("cpu"))
        found[f"{kind}, shared"] = len(np.intersect1d(rank(bench.device), there)) / len(there)
    return {"rows": len(s)} | found


def embedding(bench: Bench, *, kind: str) -> dict[str, object]:
    """Images a second of `embed` by its defaults and of the forward pass alone; when the first batch was embedded."""
    from pucache import load_encoder, open_source
    from pucache.embedding.embed import run_embedding

    folder, loaded, cache = bench.written(kind), load_encoder(device=bench.device), bench.work / f"{kind}.h5"
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


def write_pngs(folder: Path, count: int) -> None:
    """PNG files of 32 px of noise."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    for number in range(count):
        image = Image.fromarray(draw.integers(0, 256, (32, 32, 3), np.uint8))
        image.save(folder / f"{number:06}.png", compress_level=1)


def graphs(bench: Bench) -> dict[str, object]:
    """The compiled step of ResNet-18 as CUDA graphs, which `pretrain` does not use: whether they would gain more."""
    import torch._inductor.config as inductor

    from benchmarks.quality.pretrain import step_speed

    inductor.triton.cudagraphs = True
    return step_speed("resnet18", bench.device, batch=bench.size(512, 8), compiled=True)


# seconds that a group may take, and its checks: those of what changed since a card ran it, or that none has run
GROUPS: list[tuple[int, dict[str, Callable[[Bench], dict[str, object]]]]] = [
    (60, {"machine": machine}),
    (60, {"embedding, 1,000 PNG": functools.partial(embedding, kind="few")}),
    (90, {"embedding, 30,000 PNG": functools.partial(embedding, kind="png")}),
    (180, {"heads, a million rows": heads_many}),
    (240, {"train_pu, a million rows": train_many}),
    (120, {"ranking, a million rows": ranking}),
    (120, {"pretraining, resnet18, CUDA graphs": graphs}),
]
