"""Speed on a GPU, and whether the CPU finds the same: one line of JSON for each check, as soon as it is known.

    python -m benchmarks.gpu OUT [--minutes 8] [--data DIR] [--device cuda] [--quick]

Checks run in the order of `CHECKS`. OUT/results.jsonl gets the figures of each, or its error; a check that is there
already, of the same commit and device, is not run again, so the command can be repeated until all are done. A check is
not begun after the minutes are over. OUT/gpu.md is a page of all checks. pucache need not be installed: run it in a
checkout. DIR holds CIFAR-10 (train/<class>/*.png) for one epoch of the authors' task. ``--device cpu --quick`` tries
the script itself.
"""

import argparse
import dataclasses
import functools
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.common.cells import table
from benchmarks.common.environment import HERE, commit, environment

PRIOR, LABELLED, PENALTY, COMPARED = 0.0741, 600, 1e-5, 8


@dataclass(frozen=True)
class Bench:
    """Device and sizes; `quick` takes sizes that a CPU finishes in seconds."""

    device: str
    work: Path
    data: Path | None = None
    quick: bool = False

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    @functools.cached_property
    def y(self) -> np.ndarray:
        """True classes, bool (n,)."""
        return np.random.default_rng(0).random(self.size(33_000, 1_000)) < PRIOR

    @functools.cached_property
    def s(self) -> np.ndarray:
        """PU labels, int8 (n,)."""
        s, positive = np.zeros(len(self.y), np.int8), np.flatnonzero(self.y)
        s[positive[: min(LABELLED, len(positive) // 2)]] = 1
        return s

    def X(self, dim: int) -> np.ndarray:
        """Planted positives among rows with a decaying spectrum, float16 (n, dim)."""
        draw = np.random.default_rng(1)
        X = draw.standard_normal((len(self.y), dim), np.float32) / np.sqrt(1 + np.arange(dim, dtype=np.float32) / 8)
        X[self.y, : min(64, dim)] += 0.35
        return X.astype(np.float16)

    def cache(self, name: str):
        from benchmarks.common.row_cache import write_row_cache

        return write_row_cache(self.work / f"{name}.h5", self.X(self.size(1280, 32)))


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


def libraries(bench: Bench) -> dict[str, object]:
    """Whether faiss and torch load together, and what faiss sees."""
    import faiss

    x = np.random.default_rng(0).standard_normal((1000, 32)).astype(np.float32)
    product = torch.from_numpy(x).to(bench.device) @ torch.from_numpy(x).to(bench.device).T
    nearest = faiss.knn(x, x, 1, metric=faiss.METRIC_INNER_PRODUCT)[1]
    gpus = getattr(faiss, "get_num_gpus", int)()
    return {"GPUs that faiss sees": gpus, "agree": shared(nearest, product.argmax(1, keepdim=True).cpu().numpy())}


def heads(bench: Bench, *, dim: int, solver: str) -> dict[str, object]:
    """Heads on the device and on the CPU: seconds, and the difference of their margins in standard deviations."""
    from pucache.heads.minibatch import SGDSettings
    from pucache.heads.risks import PURisk
    from pucache.heads.solve import fit_heads

    count, X = bench.size(54, 2) if solver == "batch" else 1, bench.X(bench.size(dim, 32))
    options: dict[str, object] = {"penalty": PENALTY, "seed": np.arange(count)}
    if solver == "sgd":
        protocol = SGDSettings(epochs=bench.size(100, 2), min_steps=0)
        options = {"solver": "sgd", "sgd_settings": protocol, "prior": PRIOR, "risk": PURisk("imbnnpu")}

    def fit(device: str):
        return fit_heads(X, bench.s, device=device, **options)

    rows = X[:: max(1, len(X) // 5000)]
    here, there = (fit(device).margins(rows)[:, :COMPARED] for device in (bench.device, "cpu"))
    difference = np.sqrt(np.square(here - there).mean()) / there.std()
    taken = seconds(bench.device, lambda: fit(bench.device))
    on_cpu = seconds("cpu", lambda: fit("cpu"), 1)["seconds"]
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

    here, there = (fit(device).margins(bench.X(bench.size(1280, 32))) for device in (bench.device, "cpu"))
    taken = seconds(bench.device, lambda: fit(bench.device))
    on_cpu = seconds("cpu", lambda: fit("cpu"), 1)["seconds"]
    return {**taken, "seconds on the CPU": on_cpu, "correlation": float(np.corrcoef(here, there)[0, 1])}


def ranking(bench: Bench) -> dict[str, object]:
    """The first thousand rows by similarity, on the device and on the CPU."""
    from pucache.retrieval.retrieve import rank_unlabelled
    from pucache.retrieval.similarity import Similarity

    cache, found = bench.cache("ranked"), {}
    for kind in ("whitened", "max"):

        def rank(device: str, kind: str = kind) -> np.ndarray:
            return rank_unlabelled(cache, bench.s, k=bench.size(1000, 100), scorer=Similarity(kind, device)).rows

        found[f"{kind}, seconds"] = seconds(bench.device, lambda: rank(bench.device))["seconds"]
        found[f"{kind}, seconds on the CPU"] = seconds("cpu", lambda: rank("cpu"), 1)["seconds"]
        found[f"{kind}, shared"] = shared(rank(bench.device)[None], rank("cpu")[None])
    return found


def embedding(bench: Bench, *, kind: str) -> dict[str, object]:
    """Images a second of the forward pass alone and of the whole `embed`; random weights."""
    import timm
    from safetensors.torch import save_file

    from benchmarks.common.jpegs import write_jpegs
    from pucache import load_encoder, open_source
    from pucache.devices import cores
    from pucache.embedding.embed import run_embedding

    name, folder = "test_resnet" if bench.quick else "resnet50", bench.work / kind
    weights = bench.work / f"{name}.safetensors"
    torch.manual_seed(0)
    save_file(timm.create_model(name, num_classes=0).state_dict(), weights)
    if kind == "jpeg":
        write_jpegs(folder, bench.size(10_000, 8), processes=cores())
    else:
        write_pngs(folder, bench.size(30_000, 8))
    loaded = load_encoder(f"timm:{name}", weights=weights, device=bench.device)
    cache = bench.work / f"{kind}.h5"
    cache.unlink(missing_ok=True)
    report = run_embedding(open_source(folder), cache, loaded)
    rate = report.computed / (report.seconds - report.profile.seconds["listing"])
    pixels = torch.zeros((loaded.runtime.batch_size, *loaded.runtime.input_size, 3), dtype=torch.uint8)
    alone = len(pixels) / seconds(bench.device, lambda: loaded.forward(pixels))["seconds"]
    found: dict[str, object] = {"images": report.computed, "images/s": rate, "forward alone, images/s": alone}
    return found | {"precision": loaded.spec.precision, "encoder waited": report.profile.waited}


def write_pngs(folder: Path, count: int) -> None:
    """PNG files of 32 px of noise."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    for number in range(count):
        image = Image.fromarray(draw.integers(0, 256, (32, 32, 3), np.uint8))
        image.save(folder / f"{number:06}.png", compress_level=1)


def pretraining(bench: Bench) -> dict[str, object]:
    """A step of pretraining at 32 px, beside the rate of a large matrix product."""
    from benchmarks.quality.pretrain import step_speed

    backbone = "test_resnet" if bench.quick else "resnet50"
    return step_speed(backbone, bench.device, batch=bench.size(512, 8))


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
    network = NetworkConfig("resnet50", stem="small", size=32)
    report = pretrain(bench.data / "train", bench.work / "epoch", network, recipe, device=bench.device)
    return {"images": images, "steps": report.steps, "seconds": time.perf_counter() - began}


def tests(bench: Bench) -> dict[str, object]:
    """The smoke tests of CUDA; their report lies in OUT."""
    junit = bench.work.parent / "tests.xml"
    command = [sys.executable, "-m", "pytest", "-q", "--slow", "-p", "no:cacheprovider", f"--junitxml={junit}"]
    ended = subprocess.run([*command, "tests/cuda"], cwd=HERE, capture_output=True, text=True, check=False)
    return {"exit code": ended.returncode, "last lines": ended.stdout.splitlines()[-5:]}


CHECKS: dict[str, Callable[[Bench], dict[str, object]]] = {
    "machine": machine,
    "faiss beside torch": libraries,
    "heads, 1280 dimensions": functools.partial(heads, dim=1280, solver="batch"),
    "heads, 2048 dimensions": functools.partial(heads, dim=2048, solver="batch"),
    "sgd, 1280 dimensions": functools.partial(heads, dim=1280, solver="sgd"),
    "sgd, a plain loop": plain_loop,
    "train_pu": train,
    "ranking": ranking,
    "embedding, PNG of 32 px": functools.partial(embedding, kind="png"),
    "embedding, JPEG of 500 x 375": functools.partial(embedding, kind="jpeg"),
    "pretraining, a step": pretraining,
    "pretraining, an epoch": epoch,
    "tests": tests,
}


# --- the run ---------------------------------------------------------------------------------------


def done(results: Path, device: str) -> list[dict]:
    """Results of this commit on this device."""
    lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    return [line for line in lines if (line["commit"], line["device"]) == (commit(), device)]


def run(bench: Bench, out: Path, *, minutes: float, names: list[str]) -> list[dict]:
    """Run the checks that are missing; returns the results of all that are known."""
    results, until = out / "results.jsonl", time.monotonic() + 60 * minutes
    for name in names:
        if time.monotonic() > until or any(line["check"] == name for line in done(results, bench.device)):
            continue
        line: dict[str, object] = {"check": name, "commit": commit(), "device": bench.device}
        try:
            line |= CHECKS[name](bench)
        except Exception as error:  # the checks after it are worth as much
            traceback.print_exc()
            line["error"] = f"{type(error).__name__}: {error}"
        print(json.dumps(line), flush=True)
        with results.open("a") as stream:
            stream.write(json.dumps(line) + "\n")
    return done(results, bench.device)


def page(lines: list[dict]) -> str:
    """The results as a page."""
    known = ("check", "commit", "device")
    rows = [
        [line["check"], name, f"{value:.4g}" if isinstance(value, float) else value]
        for line in lines
        for name, value in line.items()
        if name not in known
    ]
    return f"# CUDA\n\n`python -m benchmarks.gpu OUT`\n\n{table(['check', 'figure', 'value'], rows)}\n"


def main(words: list[str]) -> int:
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("out", type=Path)
    command.add_argument("--minutes", type=float, default=8.0)
    command.add_argument("--data", type=Path, metavar="DIR", help="CIFAR-10")
    command.add_argument("--device", default="cuda")
    command.add_argument("--quick", action="store_true", help="small sizes")
    command.add_argument("--checks", nargs="+", choices=CHECKS, default=list(CHECKS), metavar="CHECK")
    arguments = command.parse_args(words)
    work = arguments.out / "work"
    work.mkdir(parents=True, exist_ok=True)
    bench = Bench(arguments.device, work, arguments.data, arguments.quick)
    lines = run(bench, arguments.out, minutes=arguments.minutes, names=arguments.checks)
    (arguments.out / "gpu.md").write_text(page(lines))
    return int(any("error" in line for line in lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
