"""Training speed of heads, compared with plain loops and with the peak of the machine.

    python -m benchmarks.speed.heads DIR [--device cuda] [--quick] [--out docs/results/heads.md]

DIR holds CIFAR-10, see benchmarks/common/cifar.py; the heads are those of the authors' 1:10 task (33,000 x 1280, 600
labelled; --quick: a quarter of it). Run it on a quiet machine. Every figure is the median of `REPEATS` runs after a
warm-up.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from benchmarks.common.cifar import Cifar
from benchmarks.common.command_line import page_parser, write_page
from benchmarks.common.environment import environment
from benchmarks.common.plain_loops import loader_loop, slices_loop
from benchmarks.quality.retrieval import write_rows
from pucache import EmbeddingCache, PULinearClassifier
from pucache.devices import choose_device
from pucache.estimates.review_weights import TrainingLabels
from pucache.heads.design_matrix import DesignMatrix
from pucache.heads.moments import Moments
from pucache.heads.risks import PURisk
from pucache.heads.solve import fit_heads
from pucache.neighbours.graph import neighbour_graph
from pucache.threads import limited_threads
from pucache.training import cross_fitting
from pucache.training.labelled_cache import LabelledCache
from pucache.training.prior_sweep import sweep_on
from pucache.training.train_head import TrainingRows

REPEATS, BATCH, EPOCHS = 3, 256, 100
PRIOR = 0.0741
AUTHORS = PURisk("imbnnpu")


def median(call, device, repeats=REPEATS) -> float:
    """Seconds of one call, after one to warm up."""
    took = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        took.append(time.perf_counter() - began)
    return float(np.median(took[1:]))


def limits(X, device) -> tuple[float, float]:
    """Bytes read a second in one pass over X, and operations a second of a large product as heads use it."""
    read = X.numel() * X.element_size() / median(lambda: X.sum(), device, 9)
    B = torch.randn(X.shape[1], 512, device=device)
    return read, 2 * X.numel() * 512 / median(lambda: X @ B, device, 9)


def products_of_batches(d, steps, K, device) -> float:
    """Seconds of the two products of each step of sgd with K heads, alone and with the batch in the cache."""
    X, step = torch.randn(BATCH, d, device=device), torch.randn(K, BATCH, device=device)
    parameters, gradient = torch.randn(K, d, device=device), torch.empty(K, d, device=device)

    def products() -> None:
        for _ in range(200):
            torch.mm(parameters, X.T)
            torch.mm(step, X, out=gradient)

    with torch.inference_mode(), limited_threads(K * BATCH * d):
        return steps / 200 * median(products, device, 9)


@contextmanager
def counted_fits(n, d) -> Iterator[list[float]]:
    """Operations of the products of each training of a sweep, were all heads evaluated in all passes."""
    operations, fit = [], cross_fitting.fit_heads

    def counted(*positional, **options):
        heads = fit(*positional, **options)
        operations.append(4.0 * n * d * len(heads.coef) * heads.passes)
        return heads

    cross_fitting.fit_heads = counted
    try:
        yield operations
    finally:
        cross_fitting.fit_heads = fit


def objective(Z, s, coef, intercept, C) -> float:
    """Balanced logistic loss, mean over rows, with scikit-learn's penalty; in float64."""
    margins = Z @ coef.astype(np.float64) + intercept
    loss = np.logaddexp(0, np.where(s == 1, -margins, margins))
    return (loss[s == 1].mean() + loss[s == 0].mean()) / 2 + coef.astype(np.float64) @ coef / (2 * C * len(Z))


def main(cache: EmbeddingCache, s: np.ndarray, device: torch.device) -> str:
    X, name = np.array(cache.X), str(device)
    n, d = X.shape
    rows, labels = torch.tensor(X, dtype=torch.float32, device=device), torch.tensor(s, device=device)
    read, rate = limits(rows, device)
    lines = []

    def add(what, seconds, note="", ratio=""):
        lines.append([what, f"{seconds:.3f}", ratio, note])
        print(*lines[-1], sep=" | ", flush=True)
        return seconds

    common = {"device": name, "moments": Moments.of(X)}
    pass_bytes = 4 * n * d  # of float32 rows
    loop = add(
        "autograd over contiguous slices, 100 epochs",
        median(lambda: slices_loop(rows, labels, PRIOR, EPOCHS), device, 1),
    )
    loader = add(
        "DataLoader and autograd, 100 epochs",
        10 * median(lambda: loader_loop(rows, labels, PRIOR, EPOCHS // 10), device, 1),
        "10 epochs measured",
    )
    for K in (1, 8, 32, 128):
        seconds = median(
            lambda: fit_heads(X, s, prior=PRIOR, risk=AUTHORS, solver="sgd", seed=np.arange(K), **common),  # noqa: B023
            device,
        )
        floor = EPOCHS * max(pass_bytes / read, 4 * n * d * K / rate)
        add(
            f"sgd, {K} head{'s' * (K > 1)}, 100 epochs",
            seconds,
            f"limit by reading and rate {floor:.2f} s: {floor / seconds:.0%} of it; the two products of each step, "
            f"batch in the cache, {products_of_batches(d + 1, EPOCHS * -(-n // BATCH), K, device):.2f} s",
            f"{loop * K / seconds:.1f}x slices, {loader * K / seconds:.1f}x DataLoader, per head",
        )
    for C in (1e-2, 1e-3, 1e-4):
        Z = ((X - X.mean(0, dtype=np.float64)) / (X.std(0, dtype=np.float64) + 1e-6)).astype(np.float32)
        plain = LogisticRegression(C=C, class_weight="balanced", max_iter=1000)
        theirs = median(lambda: plain.fit(Z, s), device)  # noqa: B023
        moments = Moments.of(Z)
        settings = {"risk": PURisk("weighted_bce"), "penalty": 1 / (C * n * moments.spread**2), "device": name}
        head = fit_heads(Z, s, **settings)
        seconds = median(lambda: fit_heads(Z, s, **settings), device)  # noqa: B023
        exact = fit_heads(Z, s, **settings, tolerance=1e-5)
        least = objective(Z, s, exact.coef[0], exact.intercept[0], C)
        above = [
            objective(Z, s, *at, C) - least
            for at in ((plain.coef_[0], plain.intercept_[0]), (head.coef[0], head.intercept[0]))
        ]
        add(
            f"scikit-learn, balanced logistic regression, C={C:g}",
            theirs,
            f"{plain.n_iter_[0]} iterations, {above[0]:.0e} above the least objective",
        )
        floor = 2 * head.passes * 4 * n * d / read
        add(
            f"batch, one head, the same, C={C:g}",
            seconds,
            f"{head.passes} passes, {above[1]:.0e} above; reading X in float32 alone: {floor:.3f} s",
            f"{theirs / seconds:.2f}x scikit-learn",
        )
    data = LabelledCache.of(cache, s)
    add("twins among the images", median(lambda: LabelledCache.of(cache, s), device))
    linear = median(lambda: PULinearClassifier(device=name, method="linear").fit(X, s, groups=data.group), device)
    add("whole fit, linear: penalty, prior with interval, calibration", linear, "51 heads in three trainings")
    add("graph of 30 nearest neighbours", median(lambda: neighbour_graph(X, device=name), device))
    graph = neighbour_graph(X, device=name)

    def distilled() -> None:
        design, labels = DesignMatrix(X, s, None, device), TrainingLabels.of(s)
        rows = TrainingRows(design, labels, graph=lambda _: graph, groups=data.group)
        PULinearClassifier(device=name).train(rows)

    add("whole fit, distilled, graph kept", median(distilled, device), f"method linear: {linear:.1f} s")
    for loss in ("imbupu", "imbnnpu"):
        swept = PULinearClassifier(loss=loss, penalty=1e-5, device=name)
        one = median(lambda: sweep_on(data, swept, priors=[0.07], seeds=[0]), device)  # noqa: B023
        priors = np.geomspace(0.01, 0.5, 32)
        sweep_seconds = median(lambda: sweep_on(data, swept, priors=priors, seeds=range(5)), device, 1)  # noqa: B023
        with counted_fits(n, d) as operations:
            sweep_on(data, swept, priors=priors, seeds=range(5))
        add(f"sweep, {loss}, 1 prior x 1 seed", one, "5 folds each; bound by reading X")
        note = (
            f"at most {sum(operations) / 1e12:.1f} Tflop of products: {sum(operations) / rate:.1f} s at the rate above"
        )
        add(f"sweep, {loss}, 32 priors x 5 seeds", sweep_seconds, note, f"{sweep_seconds / one:.1f}x the time of one")
    for K in (100, 1600) if device.type == "cuda" else (100,):
        seeds = np.arange(K)
        add(f"batch, {K} heads", median(lambda: fit_heads(X, s, seed=seeds, penalty=1e-5, **common), device, 1))  # noqa: B023
    head = "| | seconds | ratio | note |\n| --- | --- | --- | --- |\n"
    return (
        f"# Training heads\n\n`python -m benchmarks.speed.heads DIR`: seconds to train linear heads on {n:,} x {d} "
        f"{X.dtype} embeddings with {s.sum()} labelled rows, median of {REPEATS}. Limits measured in this run: "
        f"{read / 1e9:.0f} GB/s read, {rate / 1e12:.2f} Tflop/s of matrix products at the precision that sgd uses.\n\n"
        + head
        + "\n".join(f"| {' | '.join(line)} |" for line in lines)
        + f"\n\n{environment()}\n"
    )


if __name__ == "__main__":
    parser = page_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--work", type=Path, help="where caches are kept (default: DIR/pucache-bench)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    work = arguments.work or arguments.folder / "pucache-bench"
    data = Cifar(arguments.folder.resolve(), work, quick=arguments.quick)
    task = data.authors()
    text = main(write_rows(work / "heads.h5", data.train, task.X), task.s, choose_device(arguments.device))
    write_page(text, arguments.out)
