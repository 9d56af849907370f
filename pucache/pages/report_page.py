"""The report: an HTML page about a cache, its labelled positives, and how well a classifier finds the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..cache.embedding_cache import EmbeddingCache, open_cache
from ..errors import LabelError
from ..estimates.intervals import interval_of
from ..estimates.label_requirements import LEAST_LABELS, LEAST_LABELS_FOR_POINTS
from ..images.source import open_source
from ..labels.label_files import read_truth
from ..labels.labels import TWIN_COSINE, Labels
from ..progress import Progress
from ..storage.atomic import check_writable
from ..training.labelled_cache import LabelledCache
from ..training.sklearn_classifier import PULinearClassifier
from . import report_text
from .background_map import BackgroundMap
from .embedding_map import choose_rows
from .html import render, write
from .provenance import provenance
from .report_data import ReportData, prepare
from .report_galleries import Galleries, visible
from .report_numbers import MapNumbers, ReportNumbers, training_numbers
from .report_panels import exhibits

_NAMED_FAILURES = 10
_TRUE_FIGURES = ("precision", "recall", "f1", "auc", "accuracy")


def report(
    cache: EmbeddingCache | str | Path | Sequence[str | Path],
    positives: str | Path | np.ndarray | Labels,
    path: str | Path,
    *,
    model: PULinearClassifier | str | Path | None = None,
    negatives: str | Path | None = None,
    truth: str | Path | np.ndarray | None = None,
    images: str | Path | None = None,
    sample: int = 1500,
    seed: int = 0,
    device: str = "auto",
    twins: float | None = TWIN_COSINE,
    all_rows: bool = False,
    command: str = "",
    progress: Progress | None = None,
) -> ReportNumbers:
    """Write a self-contained HTML page about a cache and its labelled positives.

    The estimates need held-out margins, which a model file does not hold. The report therefore trains again, with
    the parameters of `model` if it is passed, and estimates are those of this training. Unlabelled images are
    ranked by `model`.

    Parameters
    ----------
    cache : EmbeddingCache, path, or sequence of paths
    positives : path, str, ndarray of int8 (n,) or Labels
        As for `pucache.train_pu`.
    path : path
        HTML file to write.
    model : PULinearClassifier or path, optional
        Must be of the encoder of the cache.
    negatives : path or str, optional
        Known negatives, as for `pucache.train_pu`.
    truth : path, str or ndarray of int8 (n,), optional
        True classes: a file as for `pucache.labels.label_files.read_truth`, or 1, 0, and -1 for unknown. True figures
        are shown beside the estimates.
    images : str or path, optional
        Source of the images, if they have moved since they were embedded.
    sample : int
        Images on the map, at least 3.
    seed : int
        Seed of the samples and the map, and of the training if `model` is None.
    device : str
    twins : float or None
        As for `pucache.train_pu`.
    all_rows : bool
        As for `pucache.train_pu`. Where a sample is taken, pictures, curves and duplicates are of its images.
    command : str
        Command line to record on the page.
    progress : Progress, optional

    Returns
    -------
    ReportNumbers
        The numbers on the page.

    Raises
    ------
    LabelError, CacheError
        As `LabelledCache.of` and `read_truth`; or `truth` has another length than the cache.
    ModelError
        The model cannot be read, or expects another encoder.
    SourceError
        `images` cannot be opened.
    OutputError
        `path` cannot be written.
    ValueError
        `sample` is below 3.
    """
    cache = open_cache(cache)
    classifier = PULinearClassifier.load(model) if isinstance(model, str | Path) else model
    y = read_truth(truth, cache.keys) if isinstance(truth, str | Path) else truth
    _check(cache, y, sample)
    path = check_writable(path, inputs=_inputs(cache, positives, negatives, model, truth))
    if classifier is not None:
        classifier.check_fits(cache)
    if images is not None:
        open_source(images)  # fails before the training rather than after it
    sample_seed = seed if classifier is None else classifier.seed
    data = LabelledCache.of(cache, positives, twins, negatives=negatives, all_rows=all_rows, seed=sample_seed)
    with BackgroundMap(data.X, seed=seed) as background_map:

        def start_map(ranked: np.ndarray) -> None:
            labelled, unlabelled = np.flatnonzero(data.s == 1), np.flatnonzero(data.s == 0)
            background_map.start(choose_rows(labelled, unlabelled, ranked, sample=sample, seed=seed))

        content = prepare(
            data,
            classifier,
            truth=None if y is None else data.take(y),
            seed=seed,
            device=device,
            progress=progress,
            on_ranked=start_map,
        )
        galleries = Galleries(content, images=images, seed=seed, progress=progress)
        layout = background_map.result()
    settings = {"sample": sample, "seed": seed, "device": device, "twins": twins, "images": images}
    settings |= {"all_rows": all_rows or None}
    origin = provenance(cache, (positives, negatives), content.trained, **settings, command=command)
    numbers = _numbers(content, galleries, galleries.map_numbers(layout), origin)
    page = _context(content, numbers)
    write(
        path,
        render("report", galleries.map_points(layout), **page, galleries=galleries.cards(), groups=galleries.copies()),
    )
    return numbers


def _check(cache: EmbeddingCache, truth: np.ndarray | None, sample: int) -> None:
    if sample < 3:
        raise ValueError(f"sample must be at least 3, got {sample}")
    if truth is not None and truth.shape != (len(cache),):
        raise LabelError(f"expected a class for each of {len(cache):,} rows of {cache.name}, got shape {truth.shape}")


def _inputs(cache: EmbeddingCache, *labels: Any) -> list[Path]:
    """Input files, which the page must not overwrite."""
    return [*(file.path for file in cache.files), *(Path(name) for name in labels if isinstance(name, str | Path))]


def _numbers(
    content: ReportData, galleries: Galleries, map_numbers: MapNumbers, origin: dict[str, Any]
) -> ReportNumbers:
    training, pictures = training_numbers(content), galleries.pictures()
    return ReportNumbers(
        **vars(training),
        pictures=pictures,
        map=map_numbers,
        provenance=origin,
        warnings=report_text.warnings(training, pictures),
    )


def _truth_rows(content: ReportData, numbers: ReportNumbers) -> list[list[str]]:
    """Rows of the table of estimated and true figures; none without truth."""
    true, by_model = numbers.true, numbers.true_by_model
    if true is None or numbers.true_prior is None:
        return []
    share = report_text.share(numbers.prior, content.prior_interval)
    rows = [["share of positives", share, report_text.percent(numbers.true_prior), *([""] if by_model else [])]]
    for name in _TRUE_FIGURES:
        estimate = report_text.share(numbers.estimates[name], interval_of(numbers.estimates, name))
        title = {"auc": "AUC", "f1": "F1"}.get(name, name)
        models = [figures[name] for figures in (true, by_model) if figures]
        rows.append([title, estimate, *map(report_text.percent, models)])
    return rows


def _context(content: ReportData, numbers: ReportNumbers) -> dict[str, Any]:
    """Variables of the template."""
    failures = content.data.cache.failures
    return {
        "title": "pucache report",
        "numbers": numbers,
        "words": report_text,
        "missing": f"takes {LEAST_LABELS} labelled positives",
        "interval_only": f"a single number takes {LEAST_LABELS_FOR_POINTS} labelled positives",
        "likeness": "probability" if numbers.count.has_estimates else "margin",
        "truth_rows": _truth_rows(content, numbers),
        "hidden": report_text.hidden(numbers),
        "decisions": report_text.decisions(numbers),
        "next_steps": report_text.next_steps(numbers),
        "exhibits": exhibits(content, numbers),
        "encoder": str(content.data.cache.encoder),
        "failures": [(visible(key), reason) for key, reason in sorted(failures.items())[:_NAMED_FAILURES]],
        "with_truth": content.truth is not None,
    }
