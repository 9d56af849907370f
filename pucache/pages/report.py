"""The report: an HTML page about a cache, its labelled positives, and how well a classifier finds the others.

Its sentences stand in the templates ``report.html`` and ``report_sentences.html``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..cache.embedding_cache import CacheLike, EmbeddingCache, files_read, open_cache
from ..encoders.spec import ROUNDING
from ..errors import CacheError
from ..estimates.label_requirements import LEAST_DRAWS, LEAST_LABELS, LEAST_LABELS_FOR_POINTS, LabelCount
from ..images.source import open_source
from ..labels.labels import TWIN_COSINE, Labels, PULabels
from ..labels.read_labels import open_labels
from ..labels.row_values import RowValues, read_truth
from ..labels.sample import UnlabelledSample
from ..progress import Progress
from ..scoring.new_images import NewImages, check_new_images
from ..seeds import Seed, drawn_seed
from ..storage.file_kinds import PAGE
from ..storage.outputs import check_output
from ..training.concept_models import ConceptModels
from ..training.sklearn_classifier import PULinearClassifier
from ..training.training_set import TrainingRows
from . import charts
from .embedding_map import EmbeddingMap, choose_rows, embedding_map, shares_of_likely
from .html import one_line, probability, render, template, visible, write
from .report_numbers import TrainedReport, provenance, train, training_numbers
from .thumbnails import RowImage, thumbnails

_NAMED_FAILURES = 10
_DECISIONS = {1: "accepted", -1: "rejected", 0: ""}  # in a review
_SHOWN = 24  # images of a gallery
_GROUPS, _GROUP_CARDS = 6, 6
_SIDE, _MAP_SIDE = 112, 56  # pixels
_CLASSES = {1: "positive", 0: "negative", -1: "not known"}


def report(
    cache: EmbeddingCache | str | Path | Sequence[str | Path],
    positives: str | Path | RowValues | PULabels | Labels,
    path: str | Path,
    *,
    model: PULinearClassifier | str | Path | None = None,
    truth: str | Path | RowValues | None = None,
    images: str | Path | None = None,
    new_images: CacheLike | None = None,
    sample: int = 1500,
    seed: Seed = 0,
    device: str = "auto",
    twins: float | None = TWIN_COSINE,
    all_rows: bool = False,
    command: str = "",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write a self-contained HTML page about a cache and its labelled positives.

    The estimates need held-out margins, which a model file does not hold. The report therefore trains again, with
    the parameters of `model` if it is passed, and estimates are those of this training. Unlabelled images are
    ranked by `model`.

    Parameters
    ----------
    cache : EmbeddingCache, path, or sequence of paths
    positives : path, str, RowValues, PULabels or Labels
        As for `pucache.train_pu`, of one list. Where groups are named, positives are also counted by group.
    path : path
        HTML file to write.
    model : PULinearClassifier or path, optional
        Must be of the encoder of the cache.
    truth : path, str or RowValues, optional
        True classes, as for `pucache.labels.row_values.read_truth`: a file, or 1, 0, and -1 for unknown. True figures
        are shown beside the estimates.
    images : str or path, optional
        Source of the images, if they have moved since they were embedded.
    new_images : EmbeddingCache, path, or sequence of paths, optional
        Later images, which a section compares with the cache (`pucache.check_new_images`).
    sample : int
        Images on the map, at least 3.
    seed : int, RandomState, Generator or None
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
    dict
        The numbers on the page by name, as ``pucache report --json`` prints them.

    Raises
    ------
    LabelError, CacheError
        As `pucache.train_pu` and `pucache.labels.row_values.read_truth`.
    ModelError
        The model cannot be read, or expects another encoder.
    SourceError
        `images` cannot be opened.
    OutputError
        `path` cannot be written.
    ValueError
        `sample` is below 3.
    """
    cache, seed = open_cache(cache), drawn_seed(seed)
    classifier = None if model is None else ConceptModels.open(model).of("")
    y = None if truth is None else read_truth(truth, cache.keys, cache)
    if sample < 3:
        raise ValueError(f"sample must be at least 3, got {sample}")
    labels = open_labels(cache, positives)
    named = [name for name in (*labels.sources, model, truth, images) if isinstance(name, str | os.PathLike)]
    path = check_output(path, PAGE, inputs=files_read(cache, *named, new_images))
    if classifier is not None:
        classifier.check_fits(cache)
    later = None if new_images is None else open_cache(new_images)
    if later is not None and (differing := cache.encoder.differences(later.encoder, ignoring=ROUNDING)):
        raise CacheError(f"{later.name} is of another encoder than {cache.name}: they differ in {', '.join(differing)}")
    if images is not None:
        open_source(images)  # fails before the training rather than after it
    sample_seed = seed if classifier is None else classifier.seed_
    rows = TrainingRows.of_cache(cache, labels, twins=twins, all_rows=all_rows, seed=sample_seed, device=device)
    data = rows.labelled_by(labels.only)
    known = None if y is None else rows.take(y)
    content = train(data, classifier, truth=known, seed=seed, device=device, progress=progress)
    settings = {"sample": sample, "seed": seed, "device": device, "twins": twins, "images": images}
    settings |= {"all_rows": all_rows or None, "command": command}
    given = labels.sources or (positives,)
    new = None if later is None else check_new_images(classifier or content.trained, later)
    return write_report(content, path, given, settings, progress, new=new)


def write_report(
    content: TrainedReport,
    path: Path,
    labels: Sequence[Any],
    settings: dict[str, Any],
    progress: Progress | None = None,
    *,
    new: NewImages | None = None,
) -> dict[str, Any]:
    """Write the page of a training; returns the numbers on it.

    `labels` are the files or values that labels were read from and `settings` those of `report`, for its provenance.
    """
    data, cache = content.data, content.data.cache
    images, sample, seed = settings["images"], settings["sample"], settings["seed"]
    galleries = _Galleries(content, images=images, seed=seed, progress=progress)
    chosen = choose_rows(content.labelled, content.unlabelled, content.ranked, sample=sample, seed=seed)
    layout = embedding_map(data.rows.X, chosen, seed=seed)
    numbers = training_numbers(content) | {
        "new_images": None if new is None else new.to_dict(),
        "pictures": galleries.picture_counts(),
        "map": _map_numbers(content, layout),
        "provenance": provenance(cache, labels, content.trained, settings),
    }
    numbers["warnings"] = warnings(numbers)
    page = render(
        "report",
        galleries.map_points(layout),
        title="pucache report",
        numbers=numbers,
        count=content.count,
        has_probabilities=content.trained.figures_.has_probabilities,
        new=new,
        least_labels=(LEAST_LABELS, LEAST_LABELS_FOR_POINTS),
        least_draws=LEAST_DRAWS,
        galleries=galleries.cards,
        groups=galleries.copies,
        charts=_charts(content, numbers),
        priors=[(estimate, estimate.has_interval) for estimate in content.prior_estimates],
        prior_interval=content.prior_interval,
        estimates=content.trained.figures_.estimates,
        encoder=str(cache.encoder),
        failures=[(visible(key), reason) for key, reason in sorted(cache.failures.items())[:_NAMED_FAILURES]],
    )
    write(path, page)
    return numbers


def warnings(numbers: dict[str, Any]) -> list[str]:
    """Warnings to read before trusting the page, as text."""
    count, sample = LabelCount(numbers["labels"], "groups" in numbers), numbers["unlabelled_sample"]
    sentences: Any = template("report_sentences").module
    said = sentences.warnings(numbers, count, None if sample is None else UnlabelledSample.from_json(sample))
    return [one_line(paragraph).unescape() for paragraph in said.split("\n\n") if paragraph.strip()]


def _charts(content: TrainedReport, numbers: dict[str, Any]) -> dict[str, Any]:
    """Drawings by chart, without those that the labels are too few for."""
    figures, points = numbers["figures"], content.count.has_points
    drawn = {
        "margins": charts.draw("margins", 4.4, charts.paint_margins, figures["margins"], content.held_out.threshold)
    }
    if content.count.has_estimates:
        priors = (content.prior_estimates, numbers["prior"], numbers["true_prior"], points)
        drawn["priors"] = charts.draw("priors", 1.6, charts.paint_priors, *priors)
    if figures["precision_recall"]:
        drawn["curve"] = charts.draw("curve", 3.6, charts.paint_curve, figures["precision_recall"])
    if figures["reliability"]:
        drawn["reliability"] = charts.draw("reliability", 3.6, charts.paint_reliability, figures["reliability"])
    return drawn


# --- galleries and map -------------------------------------------------------------------------


class _Galleries:
    """Cards of the report's galleries, by name, and of the largest groups of copies.

    The thumbnails of all of them are made together.
    """

    def __init__(self, report: TrainedReport, *, images: str | Path | None, seed: int, progress: Progress | None):
        self._report, self._images, self._progress = report, images, progress
        rows, copies = _gallery_rows(report, seed), _largest_groups(report.data.twin)
        shown = np.unique(np.concatenate([*rows.values(), *copies]))
        self._pictures = dict(zip(shown.tolist(), self._thumbnails(shown, _SIDE), strict=True))
        self.cards = {name: self._cards(of_gallery) for name, of_gallery in rows.items()}
        self.copies = [self._cards(group) for group in copies]
        for card, row in zip(self.cards["twins"], report.twins[1], strict=False):
            card["note"] = f"same picture as {visible(report.data.keys(np.array([row]))[0])}"

    def _thumbnails(self, rows: np.ndarray, side: int) -> list[RowImage]:
        data = self._report.data
        return thumbnails(data.cache, data.cache_rows(rows), images=self._images, side=side, progress=self._progress)

    def picture_counts(self) -> dict[str, Any]:
        """Pictures asked for, missing, and the count per reason, the most frequent first."""
        problems = Counter(picture.problem for picture in self._pictures.values() if not picture.uri)
        return {"asked": len(self._pictures), "missing": problems.total(), "problems": dict(problems.most_common())}

    def _cards(self, rows: np.ndarray) -> list[dict[str, Any]]:
        names = ("key", "picture", "chance", "likelihood", "truth", "note")
        columns = zip(
            map(visible, self._report.data.keys(rows)),
            [self._pictures[row] for row in rows.tolist()],
            self._report.posterior(rows).tolist(),
            _likelihoods(self._report, rows),
            _true_classes(self._report, rows),
            [_DECISIONS[decision] for decision in self._report.data.labels.reviewed[rows].tolist()],
            strict=True,
        )
        return [dict(zip(names, values, strict=True)) for values in columns]

    def map_points(self, layout: EmbeddingMap) -> dict[str, Any]:
        """Points of the map as data of the page's script."""
        report, rows = self._report, layout.rows
        pictures = self._thumbnails(rows, _MAP_SIDE)
        likely = _likelihoods(report, rows)
        points: dict[str, Any] = {
            "pca": layout.pca.tolist(),
            "tsne": None if layout.tsne is None else layout.tsne.tolist(),
            "posterior": np.round(report.posterior(rows), 3).tolist(),
            "likely": [f"{text} likely positive" if text.endswith("%") else text for text in likely],
            "labelled": report.data.labels.positive[rows].astype(int).tolist(),
            "key": [visible(key) for key in report.data.keys(rows)],
            "picture": [picture.uri for picture in pictures],
            "problem": [picture.problem for picture in pictures],
        }
        return points if report.truth is None else points | {"truth": _true_classes(report, rows)}


def _gallery_rows(report: TrainedReport, seed: int) -> dict[str, np.ndarray]:
    labelled, ranked = report.labelled, report.ranked
    drawn = np.random.default_rng(seed).permutation(labelled)[:_SHOWN]
    unsure = np.argsort(np.abs(report.posterior(ranked) - 0.5), kind="stable")[:_SHOWN]
    # if labelled and likely positives differ: the rows of each that are least similar to the other
    by_likeness = report.scar.rows_by_likeness if report.scar.verdict == "differ" else np.empty(0, np.int64)
    is_labelled = report.data.labels.s[by_likeness] == 1
    return {
        "labelled": np.sort(drawn),
        "doubted": report.look_again,
        "unlike_found": by_likeness[is_labelled][: _SHOWN // 2],
        "unlike_labelled": by_likeness[~is_labelled][::-1][: _SHOWN // 2],
        "twins": report.twins[0][: _SHOWN // 2],
        "top": ranked[:_SHOWN],
        "doubtful": ranked[unsure],
    }


def _largest_groups(group: np.ndarray) -> list[np.ndarray]:
    numbers, sizes = np.unique(group, return_counts=True)
    order = np.argsort(-sizes, kind="stable")[:_GROUPS]
    return [np.flatnonzero(group == numbers[index])[:_GROUP_CARDS] for index in order if sizes[index] > 1]


def _likelihoods(report: TrainedReport, rows: np.ndarray) -> list[str]:
    """How likely each image is to be positive: in per cent, or by its margin where these are not stated."""
    if report.trained.figures_.has_probabilities:
        return [probability(float(posterior)) for posterior in report.posterior(rows)]
    return [f"margin {margin:.2f}" for margin in report.margins_of(rows)]


def _true_classes(report: TrainedReport, rows: np.ndarray) -> list[str]:
    """True class of each row in words; "" without truth."""
    return [""] * len(rows) if report.truth is None else [_CLASSES[int(true)] for true in report.truth[rows]]


def _map_numbers(report: TrainedReport, layout: EmbeddingMap) -> dict[str, Any]:
    """Images on the map, the variance explained, and shares of likely positives among neighbours and all images."""
    near_labelled = everywhere = None  # without probabilities
    if report.trained.figures_.has_probabilities:
        labelled = report.data.labels.s[layout.rows] == 1
        likely = labelled | (report.posterior(layout.rows) > 0.5)
        points = layout.pca if layout.tsne is None else layout.tsne
        near_labelled, everywhere = shares_of_likely(points, labelled, likely)
    shown = {"shown": len(layout.rows), "explained": layout.explained}
    return shown | {"near_labelled": near_labelled, "everywhere": everywhere}
