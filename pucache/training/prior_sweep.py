"""Sweep over priors: heads retrained at many priors and seeds at once, and what the prior changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ..cache.embedding_cache import EmbeddingCache, open_cache
from ..estimates.calibration import fit_tilt
from ..estimates.intervals import WITH_INTERVAL, stated_estimates
from ..estimates.label_requirements import LabelCount
from ..estimates.metrics import with_labels
from ..estimates.thresholds import choose_threshold
from ..heads.risks import PURisk
from ..labels.folds import assign_folds
from ..labels.labels import TWIN_COSINE, Labels
from ..labels.row_values import RowValues, open_truth
from ..labels.sample import UnlabelledSample
from ..progress import Progress, Silent
from ..seeds import Seed, drawn_seed
from ..storage.atomic import replacing
from ..storage.file_kinds import MARK, TABLE
from ..storage.outputs import check_output, may_replace_derived
from ..storage.table_writer import write_rows
from .cross_fitting import CrossFitter, fit_held_out
from .labelled_cache import LabelledCache
from .sklearn_classifier import PULinearClassifier
from .train_head import TrainingSettings

PRIORS = tuple(float(f"{prior:.3g}") for prior in np.geomspace(0.01, 0.5, 12))
_TOLERANCE = 2e-3  # enough for heads that are only compared
_FLAT_RANGE = 0.005  # range of PAUC below which a sweep is called flat
_TRUE_FIGURES = ("accuracy", "precision", "recall", "f1", "auc", "average_precision")
COLUMNS = (
    *("prior", "seed", "risk", "clamped", "threshold", "share_predicted_positive", "held_out_risk"),
    *(*WITH_INTERVAL, "upu_risk", "collapsed"),
    *(f"{name}_{end}" for name in WITH_INTERVAL for end in ("low", "high")),
    *(f"true_{name}" for name in _TRUE_FIGURES),
)


@dataclass(frozen=True)
class Sweep:
    """Result of a sweep over priors.

    Attributes
    ----------
    rows : list of dict
        Figures of each prior and seed, by prior, then by seed; from held-out margins at the threshold of greatest
        expected F1. `COLUMNS` names them: ``risk`` is the training risk, ``clamped`` the share of the iterations in
        which the clamp of the negative part acted, ``held_out_risk`` the nnPU risk, and the others are those of
        `pucache.estimates.metrics.from_pu`. ``_low`` and ``_high`` are the ends of 90 % intervals at this prior, which
        do not cover a wrong prior. A figure that the labels are too few for is left out, and so are the true ones
        (among the unlabelled rows whose class is known) without truth.
    penalty : float
        L2 penalty of all heads.
    verdict : str
        One sentence or two: whether the ranking depends on the prior, and why.
    note : str
        What is not estimated because the labels are too few; "" where nothing is left out.
    sample : UnlabelledSample or None
        Of the unlabelled rows; None where all were taken.
    """

    rows: list[dict[str, Any]]
    penalty: float
    verdict: str
    note: str = ""
    sample: UnlabelledSample | None = None

    def __repr__(self) -> str:
        priors, seeds = ({row[name] for row in self.rows} for name in ("prior", "seed"))
        return f"Sweep({len(priors)} priors, {len(seeds)} seeds: {self.verdict})"


def sweep_priors(
    cache: str | Path | Sequence[str | Path] | EmbeddingCache,
    positives: str | Path | RowValues | Labels,
    classifier: PULinearClassifier | None = None,
    *,
    negatives: str | Path | RowValues | None = None,
    twins: float | None = TWIN_COSINE,
    all_rows: bool = False,
    truth: str | Path | RowValues | None = None,
    priors: Sequence[float] = PRIORS,
    seeds: Sequence[Seed] = (0, 1, 2),
    progress: Progress | None = None,
) -> Sweep:
    """Train at many priors and seeds on a cache.

    Parameters
    ----------
    cache, positives
        As for `pucache.train_pu`.
    classifier : PULinearClassifier, optional
        As for `sweep_on`.
    negatives, twins, all_rows
        As for `pucache.train_pu`; the first seed is that of the sample of unlabelled rows.
    truth : path, str or RowValues, optional
        True classes, as for `pucache.labels.row_values.open_truth`: a file, or 1, 0, and -1 for unknown.
    priors, seeds, progress
        As for `sweep_on`.

    Returns
    -------
    Sweep

    Raises
    ------
    LabelError, CacheError
        As `LabelledCache.of` and `open_truth`.
    ValueError
        A parameter outside its domain.
    """
    opened, numbers = open_cache(cache), [drawn_seed(seed) for seed in seeds]
    y = None if truth is None else open_truth(truth, opened.keys, opened)
    data = LabelledCache.of(
        opened,
        positives,
        twins,
        negatives=negatives,
        all_rows=all_rows,
        seed=next(iter(numbers), 0),
        device="auto" if classifier is None else classifier.device,
    )
    y = None if y is None else data.take(y)
    return sweep_on(data, classifier, priors=priors, seeds=numbers, truth=y, progress=progress)


def sweep_on(
    data: LabelledCache,
    classifier: PULinearClassifier | None = None,
    *,
    priors: Sequence[float] = PRIORS,
    seeds: Sequence[int] = (0, 1, 2),
    truth: np.ndarray | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Train cross-fitted heads at every prior and seed.

    Parameters
    ----------
    data : LabelledCache
    classifier : PULinearClassifier, optional
        Its risk, solver, penalty, folds and device are used; ``auto`` chooses one penalty, at the first prior and seed.
    priors : sequence of float, in (0, 1)
        Priors that a review rules out are left out.
    seeds : sequence of int
        Of folds and initial coefficients.
    truth : ndarray of int8, (n,), optional
        1, 0, or -1 where the class is not known.
    progress : Progress, optional

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
    classifier = classifier or PULinearClassifier()
    settings, labels = TrainingSettings.of(classifier.get_params()), data.training_labels
    low, high = labels.bounds
    possible = [prior for prior in priors if low <= prior <= high]
    if not possible:
        labels.check(priors[0])
    design, count = data.design_matrix(classifier.device), LabelCount.of(data.s, groups=data.group)
    folds = np.stack([assign_folds(labels.training_s, settings.n_folds, seed, data.group) for seed in seeds], axis=1)
    with progress or Silent() as stages:
        stages.start(2, "training")
        penalty, *others = settings.penalties
        if others:  # at the first seed, as `train_pu` chooses it
            first = replace(settings.heads, seed=seeds[0])
            penalty = CrossFitter(design, labels, folds[:, :1], possible[0], first).choose().penalty
        stages.advance(1)
        trained = possible if settings.heads.risk.needs_prior else possible[:1]  # else the same heads serve all priors
        heads, margins = fit_held_out(
            design,
            labels,
            folds,
            prior=[labels.training_prior(prior) for prior in trained],
            penalty=np.full(len(trained), penalty),
            seeds=seeds,
            settings=settings.heads,
            tolerance=_TOLERANCE,
        )
        stages.advance(1)
    seed_of_head = np.repeat(np.arange(len(seeds)), folds.max(0) + 1)  # of the C heads of a prior
    risk, clamped = (values.reshape(len(trained), -1) for values in (heads.risk, heads.clamped))
    rows = []
    for (i, prior), (j, seed) in product(enumerate(possible), enumerate(seeds)):
        run, own = min(i, len(trained) - 1), seed_of_head == j
        row = {
            "prior": prior,
            "seed": seed,
            "risk": float(risk[run, own].mean()),
            "clamped": float(clamped[run, own].mean()),
        }
        rows.append(_with_figures(row, margins[:, run * len(seeds) + j], data.s, truth, count))
    ruled_out = len(priors) - len(possible)
    note = f" Left out, as a review has shown them to be wrong: {ruled_out} priors." if ruled_out else ""
    return Sweep(rows, penalty, _verdict(rows, settings.heads.risk) + note, count.sentence, data.sample)


def _with_figures(
    row: dict[str, Any], margins: np.ndarray, s: np.ndarray, truth: np.ndarray | None, count: LabelCount
) -> dict[str, Any]:
    """The row with all `COLUMNS` that are known."""
    prior = row["prior"]
    threshold = choose_threshold(fit_tilt(margins, s, prior=prior), margins[s == 0], "f1", prior)
    stated = stated_estimates(margins, s, labels=count, prior=prior, prior_range=(prior, prior), threshold=threshold)
    known = row | stated | {"threshold": threshold, "held_out_risk": stated["nnpu_risk"]}
    if truth is not None:
        rows = (s == 0) & (truth >= 0)
        true = with_labels(truth[rows], margins[rows], (margins[rows] > threshold).astype(int))
        known |= {f"true_{name}": true[name] for name in _TRUE_FIGURES}
    return {name: known[name] for name in COLUMNS if known.get(name) is not None}


def why_flat(risk: PURisk) -> str:
    """Why no head depends on the prior, for a risk that needs none."""
    why = (
        "the sigmoid loss at target prior 0.5 weighs both parts alike at every prior"
        if risk.name == "imbupu"
        else f"{risk.name} has no prior in it"
    )
    return (
        f"{why}, so the heads are the same and so is their ranking. Only posterior, threshold, precision "
        "and F1 depend on the prior"
    )


def _verdict(rows: list[dict[str, Any]], risk: PURisk) -> str:
    """Say whether the ranking depends on the prior, and why."""
    if not risk.needs_prior:
        return f"flat: {why_flat(risk)}; find it with estimate-prior, not with a sweep."
    if "pauc" not in rows[0]:
        return "the heads depend on the prior; single figures, and so more labels, are needed to say how."
    pauc = _means(rows, "pauc")
    best, worst = max(pauc, key=pauc.__getitem__), min(pauc, key=pauc.__getitem__)
    clamped = [row["prior"] for row in rows if row["clamped"] > 0.01]
    clamp = f"the clamp of the negative part acts from prior {min(clamped):.3g} on" if clamped else "no clamp acts"
    flat = "flat" if pauc[best] - pauc[worst] < _FLAT_RANGE else "not flat"
    return (
        f"{flat}: PAUC is {pauc[best]:.4f} at prior {best:.3g} and {pauc[worst]:.4f} at {worst:.3g}; {clamp}. "
        "A high PAUC says that a training ranks well, not that its prior is right; see estimate-prior."
    )


def _means(rows: list[dict[str, Any]], name: str) -> dict[float, float]:
    """Mean of a figure over the seeds, for each prior, ascending."""
    priors = sorted({row["prior"] for row in rows})
    return {prior: float(np.mean([row[name] for row in rows if row["prior"] == prior])) for prior in priors}


def write_sweep_table(result: Sweep, path: str | Path, *, force: bool = False) -> None:
    """Write the rows of a sweep as CSV; `force` replaces a file of another kind than a table too."""
    rows = result.rows
    path = check_output(path, TABLE, force=force)
    cells = ([f"{value:.6g}" if isinstance(value, float) else value for value in row.values()] for row in rows)
    write_rows(path, [list(rows[0]), *cells])


def plot_sweep(result: Sweep, path: str | Path) -> bool:
    """Plot ranking, operating point and training over the prior into a PNG file.

    Lines are means over seeds, dots are seeds; where only intervals are stated, bands stand for the lines. Returns
    whether it was written: a file that pucache did not write is left as it is.
    """
    if not may_replace_derived(Path(path)):
        return False
    from matplotlib.figure import Figure  # takes a third of a second to import

    sheet = Figure(figsize=(11, 4.8), layout="constrained")
    ranking = {"pauc": "PAUC", "auc": "AUC, estimated", "true_auc": "AUC, true", "true_average_precision": "AP, true"}
    point = {
        "f1": "F1, estimated",
        "true_f1": "F1, true",
        "share_predicted_positive": "called positive",
        "prior": "training prior",
    }
    training = {"held_out_risk": "nnPU risk, held out", "clamped": "clamp's activity"}
    panels = (("Ranking", ranking), ("Operating point (greatest expected F1)", point), ("Training", training))
    rows = result.rows
    for axes, (title, lines) in zip(sheet.subplots(1, 3), panels, strict=True):
        for name, label in lines.items():
            if name in rows[0] or f"{name}_low" in rows[0]:
                _plot(axes, rows, name, label)
        axes.set(title=title, xscale="log", xlabel="training prior")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
        else:
            axes.text(0.5, 0.5, "too few labels", transform=axes.transAxes, ha="center")
        axes.grid(alpha=0.3)
    with replacing(Path(path)) as temporary:
        sheet.savefig(temporary, format="png", dpi=130, metadata={"Software": MARK})
    return True


def _plot(axes: Any, rows: list[dict[str, Any]], name: str, label: str) -> None:
    if name not in rows[0]:
        low, high = _means(rows, f"{name}_low"), _means(rows, f"{name}_high")
        axes.fill_between(list(low), list(low.values()), list(high.values()), alpha=0.3, label=f"{label}, interval")
        return
    means = _means(rows, name)
    (line,) = axes.plot(list(means), list(means.values()), label=label, linestyle=":" if name == "prior" else "-")
    if name != "prior":
        axes.plot([row["prior"] for row in rows], [row[name] for row in rows], ".", ms=3, color=line.get_color())
