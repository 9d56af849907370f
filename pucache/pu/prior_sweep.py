"""Retrains at each of many priors and seeds, all at once, and says what the prior changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ..heads.design_matrix import Moments
from ..heads.fit import Protocol, fit_heads
from ..heads.risks import PURisk
from ..progress import Progress, Silent
from ..storage.atomic import replacing
from ..storage.tables import table_writer
from .calibration import fit_tilt
from .cross_fitting import CrossFitter
from .data import PUData
from .folds import deal
from .metrics import from_pu, with_labels
from .thresholds import choose_threshold

PRIORS = tuple(float(f"{prior:.3g}") for prior in np.geomspace(0.01, 0.5, 12))
_AT_ONCE = 1 << 26  # margins held at once
_TOLERANCE = 2e-3  # of heads that are only compared
_FLAT = 0.005  # range of PAUC that is called flat
_TRUE = ("accuracy", "precision", "recall", "f1", "auc", "average_precision")


@dataclass(frozen=True)
class Sweep:
    """What came of each prior and seed.

    Attributes
    ----------
    rows : list of dict
        prior, seed, risk (reported, on the rows trained on), held_out_risk (nnPU), pauc, auc, f1,
        precision, recall, share_predicted_positive, threshold, clamped; with truth also true_accuracy,
        true_precision, true_recall, true_f1, true_auc and true_average_precision, among the
        unlabelled whose class is known. All of held-out margins, at the threshold of greatest
        expected F1.
    penalty : float
    verdict : str
        In words: whether the sweep is flat, and why.
    """

    rows: list[dict[str, Any]]
    penalty: float
    verdict: str


def sweep(
    data: PUData,
    *,
    priors: Sequence[float] = PRIORS,
    seeds: Sequence[int] = (0, 1, 2),
    truth: np.ndarray | None = None,
    loss: str = "imbupu",
    surrogate: str | None = None,
    target_prior: float = 0.5,
    penalty: float | str = "auto",
    solver: str = "batch",
    protocol: Protocol | None = None,
    n_folds: int = 5,
    device: str = "auto",
    progress: Progress | None = None,
) -> Sweep:
    """Train cross-fitted heads at every prior and seed.

    Parameters
    ----------
    data : PUData
    priors : sequence of float, in (0, 1)
        Those that a review has shown to be too small or too great are left out.
    seeds : sequence of int
        Of folds and initial coefficients.
    truth : ndarray of int8, (n,), optional
        1, 0, or -1 where the class is not known.
    loss, surrogate, target_prior, penalty, solver, protocol, n_folds, device
        Of `pucache.PULinearClassifier`; ``auto`` chooses one penalty, at the first prior and seed.
    progress : Progress, optional

    Returns
    -------
    Sweep

    Raises
    ------
    ValueError
        A parameter outside its domain.
    """
    if len(priors) == 0 or len(seeds) == 0 or not all(0 < prior < 1 for prior in priors):
        raise ValueError(f"priors must lie strictly between 0 and 1, and there must be seeds; got {list(priors)}")
    low, high = data.known.bounds
    left = [prior for prior in priors if low <= prior <= high]
    if not left:
        data.known.check(priors[0])
    if penalty != "auto" and not 0 <= float(penalty) < np.inf:
        raise ValueError(f"penalty must be 'auto' or a finite number >= 0, got {penalty!r}")
    risk = PURisk(loss, surrogate, target_prior=target_prior)
    training: dict[str, Any] = {
        "risk": risk,
        "moments": Moments.of(data.cache.X),
        "solver": solver,
        "protocol": protocol,
        "device": device,
    }
    runs = _Runs(data, [deal(data.known.trained, n_folds, seed, data.group) for seed in seeds], list(seeds), training)
    with progress or Silent() as shown:
        shown.start(len(left) * len(seeds), "training")
        chosen = runs.penalty(left[0]) if penalty == "auto" else float(penalty)
        rows = []
        for prior, seed, margins, figures in runs.at(left, chosen):
            rows.append({"prior": prior, "seed": seed, **figures, **_figures(margins, data.s, prior, truth)})
            shown.advance(1)
    out = (
        f" Left out, as a review has shown them to be wrong: {len(priors) - len(left)} priors."
        if len(left) < len(priors)
        else ""
    )
    return Sweep(rows, chosen, _verdict(rows, risk) + out)


class _Runs:
    """Cross-fitted heads for every seed, which has folds of its own."""

    def __init__(self, data: PUData, folds: list[np.ndarray], seeds: list[int], training: dict[str, Any]):
        self._X, self._known, self._folds, self._seeds, self._training = (
            data.cache.X,
            data.known,
            folds,
            seeds,
            training,
        )
        self._counts = [int(fold.max()) + 1 for fold in folds]
        self._first = np.cumsum([0, *self._counts])  # column of each seed's first fold
        self._weights = np.concatenate(
            [
                (fold[:, None] != np.arange(count)) | (count == 1)
                for fold, count in zip(folds, self._counts, strict=True)
            ],
            axis=1,
        )  # (n, C)
        if data.known.training_weights is not None:
            self._weights = self._weights * data.known.training_weights[:, None]

    def penalty(self, prior: float) -> float:
        """Choose the penalty as `train-pu` does; none for ``sgd``."""
        if self._training["solver"] == "sgd":
            return 0.0
        fitter = CrossFitter(self._X, self._known, self._folds[0], prior=prior, seed=self._seeds[0], **self._training)
        return fitter.choose().penalty

    def at(self, priors: list[float], penalty: float) -> Iterator[tuple[float, int, np.ndarray, dict[str, float]]]:
        """Yield prior, seed, held-out margins and what training tells, for all priors and seeds."""
        if not self._training["risk"].needs_prior:  # one training serves all priors
            trained = list(self._together(priors[:1], penalty))
            for prior, (_, seed, margins, figures) in product(priors, trained):
                yield prior, seed, margins, figures
            return
        step = max(1, _AT_ONCE // (len(self._known.s) * len(self._seeds)))
        for begin in range(0, len(priors), step):
            yield from self._together(priors[begin : begin + step], penalty)

    def _together(
        self, priors: list[float], penalty: float
    ) -> Iterator[tuple[float, int, np.ndarray, dict[str, float]]]:
        C, columns = self._weights.shape[1], np.arange(self._weights.shape[1])
        heads = fit_heads(
            self._X,
            self._known.trained,
            weights=self._weights,
            column=np.tile(columns, len(priors)),
            prior=np.repeat([self._known.training_prior(prior) for prior in priors], C),
            seed=np.tile(np.repeat(self._seeds, self._counts), len(priors)),
            penalty=penalty,
            tolerance=_TOLERANCE,
            **self._training,
        )
        asked = np.stack([fold + first for fold, first in zip(self._folds, self._first, strict=False)], axis=1)
        margins = heads.margins_by(
            self._X, (asked[:, None, :] + C * np.arange(len(priors))[:, None]).reshape(len(asked), -1)
        )
        for number, (at, seed) in enumerate(product(range(len(priors)), range(len(self._seeds)))):
            own = slice(at * C + self._first[seed], at * C + self._first[seed + 1])
            figures = {"risk": float(heads.risk[own].mean()), "clamped": float(heads.clamped[own].mean())}
            yield priors[at], self._seeds[seed], margins[:, number], figures


def _figures(margins: np.ndarray, s: np.ndarray, prior: float, truth: np.ndarray | None) -> dict[str, Any]:
    tilt = fit_tilt(margins, s, prior=prior)
    threshold = choose_threshold(tilt, margins[s == 0], "f1", prior)
    pu = from_pu(margins, s, prior, threshold)
    figures: dict[str, Any] = {"held_out_risk": pu.pop("nnpu_risk"), "threshold": threshold, **pu}
    if truth is not None:
        known = (s == 0) & (truth >= 0)
        real = with_labels(truth[known], margins[known], (margins[known] > threshold).astype(int))
        figures |= {f"true_{name}": real[name] for name in _TRUE}
    return figures


def _verdict(rows: list[dict[str, Any]], risk: PURisk) -> str:
    """Say whether the sweep is flat and why."""
    if not risk.needs_prior:
        why = (
            "the sigmoid loss at target prior 0.5 weighs both parts alike at every prior"
            if risk.name == "imbupu"
            else f"{risk.name} has no prior in it"
        )
        return (
            f"flat: {why}, so the heads are the same and so is their ranking. Only posterior, threshold, precision "
            "and F1 depend on the prior; find it with estimate-prior, not with a sweep."
        )
    pauc = {prior: np.mean([row["pauc"] for row in rows if row["prior"] == prior]) for prior in _priors(rows)}
    best, worst = max(pauc, key=pauc.__getitem__), min(pauc, key=pauc.__getitem__)
    clamped = [prior for prior in pauc if max(row["clamped"] for row in rows if row["prior"] == prior) > 0.01]
    clamp = f"the clamp of the negative part acts from prior {min(clamped):.3g} on" if clamped else "no clamp acts"
    if pauc[best] - pauc[worst] < _FLAT:
        within = f"PAUC stays within {pauc[worst]:.4f} and {pauc[best]:.4f}"
        if clamped:
            return (
                f"flat: {within}, although {clamp}, for PAUC sees little of what that does to the top of the ranking. "
                "It does not tell the prior; see estimate-prior."
            )
        return f"flat: {within}, as {clamp}; the ranking does not tell the prior. See estimate-prior."
    return (
        f"not flat: PAUC is {pauc[best]:.4f} at prior {best:.3g} and {pauc[worst]:.4f} at {worst:.3g}; {clamp}. "
        "A high PAUC speaks for a training, not for the prior it was told; see estimate-prior."
    )


def _priors(rows: list[dict[str, Any]]) -> list[float]:
    return sorted({row["prior"] for row in rows})


def write_table(result: Sweep, path: str | Path) -> None:
    """Write the rows as CSV.

    Parameters
    ----------
    result : Sweep
    path : path or str
    """
    with replacing(Path(path)) as temporary, temporary.open("w", newline="", encoding="utf-8") as stream:
        write = table_writer(stream)
        write(list(result.rows[0]))
        for row in result.rows:
            write([f"{value:.6g}" if isinstance(value, float) else value for value in row.values()])


def plot(result: Sweep, path: str | Path) -> None:
    """Draw ranking, operating point and training over the prior; a line is the mean over seeds, a dot a seed.

    Parameters
    ----------
    result : Sweep
    path : path or str
        Of the PNG.
    """
    from matplotlib.figure import Figure  # only here, as it takes a third of a second

    sheet = Figure(figsize=(11, 4.8), layout="constrained")
    ranking = {"pauc": "PAUC", "auc": "AUC, estimated", "true_auc": "AUC, true", "true_average_precision": "AP, true"}
    point = {
        "f1": "F1, estimated",
        "true_f1": "F1, true",
        "share_predicted_positive": "called positive",
        "prior": "the prior told",
    }
    training = {"held_out_risk": "nnPU risk, held out", "clamped": "clamp's activity"}
    panels = (("Ranking", ranking), ("Operating point (greatest expected F1)", point), ("Training", training))
    for axes, (title, lines) in zip(sheet.subplots(1, 3), panels, strict=True):
        for name, label in lines.items():
            if name in result.rows[0]:
                _line(axes, result.rows, name, label)
        axes.set(title=title, xscale="log", xlabel="prior told to the training")
        axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
        axes.grid(alpha=0.3)
    with replacing(Path(path)) as temporary:
        sheet.savefig(temporary, format="png", dpi=130)


def _line(axes: Any, rows: list[dict[str, Any]], name: str, label: str) -> None:
    priors = _priors(rows)
    means = [np.mean([row[name] for row in rows if row["prior"] == prior]) for prior in priors]
    (line,) = axes.plot(priors, means, label=label, linestyle=":" if name == "prior" else "-")
    if name != "prior":
        axes.plot([row["prior"] for row in rows], [row[name] for row in rows], ".", ms=3, color=line.get_color())
