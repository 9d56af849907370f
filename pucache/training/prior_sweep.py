"""Sweep over priors: heads retrained at many priors and seeds at once, and what the prior changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

from ..cache.embedding_cache import EmbeddingCache, open_cache
from ..estimates.calibration import fit_tilt
from ..estimates.intervals import PriorRange, stated_estimates
from ..estimates.label_requirements import LabelCount
from ..estimates.metrics import with_labels
from ..estimates.thresholds import choose_threshold
from ..heads.linear_heads import FittedHeads
from ..heads.minibatch import SGDSettings
from ..heads.objective import WIDTH
from ..heads.risks import PURisk
from ..heads.solve import fit_heads
from ..labels.folds import assign_folds
from ..labels.label_files import read_truth
from ..labels.labels import TWIN_COSINE, Labels
from ..labels.sample import UnlabelledSample
from ..progress import Progress, Silent
from .cross_fitting import CrossFitter
from .labelled_cache import PUData

PRIORS = tuple(float(f"{prior:.3g}") for prior in np.geomspace(0.01, 0.5, 12))
_MARGINS_AT_ONCE = 1 << 26  # held-out margins in memory at once
_TOLERANCE = 2e-3  # enough for heads that are only compared
_IDLE = 10 * WIDTH  # negative part of a risk above which the smoothed clamp does not act
_FLAT_RANGE = 0.005  # range of PAUC below which a sweep is called flat
_TRUE_FIGURES = ("accuracy", "precision", "recall", "f1", "auc", "average_precision")


@dataclass(frozen=True)
class SweepRow:
    """Figures of one prior and seed, from held-out margins at the threshold of greatest expected F1.

    Attributes
    ----------
    prior : float
    seed : int
    risk : float
        Value of the training risk, on the rows trained on.
    clamped : float
        Share of the iterations in which the clamp of the negative part acted.
    threshold : float
    share_predicted_positive : float
        Share of the unlabelled rows above the threshold.
    held_out_risk : float or None
        nnPU risk.
    pauc, auc, recall, precision, f1, false_positive_rate, accuracy, upu_risk : float or None
    collapsed : str or None
        See `pucache.estimates.metrics.from_pu`; None where the labels are too few
        (`pucache.estimates.label_requirements`).
    pauc_low, pauc_high : float or None
    auc_low, auc_high : float or None
    recall_low, recall_high : float or None
    precision_low, precision_high : float or None
    f1_low, f1_high : float or None
    false_positive_rate_low, false_positive_rate_high : float or None
    accuracy_low, accuracy_high : float or None
        90 % intervals at this prior, see `pucache.estimates.intervals`; they do not cover a wrong prior.
    true_accuracy, true_precision, true_recall, true_f1, true_auc, true_average_precision : float or None
        Among the unlabelled rows whose true class is known; None without truth.
    """

    prior: float
    seed: int
    risk: float
    clamped: float
    threshold: float
    share_predicted_positive: float
    held_out_risk: float | None = None
    pauc: float | None = None
    auc: float | None = None
    recall: float | None = None
    precision: float | None = None
    f1: float | None = None
    false_positive_rate: float | None = None
    accuracy: float | None = None
    upu_risk: float | None = None
    collapsed: str | None = None
    pauc_low: float | None = None
    pauc_high: float | None = None
    auc_low: float | None = None
    auc_high: float | None = None
    recall_low: float | None = None
    recall_high: float | None = None
    precision_low: float | None = None
    precision_high: float | None = None
    f1_low: float | None = None
    f1_high: float | None = None
    false_positive_rate_low: float | None = None
    false_positive_rate_high: float | None = None
    accuracy_low: float | None = None
    accuracy_high: float | None = None
    true_accuracy: float | None = None
    true_precision: float | None = None
    true_recall: float | None = None
    true_f1: float | None = None
    true_auc: float | None = None
    true_average_precision: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Figures by name, for JSON and CSV; without the true ones where there is no truth, and those not estimated."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Sweep:
    """Result of a sweep over priors.

    Attributes
    ----------
    rows : list of SweepRow
        By prior, then by seed.
    penalty : float
        L2 penalty of all heads.
    verdict : str
        One sentence or two: whether the ranking depends on the prior, and why.
    note : str
        What is not estimated because the labels are too few; "" where nothing is left out.
    sample : UnlabelledSample or None
        Of the unlabelled rows; None where all were taken.
    """

    rows: list[SweepRow]
    penalty: float
    verdict: str
    note: str = ""
    sample: UnlabelledSample | None = None


@dataclass(frozen=True)
class SweepSettings:
    """Parameters of `pucache.PULinearClassifier` that a sweep trains with.

    Parameters
    ----------
    loss, surrogate, target_prior
        As for `pucache.PULinearClassifier`.
    penalty : float or "auto"
        ``auto`` chooses one penalty, at the first prior and seed.
    solver, sgd_settings, n_folds, device
        As for `pucache.PULinearClassifier`.
    """

    loss: str = "imbupu"
    surrogate: str | None = None
    target_prior: float = 0.5
    penalty: float | str = "auto"
    solver: str = "batch"
    sgd_settings: SGDSettings | None = None
    n_folds: int = 5
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.penalty != "auto" and not 0 <= float(self.penalty) < np.inf:
            raise ValueError(f"penalty must be 'auto' or a finite number >= 0, got {self.penalty!r}")

    @property
    def risk(self) -> PURisk:
        """The risk to minimise."""
        return PURisk(self.loss, self.surrogate, target_prior=self.target_prior)


def sweep_priors(
    cache: str | Path | Sequence[str | Path] | EmbeddingCache,
    positives: str | Path | np.ndarray | Labels,
    *,
    negatives: str | Path | None = None,
    twins: float | None = TWIN_COSINE,
    all_rows: bool = False,
    truth: str | Path | np.ndarray | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Sweep:
    """Train at many priors and seeds on a cache.

    Parameters
    ----------
    cache, positives, negatives, twins, all_rows
        As for `pucache.train_pu`; the first seed is that of the sample of unlabelled rows.
    truth : path, str or ndarray of int8 (n,), optional
        True classes: a file as for `pucache.labels.label_files.read_truth`, or 1, 0, and -1 for unknown.
    progress : Progress, optional
    **options
        Options of `sweep_on`: priors, seeds, and parameters of `SweepSettings`.

    Returns
    -------
    Sweep

    Raises
    ------
    LabelError, CacheError
        As `PUData.of` and `read_truth`.
    ValueError
        A parameter outside its domain.
    """
    seed = next(iter(options.get("seeds", (0,))), 0)
    data = PUData.of(open_cache(cache), positives, twins, negatives=negatives, all_rows=all_rows, seed=seed)
    y = read_truth(truth, data.cache.keys) if isinstance(truth, str | Path) else truth
    return sweep_on(data, truth=None if y is None else data.take(y), progress=progress, **options)


def sweep_on(
    data: PUData,
    *,
    priors: Sequence[float] = PRIORS,
    seeds: Sequence[int] = (0, 1, 2),
    truth: np.ndarray | None = None,
    progress: Progress | None = None,
    **parameters: Any,
) -> Sweep:
    """Train cross-fitted heads at every prior and seed.

    Parameters
    ----------
    data : PUData
    priors : sequence of float, in (0, 1)
        Priors that a review rules out are left out.
    seeds : sequence of int
        Of folds and initial coefficients.
    truth : ndarray of int8, (n,), optional
        1, 0, or -1 where the class is not known.
    progress : Progress, optional
    **parameters
        Fields of `SweepSettings`.

    Returns
    -------
    Sweep

    Raises
    ------
    ValueError
        A parameter outside its domain, or no prior that the review leaves possible.
    """
    if len(priors) == 0 or len(seeds) == 0 or not all(0 < prior < 1 for prior in priors):
        raise ValueError(f"priors must lie strictly between 0 and 1, and there must be seeds; got {list(priors)}")
    low, high = data.training_labels.bounds
    possible = [prior for prior in priors if low <= prior <= high]
    if not possible:
        data.training_labels.check(priors[0])
    settings = SweepSettings(**parameters)
    trainer = _SweepTrainer(data, list(seeds), settings)
    count = LabelCount.of(data.s, groups=data.group)
    with progress or Silent() as stages:
        stages.start(len(possible) * len(seeds), "training")
        penalty = trainer.choose_penalty(possible[0]) if settings.penalty == "auto" else float(settings.penalty)
        rows = []
        for run in trainer.runs(possible, penalty):
            rows.append(_figures(run, data.s, truth, count))
            stages.advance(1)
    rows.sort(key=lambda row: possible.index(row.prior))
    ruled_out = len(priors) - len(possible)
    note = f" Left out, as a review has shown them to be wrong: {ruled_out} priors." if ruled_out else ""
    return Sweep(rows, penalty, _verdict(rows, settings.risk) + note, count.sentence, data.sample)


@dataclass(frozen=True)
class _Run:
    """Held-out margins, float32 (n,), and training figures of one prior and seed."""

    prior: float
    seed: int
    margins: np.ndarray
    risk: float
    clamped: float


class _SweepTrainer:
    """Cross-fitted heads for all priors and seeds; every seed has its own folds."""

    def __init__(self, data: PUData, seeds: list[int], settings: SweepSettings):
        self._design, self._labels = data.design_matrix(settings.device), data.training_labels
        self._seeds, self._risk = seeds, settings.risk
        self._training: dict[str, Any] = {
            "risk": self._risk,
            "solver": settings.solver,
            "sgd_settings": settings.sgd_settings,
        }
        labels = self._labels
        self._folds = [assign_folds(labels.training_s, settings.n_folds, seed, data.group) for seed in seeds]
        self._counts = [int(fold.max()) + 1 for fold in self._folds]
        self._starts = np.cumsum([0, *self._counts])  # column of each seed's first fold
        self._weights = np.concatenate(
            [
                (fold[:, None] != np.arange(count)) | (count == 1)
                for fold, count in zip(self._folds, self._counts, strict=True)
            ],
            axis=1,
        )  # (n, C): column c is the weight of each row for head c of a prior
        if labels.training_weights is not None:
            self._weights = self._weights * labels.training_weights[:, None]

    def choose_penalty(self, prior: float) -> float:
        """Choose the penalty at the first seed as `train_pu` does; 0 for ``sgd``."""
        if self._training["solver"] == "sgd":
            return 0.0
        fitter = CrossFitter(
            self._design, self._labels, self._folds[0], prior=prior, seed=self._seeds[0], **self._training
        )
        return fitter.choose_penalty().penalty

    def runs(self, priors: list[float], penalty: float) -> Iterator[_Run]:
        """Train at all priors and seeds."""
        if not self._risk.needs_prior:  # the same heads serve all priors
            runs = list(self._runs(priors[:1], self._fit(priors[:1], penalty)))
            for prior, run in product(priors, runs):
                yield _Run(prior, run.seed, run.margins, run.risk, run.clamped)
            return
        step = max(1, _MARGINS_AT_ONCE // (len(self._labels.s) * len(self._seeds)))
        first, alike = None, np.zeros(len(priors), bool)
        by_batch = self._training["solver"] == "batch"
        if by_batch and self._risk.needs_prior_for_clamp_alone and len(priors) > 1:
            first = self._fit([min(priors)], penalty)
            alike = self._leave_the_clamp_idle(first, np.array(priors))
        for some, start in ((np.flatnonzero(alike), first), (np.flatnonzero(~alike), None)):
            for begin in range(0, len(some), step):
                part = [priors[number] for number in some[begin : begin + step]]
                yield from self._runs(part, self._fit(part, penalty, start=start))

    def _leave_the_clamp_idle(self, heads: FittedHeads, priors: np.ndarray) -> np.ndarray:
        """Priors at which the clamp acts on none of the C heads of one prior, bool: all of them have the same heads."""
        sigmoid, positive = expit(self._design.margins(heads)), self._design.is_positive[:, None]  # (n, C), (n, 1)
        on_p, on_u = (np.average(sigmoid, axis=0, weights=self._weights * side) for side in (positive, ~positive))
        negative_part = (on_u - priors[:, None] * on_p) / (2 * (1 - priors[:, None]))  # (priors, C)
        return np.asarray((negative_part > _IDLE - self._risk.beta).all(1))

    def _fit(self, priors: list[float], penalty: float, start: FittedHeads | None = None) -> FittedHeads:
        """Train the heads of some priors together: C heads per prior, one for each fold of each seed."""
        C = self._weights.shape[1]
        if start is not None:
            start = start.take(np.tile(np.arange(C), len(priors)))
        return fit_heads(
            self._design,
            weights=self._weights,
            column=np.tile(np.arange(C), len(priors)),
            prior=np.repeat([self._labels.training_prior(prior) for prior in priors], C),
            seed=np.tile(np.repeat(self._seeds, self._counts), len(priors)),
            penalty=penalty,
            tolerance=_TOLERANCE,
            start=start,
            **self._training,
        )

    def _runs(self, priors: list[float], heads: FittedHeads) -> Iterator[_Run]:
        """Held-out margins of some priors and all seeds."""
        C = self._weights.shape[1]
        # head that did not see the row, for each seed: (n, seeds); then for each prior and seed: (n, priors * seeds)
        head_of_seed = np.stack([fold + start for fold, start in zip(self._folds, self._starts, strict=False)], axis=1)
        head = head_of_seed[:, None, :] + C * np.arange(len(priors))[:, None]
        margins = self._design.margins(heads, head.reshape(len(head), -1))
        for column, (i, j) in enumerate(product(range(len(priors)), range(len(self._seeds)))):
            own = slice(i * C + self._starts[j], i * C + self._starts[j + 1])
            risk, clamped = float(heads.risk[own].mean()), float(heads.clamped[own].mean())
            yield _Run(priors[i], self._seeds[j], margins[:, column], risk, clamped)


def _figures(run: _Run, s: np.ndarray, truth: np.ndarray | None, count: LabelCount) -> SweepRow:
    margins, prior = run.margins, run.prior
    tilt = fit_tilt(margins, s, prior=prior)
    threshold = choose_threshold(tilt, margins[s == 0], "f1", prior)
    assumed = PriorRange(prior, prior, prior)
    estimates: dict[str, Any] = stated_estimates(
        margins, s, labels=count, prior=prior, prior_range=assumed, threshold=threshold
    )
    del estimates["labels"]
    true: dict[str, Any] = {}
    if truth is not None:
        rows = (s == 0) & (truth >= 0)
        figures = with_labels(truth[rows], margins[rows], (margins[rows] > threshold).astype(int))
        true = {f"true_{name}": figures[name] for name in _TRUE_FIGURES}
    return SweepRow(
        prior=prior,
        seed=run.seed,
        risk=run.risk,
        clamped=run.clamped,
        held_out_risk=estimates.pop("nnpu_risk"),
        threshold=threshold,
        **estimates,
        **true,
    )


def _verdict(rows: list[SweepRow], risk: PURisk) -> str:
    """Say whether the ranking depends on the prior, and why."""
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
    if rows[0].pauc is None:
        return "the heads depend on the prior; single figures, and so more labels, are needed to say how."
    pauc = {prior: np.mean([row.pauc for row in rows if row.prior == prior]) for prior in _priors(rows)}
    best, worst = max(pauc, key=pauc.__getitem__), min(pauc, key=pauc.__getitem__)
    clamped = [prior for prior in pauc if max(row.clamped for row in rows if row.prior == prior) > 0.01]
    clamp = f"the clamp of the negative part acts from prior {min(clamped):.3g} on" if clamped else "no clamp acts"
    if pauc[best] - pauc[worst] < _FLAT_RANGE:
        within = f"PAUC stays within {pauc[worst]:.4f} and {pauc[best]:.4f}"
        if clamped:
            return (
                f"flat: {within}, although {clamp}: PAUC hardly depends on the top of the ranking, where that shows. "
                "It says nothing about the prior; see estimate-prior."
            )
        return f"flat: {within}, as {clamp}; the ranking says nothing about the prior. See estimate-prior."
    return (
        f"not flat: PAUC is {pauc[best]:.4f} at prior {best:.3g} and {pauc[worst]:.4f} at {worst:.3g}; {clamp}. "
        "A high PAUC says that a training ranks well, not that its prior is right; see estimate-prior."
    )


def _priors(rows: list[SweepRow]) -> list[float]:
    return sorted({row.prior for row in rows})
