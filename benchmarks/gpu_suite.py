"""Everything worth measuring on a GPU, in slices of a few minutes that can be resumed.

    python benchmarks/gpu_suite.py OUT [--device cuda] [--minutes 9] [--rows 33000] [--dim 2048]

Each slice prints and appends one JSON line to OUT/gpu_suite.jsonl; a slice that is there already is
not run again, and none is begun after `--minutes`. Data are drawn here, so nothing need be carried
along. `--device cpu` with few rows tries the script itself.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from environment import environment

from pucache import PULinearClassifier
from pucache.devices import choose_device, multiplies_bfloat16
from pucache.heads import fit_heads
from pucache.risks import PURisk

LABELLED, PRIOR, REPEATS = 600, 0.0741, 3


class Data:
    """Planted positives with a decaying spectrum, float16, and the device to work on."""

    def __init__(self, n: int, d: int, device: str):
        draw = np.random.default_rng(0)
        self.y = draw.random(n) < PRIOR
        spectrum = 1 / np.sqrt(1 + np.arange(d) / 8)
        X = draw.standard_normal((n, d), np.float32) * spectrum
        X[self.y, :64] += 0.35
        self.X, self.s = X.astype(np.float16), np.zeros(n, np.int8)
        self.s[np.flatnonzero(self.y)[: min(LABELLED, int(self.y.sum()) // 2)]] = 1
        self.name, self.device = device, choose_device(device)

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


SLICES = {"limits": limits, "sgd": sgd, "batch": batch, "whole": whole, "agreement": agreement}


def main(out: Path, data: Data, minutes: float) -> None:
    out.mkdir(parents=True, exist_ok=True)
    path, began = out / "gpu_suite.jsonl", time.monotonic()
    done = {json.loads(line)["slice"] for line in path.read_text().splitlines()} if path.exists() else set()
    for name, measure in SLICES.items():
        if name in done or time.monotonic() - began > 60 * minutes:
            continue
        row = {"slice": name, "rows": len(data.X), "dim": data.X.shape[1], **measure(data), "where": environment()}
        print(json.dumps(row, indent=1), flush=True)
        with path.open("a") as stream:
            stream.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--rows", type=int, default=33_000)
    parser.add_argument("--dim", type=int, default=2048)
    arguments = parser.parse_args()
    main(arguments.out, Data(arguments.rows, arguments.dim, arguments.device), arguments.minutes)
