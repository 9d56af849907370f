"""Checks of `benchmarks.gpu`: speed on a GPU, and whether the CPU finds the same."""

import dataclasses
import functools
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.common.environment import HERE, environment

PRIOR, LABELLED, PENALTY, COMPARED, BLOCK = 0.0741, 600, 1e-5, 8, 1 << 15
BACKBONES = ("resnet50", "resnet18")


@dataclass(frozen=True)
class Bench:
    """Device and sizes; `quick` takes sizes that a CPU finishes in seconds."""

    device: str
    work: Path
    data: Path | None = None
    quick: bool = False
    rows: int = 0  # 0 is that of the authors' task

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    @functools.cached_property
    def y(self) -> np.ndarray:
        """True classes, bool (n,)."""
        return np.random.default_rng(0).random(self.rows or self.size(33_000, 1_000)) < PRIOR

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

    def cache(self, name: str):
        from benchmarks.common.row_cache import write_row_cache

        return write_row_cache(self.work / f"{name}.h5", self.X(self.size(1280, 32)))

    def written(self, name: str) -> Path:
        """A folder or file that the process beside this one writes, once it is whole."""
        while not (self.work / f"{name}.whole").exists():
            time.sleep(0.2)
        return self.work / name

    @property
    def many(self) -> "Bench":
        """The same with a million rows."""
        return dataclasses.replace(self, rows=self.size(1_000_000, 2_000))


def seconds(device: str, call: Callable[[], object], repeats: int = 3) -> dict[str, float]:
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


def shared(here: np.ndarray, there: np.ndarray) -> float:
    """Mean share of numbers that two lists of rows have in common."""
    return float(np.mean([len(np.intersect1d(a, b)) / len(b) for a, b in zip(here, there, strict=True)]))


# --- checks ----------------------------------------------------------------------------------------


def machine(bench: Bench) -> dict[str, object]:
    """Hardware and versions."""
    found: dict[str, object] = {"environment": environment()}
    if bench.device != "cpu":
        found["memory, GB"] = torch.cuda.get_device_properties(bench.device).total_memory / 1e9
    return found


def heads(bench: Bench, *, dim: int, solver: str) -> dict[str, object]:
    """Heads on the device and on the CPU: seconds, and the difference of their margins in standard deviations."""
    from pucache.heads.minibatch import SGDSettings
    from pucache.heads.risks import PURisk
    from pucache.heads.solve import fit_heads

    count, X = bench.size(54, 2) if solver == "batch" else 1, bench.X(bench.size(dim, 32))
    epochs = bench.size(100, 2)

    def fit(device: str, epochs: int = epochs):
        options: dict[str, object] = {"penalty": PENALTY, "seed": np.arange(count)}
        if solver == "sgd":
            protocol = SGDSettings(epochs=epochs, min_steps=0)
            options = {"solver": "sgd", "sgd_settings": protocol, "prior": PRIOR, "risk": PURisk("imbnnpu")}
        return fit_heads(X, bench.s, device=device, **options)

    few = max(1, epochs // 20)  # the CPU takes minutes for all
    rows = X[:: max(1, len(X) // 5000)]
    there, on_cpu = once(lambda: fit("cpu", few))
    here, there = (heads.margins(rows)[:, :COMPARED] for heads in (fit(bench.device, few), there))
    difference = np.sqrt(np.square(here - there).mean()) / there.std()
    taken = seconds(bench.device, lambda: fit(bench.device))
    on_cpu *= epochs / few if solver == "sgd" else 1
    return {"heads": count, **taken, "seconds on the CPU": on_cpu, "difference, sd": float(difference)}


def plain_loop(bench: Bench) -> dict[str, object]:
    """One head by autograd on the same device: a fifth of the epochs, times five."""
    from benchmarks.common.plain_loops import slices_loop

    rows = torch.from_numpy(bench.X(bench.size(1280, 32))).float().to(bench.device)
    labels = torch.from_numpy(bench.s).to(bench.device)
    epochs = bench.size(20, 1)
    taken = seconds(bench.device, lambda: slices_loop(rows, labels, PRIOR, epochs), 1)
    return {"seconds": 5 * taken["seconds"]}


def train(bench: Bench) -> dict[str, object]:
    """`train_pu` by its defaults on the device and on the CPU, each with its own graph of neighbours."""
    from pucache import train_pu

    caches = {device: bench.cache(f"train-{device.partition(':')[0]}") for device in (bench.device, "cpu")}

    def fit(device: str):
        return train_pu(caches[device], bench.s, device=device)

    there, on_cpu = once(lambda: fit("cpu"))
    X = bench.X(bench.size(1280, 32))
    correlation = np.corrcoef(fit(bench.device).margins(X), there.margins(X))[0, 1]
    taken = seconds(bench.device, lambda: fit(bench.device))
    return {**taken, "seconds on the CPU": on_cpu, "correlation": float(correlation)}


def train_many(bench: Bench) -> dict[str, object]:
    """`train_pu` on a million rows, by default a sample of them, first without the time of a CPU, which comes last."""
    from pucache import EmbeddingCache, train_pu

    cache, s = EmbeddingCache(bench.written("many.h5")), bench.many.s
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
        return fit_heads(X, bench.many.s, penalty=PENALTY, seed=np.arange(count), device=device)

    taken = seconds(bench.device, lambda: fit(bench.device), 1)
    return {"rows": len(X), "heads": count, **taken, "seconds on the CPU": once(lambda: fit("cpu"))[1]}


def ranking(bench: Bench, *, many: bool = False) -> dict[str, object]:
    """The first thousand rows by similarity, on the device and on the CPU."""
    from pucache import EmbeddingCache
    from pucache.retrieval.retrieve import rank_unlabelled
    from pucache.retrieval.similarity import Similarity

    cache = EmbeddingCache(bench.written("many.h5")) if many else bench.cache("ranked")
    s, found = (bench.many if many else bench).s, {}
    for kind in ("whitened", "topk"):

        def rank(device: str, kind: str = kind) -> np.ndarray:
            return rank_unlabelled(cache, s, k=bench.size(1000, 100), scorer=Similarity(kind, device)).rows

        found[f"{kind}, seconds"] = seconds(bench.device, lambda: rank(bench.device), 1 if many else 3)["seconds"]
        there, found[f"{kind}, seconds on the CPU"] = once(lambda: rank("cpu"))
        found[f"{kind}, shared"] = shared(rank(bench.device)[None], there[None])
    return {"rows": len(s)} | found


def encoder_of(bench: Bench, name: str):
    """A loaded encoder: the bundled one, or a network of timm with random weights."""
    import timm
    from safetensors.torch import save_file

    from pucache import load_encoder

    if name == "bundled":
        return load_encoder(device=bench.device)
    name, weights = "test_resnet" if bench.quick else name, bench.work / f"{name}.safetensors"
    torch.manual_seed(0)
    save_file(timm.create_model(name, num_classes=0).state_dict(), weights)
    return load_encoder(f"timm:{name}", weights=weights, device=bench.device)


def embedding(bench: Bench, *, kind: str, name: str) -> dict[str, object]:
    """Images a second of the whole `embed` and of the forward pass alone; when the first batch was embedded."""
    from pucache import open_source
    from pucache.embedding.embed import run_embedding

    folder, loaded = bench.written(kind), encoder_of(bench, name)
    cache = bench.work / f"{kind}-{name}.h5"
    cache.unlink(missing_ok=True)
    report = run_embedding(open_source(folder), cache, loaded)
    profile, taken = report.profile, report.seconds - report.profile.seconds["listing"]
    after = (report.computed - loaded.runtime.batch_size) / max(taken - profile.first_batch, 1e-3)
    pixels = torch.zeros((loaded.runtime.batch_size, *loaded.runtime.input_size, 3), dtype=torch.uint8)
    alone = len(pixels) / seconds(bench.device, lambda: loaded.runtime(pixels))["seconds"]
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


def pretraining(bench: Bench, *, name: str, compiled: bool) -> dict[str, object]:
    """A step of pretraining at 32 px, beside the rate of a large matrix product."""
    from benchmarks.quality.pretrain import step_speed

    return step_speed("test_resnet" if bench.quick else name, bench.device, batch=bench.size(512, 8), compiled=compiled)


def graphs(bench: Bench) -> dict[str, object]:
    """The compiled step of ResNet-18 as CUDA graphs, which `pretrain` does not use: whether they would gain more."""
    import torch._inductor.config as inductor

    inductor.triton.cudagraphs = True
    return pretraining(bench, name="resnet18", compiled=True)


def epoch(bench: Bench) -> dict[str, object]:
    """One epoch on all training images of DIR."""
    from pucache.pretraining.network import NetworkConfig
    from pucache.pretraining.pretrain import pretrain
    from pucache.pretraining.recipes import RECIPES

    if bench.data is None:
        return {"left out": "it needs CIFAR-10: --data DIR"}
    images = sum(1 for _ in (bench.data / "train").rglob("*.png"))
    began = time.perf_counter()
    recipe = dataclasses.replace(RECIPES["modern"], epochs=1, batch_size=512)
    network = NetworkConfig("resnet50", size=32)
    report = pretrain(bench.data / "train", bench.work / "epoch", network, recipe, device=bench.device)
    return {"images": images, "steps": report.steps, "seconds": time.perf_counter() - began}


def tests(bench: Bench) -> dict[str, object]:
    """The smoke tests of CUDA; their report lies in OUT."""
    junit = bench.work.parent / "tests.xml"
    command = [sys.executable, "-m", "pytest", "-q", "--slow", "-p", "no:cacheprovider", f"--junitxml={junit}"]
    ended = subprocess.run([*command, "tests/cuda"], cwd=HERE, capture_output=True, text=True, check=False)
    if ended.returncode:
        print(ended.stdout)
    counted = {name: re.search(rf'\b{name}="(\d+)"', junit.read_text()) for name in ("tests", "skipped")}
    return {"exit code": ended.returncode} | {name: int(found[1]) for name, found in counted.items() if found}


# seconds that a group may take, and its checks
GROUPS: list[tuple[int, dict[str, Callable[[Bench], dict[str, object]]]]] = [
    (60, {"machine": machine}),
    (60, {"embedding, bundled, 1,000 PNG": functools.partial(embedding, kind="few", name="bundled")}),
    (150, {"tests": tests}),
    (60, {"embedding, ResNet-50, 1,000 PNG": functools.partial(embedding, kind="few", name="resnet50")}),
    (90, {f"pretraining, {name}": functools.partial(pretraining, name=name, compiled=False) for name in BACKBONES}),
    (
        240,
        {
            f"pretraining, {name}, compiled": functools.partial(pretraining, name=name, compiled=True)
            for name in BACKBONES
        },
    ),
    (90, {"embedding, ResNet-50, PNG of 32 px": functools.partial(embedding, kind="png", name="resnet50")}),
    (90, {"embedding, bundled, PNG of 32 px": functools.partial(embedding, kind="png", name="bundled")}),
    (90, {"embedding, ResNet-50, JPEG of 500 x 375": functools.partial(embedding, kind="jpeg", name="resnet50")}),
    (180, {"heads, a million rows": heads_many}),
    (240, {"train_pu, a million rows": train_many}),
    (120, {"ranking, a million rows": functools.partial(ranking, many=True)}),
    (
        120,
        {
            "heads, 1280 dimensions": functools.partial(heads, dim=1280, solver="batch"),
            "heads, 2048 dimensions": functools.partial(heads, dim=2048, solver="batch"),
            "sgd, 1280 dimensions": functools.partial(heads, dim=1280, solver="sgd"),
            "sgd, a plain loop": plain_loop,
            "train_pu": train,
            "ranking": ranking,
        },
    ),
    (120, {"pretraining, resnet18, CUDA graphs": graphs}),
    (90, {"pretraining, an epoch": epoch}),
]
