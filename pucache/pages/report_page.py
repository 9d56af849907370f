"""One page to look at: what is in a cache, what its labelled positives tell, and how far to believe it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest
from sklearn.base import clone

from ..cache.embedding_cache import EmbeddingCache
from ..errors import LabelError
from ..images.source import open_source
from ..progress import Progress
from ..pu.classifier import PULinearClassifier
from ..pu.data import PUData
from ..pu.estimate_prior import estimate_prior_on
from ..pu.labels import TWIN_COSINE
from ..pu.metrics import with_labels
from ..pu.prior_sweep import sweep_on
from ..pu.train import train_on
from ..storage.atomic import check_writable
from . import report_text
from .html import render, write
from .provenance import provenance
from .report_data import Evidence
from .report_galleries import Galleries, visible
from .report_panels import exhibits, measured

_FAILURES = 10  # named on the page
_TRUE = ("precision", "recall", "f1", "auc", "accuracy")


def report(
    cache: EmbeddingCache,
    positives: str | Path | np.ndarray,
    path: str | Path,
    *,
    model: PULinearClassifier | None = None,
    negatives: str | Path | None = None,
    truth: np.ndarray | None = None,
    images: str | Path | None = None,
    draws: int = 20,
    sample: int = 1500,
    seed: int = 0,
    device: str = "auto",
    twins: float | None = TWIN_COSINE,
    command: str = "",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write a self-contained HTML page about a cache and its labelled positives.

    A model file holds no held-out margins, so the page trains again, with the parameters of `model`
    where it is given. All estimates are of that training. Unlabelled images are ranked by `model`.

    Parameters
    ----------
    cache : EmbeddingCache
    positives : path, str or ndarray of int8 (n,)
        As for `pucache.pu.train.train_pu`.
    path : path
        Of the page.
    model : PULinearClassifier, optional
        Of the cache's encoder.
    negatives : path or str, optional
        Known negatives, as for `pucache.pu.train.train_pu`.
    truth : ndarray of int8, (n,), optional
        True classes, 1 or 0, and -1 where it is not known: real figures stand beside the estimates.
    images : str or path, optional
        Where the images are by now; else where the cache says.
    draws : int
        Bootstrap draws of the prior's intervals; fewer than 2: none.
    sample : int
        Points of the map, at least 3.
    seed : int
        Of samples and map, and of the training where no model is given.
    device : str
    twins : float or None
        As for `pucache.pu.train.train_pu`.
    command : str
        What was typed, for the page's last section.
    progress : Progress, optional

    Returns
    -------
    dict
        The numbers on the page.

    Raises
    ------
    LabelError, CacheError
        As `PUData.of`; a truth of another length.
    ModelError
        The model is of another encoder.
    SourceError
        `images` cannot be opened.
    OutputError
        `path` cannot be written.
    ValueError
        A number outside its domain.
    """
    _check(cache, truth, draws, sample)
    path = check_writable(path, inputs=_inputs(cache, positives, negatives))
    if model is not None:
        model.check_fits(cache)
    if images is not None:
        open_source(images)  # it would be a pity to learn after the training that nothing is there
    data = PUData.of(cache, positives, twins, negatives=negatives)
    evidence = gather(data, model, truth=truth, draws=draws, seed=seed, device=device, progress=progress)
    galleries = Galleries(evidence, images=images, seed=seed, progress=progress)
    laid, points = galleries.points(sample, seed)
    near, everywhere = galleries.company(laid)
    settings = {"draws": draws, "sample": sample, "seed": seed, "device": device, "twins": twins, "images": images}
    numbers = _numbers(evidence) | {
        "pictures": galleries.pictures(),
        "map": {"shown": len(laid.rows), "explained": laid.explained, "near_labelled": near, "everywhere": everywhere},
        "provenance": provenance(cache, (positives, negatives), evidence.trained, **settings, command=command),
    }
    numbers["warnings"] = report_text.warnings(numbers, evidence.estimates)
    html = render(
        "report", points, **_content(evidence, numbers), galleries=galleries.cards(), groups=galleries.copies()
    )
    write(path, html)
    return numbers


def gather(
    data: PUData,
    model: PULinearClassifier | None,
    *,
    truth: np.ndarray | None,
    draws: int,
    seed: int,
    device: str,
    progress: Progress | None,
) -> Evidence:
    """Train with the model's parameters, estimate the prior by each method, sweep over priors."""
    recipe = PULinearClassifier(seed=seed) if model is None else clone(model)
    parameters = {**recipe.get_params(deep=False), "device": device, "draws": 0}  # draws are made below
    trained = train_on(data, progress=progress, **parameters)
    estimates = estimate_prior_on(
        data, draws=draws, n_folds=recipe.n_folds, seed=recipe.seed, device=device, progress=progress
    )
    told = ("loss", "surrogate", "target_prior", "solver", "sgd_settings", "n_folds", "device")
    swept = sweep_on(
        data,
        seeds=(recipe.seed,),
        truth=truth if truth is not None and _both_known(truth, data.s) else None,
        penalty=trained.penalty_,
        progress=progress,
        **{name: parameters[name] for name in told},
    )
    ranker = model or trained
    return Evidence(data, trained, ranker, _margins(ranker, data.cache), estimates, swept, truth)


def _both_known(truth: np.ndarray, s: np.ndarray) -> bool:
    """Whether both classes occur among the unlabelled rows, without which there is no true curve."""
    known = truth[s == 0]
    return bool((known == 1).any() and (known == 0).any())


def _margins(model: PULinearClassifier, cache: EmbeddingCache) -> np.ndarray:
    margins = np.empty(len(cache), np.float32)
    for rows, block in model.margins_of(cache):
        margins[rows] = block
    return margins


def _check(cache: EmbeddingCache, truth: np.ndarray | None, draws: int, sample: int) -> None:
    if draws < 0 or sample < 3:
        raise ValueError(f"draws must be at least 0 and sample at least 3; got {draws} and {sample}")
    if truth is not None and truth.shape != (len(cache),):
        raise LabelError(f"expected a class for each of {len(cache):,} rows of {cache.name}, got shape {truth.shape}")


def _inputs(cache: EmbeddingCache, *labels: str | Path | np.ndarray | None) -> list[Path]:
    return [*(file.path for file in cache.files), *(Path(one) for one in labels if isinstance(one, str | Path))]


def _numbers(evidence: Evidence) -> dict[str, Any]:
    """What is told of the data and the training, ready for JSON."""
    data, trained = evidence.data, evidence.trained
    failures, true, reviewed = data.cache.failures, evidence.held.true(), data.labels.reviewed
    _, sizes = np.unique(data.group, return_counts=True)
    return {
        "images": len(data.s),
        "labelled": len(evidence.labelled),
        "unlabelled": len(evidence.unlabelled),
        "failures": {"count": len(failures), "reasons": dict(Counter(failures.values()).most_common(_FAILURES))},
        "duplicates": {"groups": int((sizes > 1).sum()), "copies": int((sizes - 1).sum())},
        "reviewed": {"confirmed": int((reviewed == 1).sum()), "negative": int((reviewed == -1).sum())},
        "twins_found": len(evidence.twins[0]),
        "scar": evidence.scar.to_dict(),
        "doubted": int((evidence.held.positive <= evidence.held.threshold).sum()),
        "prior": trained.prior_,
        "prior_told": trained.prior is not None,
        "prior_estimates": {one.method: vars(one) for one in evidence.estimates},
        "hidden_positives": _hidden(evidence),
        "held_out": evidence.held_out,
        "intervals": _intervals(evidence),
        "true_prior": None if true is None else true["n_positive"] / true["n"],
        "estimates": trained.estimates_,
        "true": true,
        "true_by_model": _true_by_model(evidence),
        "model": {
            "threshold": trained.threshold_,
            "penalty": trained.penalty_,
            "trained_on_other_labels": evidence.other_labels,
        },
        "sweep_verdict": evidence.swept.verdict,
        "figures": measured(evidence),
    }


def _hidden(evidence: Evidence) -> dict[str, float | None]:
    """Positives expected beyond those known, and the ends of the interval where there is one."""
    count, confirmed = len(evidence.unlabelled), int((evidence.data.labels.reviewed == 1).sum())
    shares = {
        "expected": evidence.trained.prior_,
        **dict(zip(("low", "high"), evidence.interval or (None, None), strict=True)),
    }
    return {name: None if share is None else max(0.0, share * count - confirmed) for name, share in shares.items()}


def _intervals(evidence: Evidence) -> dict[str, list[float] | None]:
    """Of recall, a count on P: Clopper and Pearson's; of precision: that of the prior, to which it is proportional."""
    positive, figures = evidence.held.positive, evidence.trained.estimates_
    found, level = int((positive > evidence.held.threshold).sum()), evidence.estimates[0].level
    recall = binomtest(found, len(positive)).proportion_ci(level, method="exact")
    share, called = float(figures["recall"]), float(figures["share_predicted_positive"])
    precision = [min(1.0, end * share / called) for end in evidence.interval or ()] if called else []
    return {"recall": [recall.low, recall.high], "precision": precision or None}


def _true_by_model(evidence: Evidence) -> dict[str, float] | None:
    """True figures of the model given, where it is not the one that was trained here."""
    if evidence.truth is None or not evidence.other_labels:
        return None
    rows = evidence.unlabelled[evidence.truth[evidence.unlabelled] >= 0]
    if not len(rows):
        return None
    margins = evidence.margins[rows]
    return with_labels(evidence.truth[rows], margins, (margins > evidence.ranker.threshold_).astype(int))


def _content(evidence: Evidence, numbers: dict[str, Any]) -> dict[str, Any]:
    """What the template puts into words."""
    failures = evidence.data.cache.failures
    return {
        "title": "pucache report",
        "numbers": numbers,
        "words": report_text,
        "hidden": report_text.hidden(numbers),
        "decisions": report_text.decisions(numbers),
        "next_steps": report_text.next_steps(numbers),
        "exhibits": exhibits(evidence, numbers),
        "encoder": str(evidence.data.cache.encoder),
        "failures": [(visible(key), reason) for key, reason in sorted(failures.items())[:_FAILURES]],
        "compared": [name for name in _TRUE if numbers["true"]],
        "with_truth": evidence.truth is not None,
    }
