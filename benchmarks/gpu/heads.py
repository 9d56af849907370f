"""Slices of training heads: both solvers, whole fits, sweeps, and whether each agrees with the CPU."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.common.plain_loops import slices_loop
from benchmarks.gpu.limits import LIMITS, limits
from benchmarks.gpu.slices import PRIOR, Bench, Figure, Slice
from benchmarks.gpu.timing import Timing, timed
from pucache.heads.design_matrix import DesignMatrix
from pucache.heads.linear_heads import FittedHeads
from pucache.heads.minibatch import SGDSettings
from pucache.heads.risks import PURisk
from pucache.heads.solve import fit_heads

PENALTY = 1e-5
COMPARED = 8  # heads that the CPU trains too
ONE, MANY = "one head", "{:,} heads"
ONE_HEAD, ALL_HEADS, WEIGHTED, MANY_HEADS, WHOLE = 0.5, 1.5, 1.2, 3.0, 1.0  # targets


# --- sgd -------------------------------------------------------------------------------------------


def sgd_settings(bench: Bench, *, all_heads: bool, weighted: bool) -> dict[str, Any]:
    """Arguments of `fit_heads` for one head, or for all priors and seeds."""
    size = bench.size
    priors = np.repeat(np.geomspace(0.01, 0.5, size.priors), size.seeds) if all_heads else np.array([PRIOR])
    seeds = np.tile(np.arange(size.seeds), size.priors) if all_heads else np.array([0])
    settings: dict[str, Any] = {"prior": priors, "seed": seeds, "risk": PURisk("imbnnpu"), "solver": "sgd"}
    if weighted:
        weights = bench.weights_of_rows
        settings |= {"weights": weights, "column": np.arange(len(priors)) % weights.shape[1]}
    return settings


def sgd_fit(bench: Bench, settings: dict[str, Any], epochs: int, device: str | None = None) -> FittedHeads:
    protocol = SGDSettings(epochs=epochs, min_steps=0)
    return fit_heads(bench.X, bench.s, sgd_settings=protocol, device=device or str(bench.device), **settings)


def sgd(bench: Bench, *, all_heads: bool) -> list[Figure]:
    """The authors' protocol: the whole, its set-up and its steps, and the same with row weights."""
    epochs, heads = bench.size.epochs, bench.size.priors * bench.size.seeds if all_heads else 1
    name = f"sgd, {MANY.format(heads) if all_heads else ONE}, {epochs} epochs"
    plain, weighted = (sgd_settings(bench, all_heads=all_heads, weighted=weighted) for weighted in (False, True))
    whole = timed(bench, lambda: sgd_fit(bench, plain, epochs))
    with_weights = timed(bench, lambda: sgd_fit(bench, weighted, epochs))
    floor = limits(bench).heads(bench, passes=epochs, heads=heads)
    return [
        *whole.figures(name, target=ALL_HEADS if all_heads else ONE_HEAD, limit=floor),
        *_parts(bench, name, plain, whole),
        *with_weights.figures(f"{name}, with row weights", limit=floor),
        Figure(f"{name}: with row weights, ratio", (with_weights.seconds / whole.seconds,), "", target=WEIGHTED),
        *_parts(bench, f"{name}, with row weights", weighted, with_weights),
    ]


def _parts(bench: Bench, name: str, settings: dict[str, Any], whole: Timing) -> list[Figure]:
    """Set-up and steps apart: the line through the seconds of a few and of all epochs."""
    epochs = bench.size.epochs
    few = max(1, epochs // 5)
    short = timed(bench, lambda: sgd_fit(bench, settings, few))
    steps = (whole.seconds - short.seconds) * epochs / (epochs - few)
    batches = -(-bench.size.rows // SGDSettings().batch_size)
    note = f"{epochs * batches:,} steps, {1e6 * steps / epochs / batches:.1f} µs each"
    return [Figure(f"{name}: set-up", (whole.seconds - steps,)), Figure(f"{name}: steps", (steps,), note=note)]


def plain_loop(bench: Bench) -> list[Figure]:
    """One head with autograd on the same device, over a fifth of the epochs."""
    rows, labels = torch.from_numpy(bench.X).float().to(bench.device), torch.from_numpy(bench.s).to(bench.device)
    epochs = bench.size.epochs
    few = max(1, epochs // 5)
    took = timed(bench, lambda: slices_loop(rows, labels, PRIOR, few), repeats=1)
    seconds = tuple(epochs / few * value for value in took.warm)
    name, note = f"plain autograd loop, one head, {epochs} epochs", f"{few} epochs measured"
    return [Figure(name, seconds, note=note), Figure(f"{name}: first call", (epochs / few * took.cold,), note=note)]


# --- batch -----------------------------------------------------------------------------------------


def batch(bench: Bench, *, heads: int) -> list[Figure]:
    """Full batches to convergence: the whole, and set-up and iterations apart."""
    name = f"batch, {MANY.format(heads) if heads > 1 else ONE}"
    settings: dict[str, Any] = {"penalty": PENALTY, "seed": np.arange(heads)}
    whole = timed(bench, lambda: fit_heads(bench.X, bench.s, device=str(bench.device), **settings))
    set_up = timed(bench, lambda: _design(bench))
    design = _design(bench)
    fitted = fit_heads(design, **settings)
    iterations = timed(bench, lambda: fit_heads(design, **settings))
    floor = limits(bench).heads(bench, passes=fitted.passes, heads=heads)
    return [
        *whole.figures(name, target=MANY_HEADS if heads == bench.size.heads else None, limit=floor),
        Figure(f"{name}: set-up, moments and rows on the device", set_up.warm),
        Figure(f"{name}: iterations, rows prepared", iterations.warm, note=f"{fitted.passes} passes over X"),
    ]


def _design(bench: Bench) -> DesignMatrix:
    design = DesignMatrix(bench.X, bench.s, None, bench.device)
    design.margins(_no_heads(bench))  # rows go to the device when they are first read
    return design


def _no_heads(bench: Bench) -> FittedHeads:
    zeros = np.zeros(1, np.float32)
    coef = np.zeros((1, bench.size.dim), np.float32)
    return FittedHeads(coef=coef, intercept=zeros, risk=zeros, clamped=zeros, residual=zeros, passes=0)


# --- whole fits and sweeps -------------------------------------------------------------------------


def whole_fit(bench: Bench) -> list[Figure]:
    """`train_pu` with its defaults, and the linear head alone."""
    from pucache.training.train_on_cache import train_pu

    cache = bench.cache()

    def fit(**settings: Any) -> None:
        for path in bench.work.glob("planted.h5.*"):
            path.unlink()  # the graph of neighbours that the last fit kept
        train_pu(cache, bench.s, device=str(bench.device), **settings)

    figures = timed(bench, fit).figures("train_pu, defaults", target=WHOLE, note="penalty, prior, calibration, graph")
    return figures + timed(bench, partial(fit, method="linear")).figures("train_pu, method linear")


def sweep(bench: Bench) -> list[Figure]:
    """Cross-fitted heads at 32 priors and 5 seeds."""
    from pucache.training.labelled_cache import LabelledCache
    from pucache.training.prior_sweep import sweep_on
    from pucache.training.sklearn_classifier import PULinearClassifier

    data = LabelledCache.of(bench.cache(), bench.s)
    priors, seeds = np.geomspace(0.01, 0.5, max(1, bench.size.priors // 2)), range(bench.size.seeds)
    figures = []
    for loss in ("imbupu", "imbnnpu"):
        classifier = PULinearClassifier(loss=loss, penalty=PENALTY, device=str(bench.device))
        took = timed(bench, lambda: sweep_on(data, classifier, priors=priors, seeds=seeds), repeats=1)  # noqa: B023
        figures += took.figures(f"sweep, {loss}, {len(priors)} priors x {len(seeds)} seeds, 5 folds each")
    return figures


# --- agreement with the CPU ------------------------------------------------------------------------


def agreement(bench: Bench, *, of: str, fit: Callable[[Bench, str], np.ndarray]) -> list[Figure]:
    """Root mean square of the difference between margins of the device and of the CPU, over their standard deviation.

    Beside it the areas under the ROC curves of both.
    """
    here, there = fit(bench, str(bench.device)), fit(bench, "cpu")  # (n, K)
    difference = np.sqrt(np.square(here - there).mean()) / max(there.std(), 1e-12)
    areas = [float(np.mean([area(column, bench.y) for column in margins.T])) for margins in (here, there)]
    return [
        Figure(f"{of}: difference from the CPU", (float(difference),), "sd"),
        Figure(f"{of}: AUC of the device", (areas[0],), ""),
        Figure(f"{of}: AUC of the CPU", (areas[1],), ""),
    ]


def area(margins: np.ndarray, y: np.ndarray) -> float:
    """Area under the ROC curve."""
    from scipy.stats import rankdata

    positive = int(y.sum())
    ranks = rankdata(margins)[y].sum()
    return float((ranks - positive * (positive + 1) / 2) / (positive * (len(y) - positive)))


def sgd_margins(bench: Bench, device: str, *, all_heads: bool, weighted: bool) -> np.ndarray:
    settings = sgd_settings(bench, all_heads=all_heads, weighted=weighted)
    if device == "cpu":
        settings |= {name: settings[name][:COMPARED] for name in ("prior", "seed", "column") if name in settings}
    return sgd_fit(bench, settings, bench.size.epochs, device).margins(bench.X)[:, :COMPARED]


def batch_margins(bench: Bench, device: str, *, heads: int) -> np.ndarray:
    seeds = np.arange(min(heads, COMPARED) if device == "cpu" else heads)
    return fit_heads(bench.X, bench.s, penalty=PENALTY, seed=seeds, device=device).margins(bench.X)[:, :COMPARED]


def whole_margins(bench: Bench, device: str) -> np.ndarray:
    from pucache.training.train_on_cache import train_pu

    cache = bench.cache(f"planted-{device.replace(':', '-')}")  # each device makes its own graph of neighbours
    return train_pu(cache, bench.s, device=device).margins(bench.X)[:, None]


def sweep_agreement(bench: Bench) -> list[Figure]:
    """Greatest differences over the rows of a sweep."""
    from pucache.training.labelled_cache import LabelledCache
    from pucache.training.prior_sweep import sweep_on
    from pucache.training.sklearn_classifier import PULinearClassifier

    data = LabelledCache.of(bench.cache(), bench.s)
    on = [PULinearClassifier(loss="imbnnpu", penalty=PENALTY, device=device) for device in (str(bench.device), "cpu")]
    here, there = (sweep_on(data, classifier, priors=(0.03, 0.1), seeds=(0,)).rows for classifier in on)
    figures = []
    for name, what in (("risk", "risk"), ("share_predicted_positive", "share above the threshold")):
        differences = [abs(a[name] - b[name]) for a, b in zip(here, there, strict=True)]
        figures.append(Figure(f"sweep: greatest difference from the CPU, {what}", (max(differences),), ""))
    return figures


def _agrees(name: str, fit: Callable[..., np.ndarray], minutes: float = 1, **settings: Any) -> Slice:
    return Slice(f"agreement: {name}", partial(agreement, of=name, fit=partial(fit, **settings)), minutes)


def _batch_of_all(bench: Bench) -> list[Figure]:
    return batch(bench, heads=bench.size.heads)


def _margins_of_all(bench: Bench, device: str) -> np.ndarray:
    return batch_margins(bench, device, heads=bench.size.heads)


SLICES = (
    LIMITS,
    Slice("sgd, one head", partial(sgd, all_heads=False)),
    Slice("sgd, priors x seeds", partial(sgd, all_heads=True), seeds=tuple(range(5))),
    Slice("train_pu", whole_fit),
    Slice("batch, one head", partial(batch, heads=1)),
    Slice("batch, many heads", _batch_of_all),
    _agrees("sgd, one head", sgd_margins, all_heads=False, weighted=False),
    _agrees("sgd, one head, with row weights", sgd_margins, all_heads=False, weighted=True),
    _agrees("sgd, priors x seeds", sgd_margins, all_heads=True, weighted=False),
    _agrees("sgd, priors x seeds, with row weights", sgd_margins, all_heads=True, weighted=True),
    _agrees("batch, one head", batch_margins, heads=1),
    _agrees("batch, many heads", _margins_of_all),
    _agrees("train_pu", whole_margins, 2),
    Slice("plain autograd loop", plain_loop),
    Slice("sweep", sweep, seeds=tuple(range(5))),
    Slice("agreement: sweep", sweep_agreement),
)
