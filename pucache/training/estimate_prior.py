"""Estimates of the prior, the share of positives among the unlabelled: by the labels, and by the audit of a review."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..cache.embedding_cache import CacheLike, open_cache
from ..estimates.priors import PriorEstimate, profile_interval
from ..labels.labels import TWIN_COSINE, Labels, PULabels
from ..labels.read_labels import open_labels
from ..labels.row_values import RowValues
from ..progress import Progress
from ..seeds import Seed, drawn_seed
from .sklearn_classifier import PULinearClassifier
from .training_set import TrainingRows, TrainingSet


def estimate_prior(
    cache: CacheLike,
    positives: str | Path | RowValues | PULabels | Labels,
    *,
    twins: float | None = TWIN_COSINE,
    all_rows: bool = False,
    level: float = 0.9,
    n_folds: int = 5,
    seed: Seed = 0,
    device: str = "auto",
    progress: Progress | None = None,
) -> list[PriorEstimate]:
    """Estimate the share of positives among the unlabelled images of a cache, as `pucache.train_pu` does by default.

    Parameters
    ----------
    cache, positives, twins, all_rows, n_folds, seed, device, progress
        As for `pucache.train_pu`, with the labels of one list.
    level : float
        Nominal coverage of the interval, in (0, 1).

    Returns
    -------
    list of PriorEstimate
        By the tilt; before it that of the audit of a review, where the labels have one. Where they are too few, numbers
        are None, and intervals too wide to say anything (`PriorEstimate.stated`).

    Raises
    ------
    LabelError, CacheError
        As `pucache.train_pu`.
    ValueError
        A number outside its domain.
    """
    check_level(level)
    opened, number = open_cache(cache), drawn_seed(seed)
    labels = open_labels(opened, positives)
    rows = TrainingRows.of_cache(opened, labels, twins=twins, all_rows=all_rows, seed=number, device=device)
    data = rows.labelled_by(labels.only)
    return estimate_prior_on(data, level=level, n_folds=n_folds, seed=number, device=device, progress=progress)


def estimate_prior_on(
    data: TrainingSet,
    *,
    level: float = 0.9,
    n_folds: int = 5,
    seed: int = 0,
    device: str = "auto",
    progress: Progress | None = None,
) -> list[PriorEstimate]:
    """Estimate the prior on prepared rows: it is the estimate of the training that `pucache.train_pu` does by
    default."""
    model = PULinearClassifier(n_folds=n_folds, random_state=seed, device=device)
    model.train(data, progress)
    figures = model.figures_
    by_audit = [figures.prior] if figures.is_audited and figures.prior else []
    return [*by_audit, prior_by_labels(data, model, level)]


def prior_by_labels(data: TrainingSet, model: PULinearClassifier, level: float = 0.9) -> PriorEstimate:
    """Estimate the prior by held-out margins of a model that was trained on these data, as far as it is stated."""
    labels = data.training
    effect = model.figures_.design_effect or 1.0
    found = profile_interval(
        model.held_out_margins_,
        labels.s,
        level,
        bounds=labels.interval_bounds,
        design_effect=effect,
        most_labels=np.inf if effect == 1 else data.label_count.labels,
    )
    return labels.stated(labels.within_review(found)).stated(data.label_count)


def check_level(level: float) -> None:
    """Raise `ValueError` for a level of an interval that is outside its domain."""
    if not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1), such as 0.9; got {level:g}")
