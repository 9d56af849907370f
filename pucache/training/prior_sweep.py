"""Sweep over priors: heads trained at many priors and seeds at once, and what the prior changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ..cache.embedding_cache import CacheLike, open_cache
from ..estimates.calibration import LEAST, MOST, fit_tilt
from ..estimates.figures import Figures
from ..estimates.label_requirements import LabelCount
from ..estimates.thresholds import choose_threshold
from ..heads.risks import PURisk
from ..labels.folds import assign_folds
from ..labels.labels import TWIN_COSINE, Labels, PULabels
from ..labels.read_labels import open_labels
from ..labels.row_values import RowValues
from ..labels.sample import UnlabelledSample
from ..progress import Progress, Silent
from ..seeds import Seed, drawn_seed
from ..storage.atomic import replacing
from ..storage.file_kinds import MARK, TABLE
from ..storage.outputs import check_output
from ..storage.table_writer import write_rows
from .cross_fitting import CrossFitter, fit_held_out
from .sklearn_classifier import PULinearClassifier
from .train_head import TrainingSettings
from .training_set import TrainingRows, TrainingSet

PRIORS = tuple(float(f"{prior:.3g}") for prior in np.geomspace(0.01, 0.5, 12))
_ROUGH = 2e-3  # tolerance that is enough for heads that are only compared
_FLAT_RANGE = 0.005  # range of PAUC below which a sweep is called flat
_FIGURES = ("pauc", "auc", "recall", "precision", "f1")
_LINES = ("pauc", "f1", "share_predicted_positive", "clamped")  # of the plot


@dataclass(frozen=True)
class Sweep:
    """Result of a sweep over priors.

    Attributes
    ----------
    rows : list of dict
        Figures of each prior and seed, by prior, then by seed; from held-out margins at the threshold of greatest
        expected F1. ``risk`` is the training risk, ``clamped`` the share of the iterations in which the clamp of the
        negative part acted, ``held_out_risk`` the nnPU risk, and the others are those of
        `pucache.estimates.metrics.from_pu`. ``_low`` and ``_high`` are the ends of 90 % intervals at this prior, which
        do not cover a wrong prior. A figure that the labels are too few for is left out.
    penalty : float
        L2 penalty of all heads.
    verdict : str
        One sentence or two: whether the ranking depends on the prior, and why.
    note : str
        What is not estimated because the labels are too few; "" where nothing is left out.
    sample : UnlabelledSample or None
        Of the unlabelled rows; None where all were taken.
    """

    rows: list[dict[str, Any]] = field(repr=False)
    penalty: float
    verdict: str
    note: str = ""
    sample: UnlabelledSample | None = None

    def means(self, name: str) -> dict[float, float]:
        """Mean of a figure over the seeds, for each prior, ascending; empty where it is not stated."""
        rows = [row for row in self.rows if name in row]
        priors = sorted({row["prior"] for row in rows})
        return {prior: float(np.mean([row[name] for row in rows if row["prior"] == prior])) for prior in priors}


def sweep_priors(
    cache: CacheLike,
    positives: str | Path | RowValues | PULabels | Labels,
    classifier: PULinearClassifier | None = None,
    *,
    twins: float | None = TWIN_COSINE,
    all_rows: bool = False,
    priors: Sequence[float] = PRIORS,
    seeds: int | Sequence[Seed] = 3,
    progress: Progress | None = None,
) -> Sweep:
    """Train cross-fitted heads at every prior and seed on a cache, in one pass.

    Parameters
    ----------
    cache, positives
        As for `pucache.train_pu`, with the labels of one list.
    classifier : PULinearClassifier, optional
        Its risk, solver, penalty, folds and device are used; ``auto`` chooses one penalty, at the first prior and seed.
    twins, all_rows
        As for `pucache.train_pu`; the first seed is that of the sample of unlabelled rows.
    priors : sequence of float, in (0, 1)
        Priors that a review rules out are left out.
    seeds : int or sequence of int
        Of folds and initial coefficients; a number N stands for 0 to N - 1.
    progress : Progress, optional

    Returns
    -------
    Sweep

    Raises
    ------
    LabelError, CacheError
        As `pucache.train_pu`.
    ValueError
        A parameter outside its domain, or no prior that the review leaves possible.
    """
    priors, seeds = np.ravel(priors).tolist(), range(seeds) if isinstance(seeds, int) else seeds
    if not (len(priors) and len(seeds) and all(0 < prior < 1 for prior in priors)):
        raise ValueError(f"priors must lie strictly between 0 and 1, and there must be seeds; got {list(priors)}")
    if outside := [prior for prior in priors if not LEAST <= prior <= MOST]:
        raise ValueError(f"priors must lie between {LEAST:g} and {MOST:g}, got {outside[0]:g}")
    opened, numbers = open_cache(cache), [drawn_seed(seed) for seed in seeds]
    classifier = classifier or PULinearClassifier()
    labels = open_labels(opened, positives)
    rows = TrainingRows.of_cache(
        opened, labels, twins=twins, all_rows=all_rows, seed=numbers[0], device=classifier.device
    )
    data = rows.labelled_by(labels.only)
    low, high = data.training.bounds
    possible = [prior for prior in priors if low <= prior <= high]
    if not possible:
        data.training.check(priors[0])
    settings = TrainingSettings.of(classifier.get_params() | {"random_state": numbers[0]})
    risk, count = settings.heads.risk, data.label_count
    trained = possible if risk.needs_prior else possible[:1]  # else the same heads serve all priors
    with progress or Silent() as stages:
        stages.start(1, "training")
        penalty, margins, trainings = _train(data, settings, trained, numbers)
        stages.advance(1)
    table = []
    for (i, prior), (j, seed) in product(enumerate(possible), enumerate(numbers)):
        run = min(i, len(trained) - 1) * len(numbers) + j
        figures = _figures(margins[:, run], data.training.s, prior, count)
        table.append({"prior": prior, "seed": seed, **trainings[run], **figures})
    sweep = Sweep(table, penalty, "", count.sentence, rows.sample)
    ruled_out = len(priors) - len(possible)
    note = f" Left out, as a review has shown them to be wrong: {ruled_out} priors." if ruled_out else ""
    return replace(sweep, verdict=_verdict(sweep, risk) + note)


def _train(
    data: TrainingSet, settings: TrainingSettings, priors: list[float], seeds: list[int]
) -> tuple[float, np.ndarray, list[dict[str, float]]]:
    """The penalty, and for each prior and seed held-out margins, (n, J * S), and figures of the training."""
    design, labels, group = data.design, data.training, data.rows.together
    folds = np.stack([assign_folds(labels.training_s, settings.n_folds, seed, group) for seed in seeds], axis=1)
    penalty, *others = settings.penalties
    if others:  # at the first seed, as `train_pu` chooses it
        penalty = CrossFitter(design, labels, folds[:, :1], priors[0], settings.heads).choose().penalty
    needed, penalties = [labels.training_prior(prior) for prior in priors], np.full(len(priors), penalty)
    heads, margins = fit_held_out(
        design, labels, folds, prior=needed, penalty=penalties, seeds=seeds, settings=settings.heads, tolerance=_ROUGH
    )
    of_seed = np.repeat(np.arange(len(seeds)), folds.max(0) + 1)  # of the C heads of a prior
    values = {"risk": heads.risk.reshape(len(priors), -1), "clamped": heads.clamped.reshape(len(priors), -1)}
    runs = product(range(len(priors)), range(len(seeds)))
    trainings = [{name: float(of[i, of_seed == j].mean()) for name, of in values.items()} for i, j in runs]
    return penalty, margins, trainings


def _figures(margins: np.ndarray, s: np.ndarray, prior: float, count: LabelCount) -> dict[str, Any]:
    """The figures that may be stated, at the threshold of greatest expected F1."""
    threshold = choose_threshold(fit_tilt(margins, s, prior=prior), margins[s == 0], "f1", prior)
    figures = Figures.of(margins, s, labels=count, prior=prior, prior_range=(prior, prior), threshold=threshold)
    stated = figures.to_json()
    stated |= {"threshold": threshold, "held_out_risk": stated["nnpu_risk"]}
    ends = [f"{name}{end}" for name in _FIGURES for end in ("", "_low", "_high")]
    names = ("threshold", "share_predicted_positive", "held_out_risk", *ends)
    return {name: stated[name] for name in names if stated.get(name) is not None}


def _verdict(sweep: Sweep, risk: PURisk) -> str:
    """Say whether the ranking depends on the prior, and why."""
    if not risk.needs_prior:
        return f"flat: {risk.name} gives the same model and ranking at every prior; find the prior with estimate-prior."
    if not (pauc := sweep.means("pauc")):
        return "the models depend on the prior; single figures, and so more labels, are needed to say how."
    best, worst = max(pauc, key=pauc.__getitem__), min(pauc, key=pauc.__getitem__)
    acting = [row["prior"] for row in sweep.rows if row["clamped"] > 0.01]
    cut = f"cut at 0 from prior {min(acting):.3g} on" if acting else "never cut at 0"
    flat = "flat" if pauc[best] - pauc[worst] < _FLAT_RANGE else "not flat"
    return (
        f"{flat}: the AUC of labelled against unlabelled is {pauc[best]:.4f} at prior {best:.3g} and "
        f"{pauc[worst]:.4f} at {worst:.3g}; the negative part is {cut}. "
        "A good ranking does not make a prior right: find it with estimate-prior."
    )


def write_sweep_table(result: Sweep, path: str | Path) -> None:
    """Write the rows of a sweep as CSV."""
    path = check_output(path, TABLE)
    cells = ([f"{value:.6g}" if isinstance(value, float) else value for value in row.values()] for row in result.rows)
    write_rows(path, [list(result.rows[0]), *cells])


def plot_sweep(result: Sweep, path: str | Path) -> None:
    """Plot means over the seeds by prior into a PNG file, without the figures that the labels are too few for."""
    from matplotlib.figure import Figure  # takes a third of a second to import

    sheet = Figure(figsize=(8, 5), layout="constrained")
    axes = sheet.subplots()
    for name in _LINES:
        if means := result.means(name):
            axes.plot(list(means), list(means.values()), ".-", label=name.replace("_", " "))
    axes.set(xscale="log", xlabel="training prior", ylim=(-0.02, 1.02))
    axes.grid(alpha=0.3)
    sheet.legend(loc="outside lower center", ncols=len(_LINES))
    with replacing(Path(path)) as temporary:
        sheet.savefig(temporary, format="png", dpi=130, metadata={"Software": MARK})
