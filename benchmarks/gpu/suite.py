"""All GPU measurements, in resumable slices of a few minutes.

    python -m benchmarks.gpu.suite OUT [--device cuda] [--minutes 7] [--rows 33000] [--dim 2048] [--images 60000]
                                   [--cifar DIR] [--epochs 100] [--only WORD]

Each slice prints and appends one JSON line to OUT/gpu_suite.jsonl; a slice that is there already is
not run again, and none is begun after `--minutes`. Data are drawn here, so nothing need be carried
along but the packages; the encoder is a ResNet-50 with random weights, which is as fast as any other,
and JPEG files are crops of scikit-learn's sample photographs. `--cifar DIR` (train/ and test/, or tar
shards of them) adds the authors' pretraining, each of whose slices goes on where it was until it is
finished. `--only pretrain` runs the slices with that word in their name. `--device cpu` with few rows
and images tries the script itself.
"""

import argparse
import json
import shutil
import tarfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import timm
import torch
from safetensors.torch import save_file

from benchmarks.common.environment import environment
from benchmarks.quality.pretrain import others_views, step_speed
from benchmarks.quality.pretrain import whole as authors_task
from benchmarks.speed.embed import forward_alone, hands, pixels, write_jpegs
from pucache import EmbeddingCache, PULinearClassifier, load_encoder, open_source
from pucache.cache.keys import encode_keys
from pucache.cache.paths import parts_folder
from pucache.cache.writer import Rows, write_file
from pucache.devices import choose_device, multiplies_bfloat16
from pucache.embedding.embed import run_embedding
from pucache.encoders.encoder import Encoder
from pucache.encoders.spec import EncoderSpec
from pucache.heads.fit import fit_heads
from pucache.heads.risks import PURisk
from pucache.images import loading
from pucache.images.source import UNKNOWN, Listing, Source
from pucache.retrieval.model_scorers import Fused
from pucache.retrieval.retrieve import rank_unlabelled
from pucache.retrieval.similarity import Similarity

LABELLED, PRIOR, REPEATS = 600, 0.0741, 3
MOST_JPEGS = 20_000


# --- heads and retrieval ---------------------------------------------------------------------------


class Data:
    """Planted positives with a decaying spectrum, float16, and the device to work on."""

    def __init__(self, out: Path, n: int, d: int, device: str):
        draw = np.random.default_rng(0)
        self.y = draw.random(n) < PRIOR
        spectrum = 1 / np.sqrt(1 + np.arange(d) / 8)
        X = draw.standard_normal((n, d), np.float32) * spectrum
        X[self.y, :64] += 0.35
        self.X, self.s = X.astype(np.float16), np.zeros(n, np.int8)
        self.s[np.flatnonzero(self.y)[: min(LABELLED, int(self.y.sum()) // 2)]] = 1
        self.name, self.device, self.out = device, choose_device(device), out
        self.scale = {"rows": n, "dim": d}

    def seconds(self, call: Callable[[], object]) -> float:
        """Median of several calls after one to warm up."""
        took = []
        for _ in range(REPEATS + 1):
            began = time.perf_counter()
            call()
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            took.append(time.perf_counter() - began)
        return float(np.median(took[1:]))


def limits(data: Data) -> dict:
    """Reading X once, and one large product as heads need it."""
    kind = torch.bfloat16 if multiplies_bfloat16(data.device) else torch.float32
    X = torch.tensor(data.X, device=data.device).to(kind)
    B = torch.randn(X.shape[1], 1600, device=data.device).to(kind)
    product = data.seconds(lambda: X @ B)
    return {
        "GB/s": X.numel() * X.element_size() / data.seconds(lambda: X.sum()) / 1e9,
        "Tflop/s": 2 * X.numel() * B.shape[1] / product / 1e12,
        "precision": str(kind),
    }


def sgd(data: Data) -> dict:
    """The authors' protocol, 100 epochs: one head, and 64 priors x 5 seeds."""
    priors, seeds = np.repeat(np.geomspace(0.01, 0.5, 64), 5), np.tile(np.arange(5), 64)
    settings = {"risk": PURisk("imbnnpu"), "solver": "sgd", "device": data.name}
    return {
        "one head": data.seconds(lambda: fit_heads(data.X, data.s, prior=PRIOR, **settings)),
        "320 heads": data.seconds(lambda: fit_heads(data.X, data.s, prior=priors, seed=seeds, **settings)),
    }


def batch(data: Data) -> dict:
    """The batch solver: one head and 1,600 heads."""
    settings = {"penalty": 1e-5, "device": data.name}
    return {
        f"{K} heads": data.seconds(lambda: fit_heads(data.X, data.s, seed=np.arange(K), **settings))  # noqa: B023
        for K in (1, 1600)
    }


def whole(data: Data) -> dict:
    """A whole fit at its defaults."""
    return {"whole fit": data.seconds(lambda: PULinearClassifier(device=data.name).fit(data.X, data.s))}


def agreement(data: Data) -> dict:
    """Greatest difference of margins between this device and the CPU, over their standard deviation."""
    here, there = (fit_heads(data.X, data.s, penalty=1e-4, device=name) for name in (data.name, "cpu"))
    a, b = here.margins(data.X), there.margins(data.X)
    return {"greatest relative difference of margins": float(np.abs(a - b).max() / b.std())}


def retrieval(data: Data) -> dict:
    """Ranking all unlabelled rows of a cache, and the first thousand, on this device and on the CPU."""
    n, d = data.X.shape
    path, keys = data.out / "planted.h5", encode_keys([f"{row:09}" for row in range(n)])
    rows = Rows(keys, data.X, np.zeros((n, 32), np.uint8), np.full((n, 2), UNKNOWN))
    shape = (n, keys.itemsize, np.dtype(np.float16))
    write_file(path, EncoderSpec.imported("planted", d), "", [rows], shape=shape, failures={})
    cache = EmbeddingCache(path)
    model = PULinearClassifier(draws=0, device=data.name).fit(cache.X, data.s)
    ways = {
        f"{kind}, {device}": Similarity(kind, device) for kind in ("whitened", "max") for device in (data.name, "cpu")
    }
    ways |= {f"fused, {device}": Fused(model, device) for device in (data.name, "cpu")}
    return {
        f"k = {k}, {name}": data.seconds(lambda: rank_unlabelled(cache, data.s, k=k, scorer=by))  # noqa: B023
        for name, by in ways.items()
        for k in (1000, n)
    }


# --- embedding -------------------------------------------------------------------------------------


class Images:
    """A ResNet-50 at 224 px and images for it: pixels in memory, and JPEG files of 500 x 375."""

    def __init__(self, out: Path, count: int, device: str):
        self.out, self.count, self.device = out, count, device
        self._weights, self.jpeg = out / "resnet50.safetensors", out / "jpeg"
        self.scale = {"images": count}
        if not self._weights.exists():
            torch.manual_seed(0)
            save_file(timm.create_model("resnet50", num_classes=0, zero_init_last=False).state_dict(), self._weights)

    def jpegs(self) -> Source:
        if not self.jpeg.exists():
            unfinished = self.jpeg.with_name("jpeg-unfinished")
            write_jpegs(unfinished, min(self.count, MOST_JPEGS))
            unfinished.rename(self.jpeg)
        return open_source(self.jpeg)

    def encoder(self, runtime: str, precision: str = "auto", decode: str = "auto") -> Encoder:
        settings = {"weights": self._weights, "device": self.device, "decode": decode}
        return load_encoder("timm:resnet50", runtime=runtime, precision=precision, **settings)

    def end_to_end(self, encoder: Encoder, source: Source) -> dict:
        """Forward alone, and the whole of `embed` but for the listing."""
        alone = forward(encoder)
        cache = self.out / "suite.h5"
        cache.unlink(missing_ok=True)
        shutil.rmtree(parts_folder(cache), ignore_errors=True)
        report = run_embedding(source, cache, encoder)
        rate = report.computed / (report.seconds - report.profile.seconds["listing"])
        told = {"embedded": report.computed, "failed": len(report.failures)}
        return {
            **told,
            **alone,
            "end to end, images/s": rate,
            "ratio": rate / alone["images/s"],
            **report.profile.summary(),
        }


class Pixels:
    """A source of images that are decoded already: `read` gives their pixels."""

    name = "pixels in memory"

    def __init__(self, count: int, size: tuple[int, int]):
        draw = np.random.default_rng(0)
        self._pool = [draw.integers(0, 256, (*size, 3), np.uint8).tobytes() for _ in range(64)]
        self._count = count

    def scan(self) -> Listing:
        return Listing([f"{row:08}" for row in range(self._count)], np.full((self._count, 2), UNKNOWN))

    def read(self, key: str) -> bytes:
        row = int(key)
        return self._pool[row % 64][:-8] + row.to_bytes(8, "big")  # no two alike


class AsTheyAre:
    """Stands for preprocessing where pixels are read."""

    sufficient_side = None

    def __init__(self, size: tuple[int, int]):
        self.input_size = size

    def __call__(self, data: bytes) -> torch.Tensor:
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(*self.input_size, 3)


def forward(encoder: Encoder) -> dict:
    """Batches in memory."""
    began = time.perf_counter()
    hands(encoder, lambda: encoder.forward(pixels(encoder, encoder.runtime.batch_size or 8)), 1)
    started = time.perf_counter() - began
    return {
        "start, s": started,
        "images/s": forward_alone(encoder),
        "batch": encoder.runtime.batch_size,
        "cosine to fp32, of noise": encoder.runtime.cosine,
    }


def from_pixels(images: Images, runtime: str) -> dict:
    """End to end from pixels that are decoded already: reading, hashing, workers, copies, writing."""
    encoder = images.encoder(runtime)
    size = encoder.runtime.input_size
    encoder.preprocess = AsTheyAre(size)
    decode, loading.decode = loading.decode, lambda data, sufficient_side: data
    try:
        return images.end_to_end(encoder, Pixels(images.count, size))
    finally:
        loading.decode = decode


def from_jpeg(images: Images, decode: str) -> dict:
    """End to end from JPEG files of 500 x 375, decoded by the workers or on the device."""
    return images.end_to_end(images.encoder("torch", decode=decode), images.jpegs())


# --- pretraining -----------------------------------------------------------------------------------


class Pretraining:
    """Networks at 32 px on images in memory, and CIFAR-10 where it was carried along."""

    def __init__(self, out: Path, device: str, cifar: Path | None, epochs: int, until: float):
        self.out, self.device, self.epochs, self.until = out, device, epochs, until
        self.batch = 512 if choose_device(device).type == "cuda" else 32
        self.cifar = cifar and _unpacked(cifar, out / "cifar")
        self.scale = {"batch": self.batch}

    def step(self, backbone: str, compiled: bool) -> dict:
        """A step of training, its views, and the matrix rate."""
        return step_speed(backbone, self.device, batch=self.batch, compiled=compiled)

    def views(self) -> dict:
        """Views per second, ours and others'."""
        return {f"{size} px": others_views(self.device, size, self.batch) for size in (32, 224)}

    def authors(self, backbone: str) -> dict:
        """Contrastive and debiased pretraining, heads, test figures; raises while it is not finished."""
        if self.cifar is None:
            raise RuntimeError("left out: it needs --cifar DIR")
        minutes = (self.until - time.monotonic()) / 60
        page = authors_task(self.cifar, self.out, self.device, [backbone], self.epochs, minutes)
        finished = [name for name in ("debiased", "contrastive") if f"{backbone}-{name}-{self.epochs} |" in page]
        if len(finished) < 2:
            raise RuntimeError("not finished; run again to go on")
        return {"page": page}


def _unpacked(folder: Path, to: Path) -> Path:
    """The folder, or what its tar shards hold."""
    shards = sorted(folder.glob("*.tar"))
    if shards and not to.exists():
        unfinished = to.with_name("cifar-unfinished")
        for shard in shards:
            with tarfile.open(shard) as tar:
                tar.extractall(unfinished, filter="data")
        unfinished.rename(to)
    return to if shards else folder


HEADS = {"limits": limits, "sgd": sgd, "batch": batch, "whole": whole, "agreement": agreement, "retrieval": retrieval}
EMBEDDING: dict[str, Callable[[Images], dict]] = {
    "forward, torch fp32": lambda images: forward(images.encoder("torch", "fp32")),
    "forward, torch bf16": lambda images: forward(images.encoder("torch", "bf16")),
    "forward, torch": lambda images: forward(images.encoder("torch")),
    "forward, compile": lambda images: forward(images.encoder("compile")),
    "from pixels, torch": partial(from_pixels, runtime="torch"),
    "from pixels, compile": partial(from_pixels, runtime="compile"),
    "from JPEG, decoded on the host": partial(from_jpeg, decode="host"),
    "from JPEG, decoded on the device": partial(from_jpeg, decode="device"),
}


PRETRAINING: dict[str, Callable[[Pretraining], dict]] = {
    **{
        f"pretrain step, {name}{', compiled' * compiled}": partial(Pretraining.step, backbone=name, compiled=compiled)
        for name in ("resnet18", "resnet50")
        for compiled in (False, True)
    },
    "pretrain views": Pretraining.views,
    "pretrain resnet18 on CIFAR-10": partial(Pretraining.authors, backbone="resnet18"),
    "pretrain resnet50 on CIFAR-10": partial(Pretraining.authors, backbone="resnet50"),
}


def main(out: Path, data: Data, images: Images, pretraining: Pretraining, until: float, only: str) -> None:
    path = out / "gpu_suite.jsonl"
    done = {json.loads(line)["slice"] for line in path.read_text().splitlines()} if path.exists() else set()
    for kind, slices in ((data, HEADS), (images, EMBEDDING), (pretraining, PRETRAINING)):
        for name, measure in slices.items():
            if name in done or only not in name or time.monotonic() > until:
                continue
            try:
                row = {"slice": name, **kind.scale, **measure(kind), "where": environment()}
            except Exception as error:  # the next slices are worth having all the same
                print(f"{name} failed: {error}", flush=True)
                continue
            print(json.dumps(row, indent=1), flush=True)
            with path.open("a") as stream:
                stream.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=7)
    parser.add_argument("--rows", type=int, default=33_000)
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--images", type=int, default=60_000)
    parser.add_argument("--cifar", type=Path)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--only", default="", metavar="WORD")
    arguments = parser.parse_args()
    end = time.monotonic() + 60 * arguments.minutes
    arguments.out.mkdir(parents=True, exist_ok=True)
    main(
        arguments.out,
        Data(arguments.out, arguments.rows, arguments.dim, arguments.device),
        Images(arguments.out, arguments.images, arguments.device),
        Pretraining(arguments.out, arguments.device, arguments.cifar, arguments.epochs, end),
        end,
        arguments.only,
    )
