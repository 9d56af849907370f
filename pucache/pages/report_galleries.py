"""Image galleries of the report, and the points of its map."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..progress import Progress
from .embedding_map import EmbeddingMap, shares_of_likely
from .report_data import ReportData
from .report_numbers import MapNumbers, Pictures
from .thumbnails import Thumbnail, thumbnails

SHOWN = 24  # images of a gallery
_GROUPS, _GROUP_CARDS = 6, 6
_SIDE, _MAP_SIDE = 112, 56  # pixels
_INVISIBLE = re.compile("[\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_CLASSES = {1: "positive", 0: "negative", -1: "not known"}


@dataclass(frozen=True)
class Card:
    """An image of a gallery.

    Attributes
    ----------
    key : str
        With invisible characters written out.
    picture : Thumbnail
    chance : float
        Probability of being positive.
    posterior : str
        `chance` in per cent; the margin where the labels are too few for probabilities.
    note : str
    truth : str
        "positive", "negative", "not known", or "" without truth.
    """

    key: str
    picture: Thumbnail
    chance: float
    posterior: str
    note: str
    truth: str


class Galleries:
    """Galleries of the report; the thumbnails of all of them are made together.

    Parameters
    ----------
    report : ReportData
    images : str or path, optional
        Source of the images; by default that of each cache file.
    seed : int
        Seed of the random samples.
    progress : Progress, optional
    """

    def __init__(self, report: ReportData, *, images: str | Path | None, seed: int, progress: Progress | None):
        self._report, self._images, self._progress = report, images, progress
        self._rows = _rows(report, seed)
        self._copies = _largest_groups(report.data.group)
        rows = np.unique(np.concatenate([*self._rows.values(), *self._copies]))
        self._pictures = dict(zip(rows.tolist(), self._thumbnails(rows, _SIDE), strict=True))

    def _thumbnails(self, rows: np.ndarray, side: int) -> list[Thumbnail]:
        data = self._report.data
        return thumbnails(data.cache, data.cache_rows(rows), images=self._images, side=side, progress=self._progress)

    def cards(self) -> dict[str, list[Card]]:
        """Cards by gallery: labelled, doubted, unlike_found, unlike_labelled, twins, top, doubtful."""
        cards = {name: self._cards(rows) for name, rows in self._rows.items()}
        twins = dict(zip(*(rows.tolist() for rows in self._report.twins), strict=True))
        notes = [f"same picture as {visible(self._key(twins[row]))}" for row in self._rows["twins"].tolist()]
        return cards | {"twins": self._cards(self._rows["twins"], notes)}

    def copies(self) -> list[list[Card]]:
        """Cards of the largest groups of images that show the same picture."""
        return [self._cards(rows) for rows in self._copies]

    def pictures(self) -> Pictures:
        """Counts of the requested and the missing pictures."""
        problems = Counter(picture.problem for picture in self._pictures.values() if not picture.uri)
        return Pictures(asked=len(self._pictures), missing=problems.total(), problems=dict(problems.most_common()))

    def _key(self, row: int) -> str:
        return self._report.data.keys(np.array([row]))[0]

    def _cards(self, rows: np.ndarray, notes: list[str] | None = None) -> list[Card]:
        truth = None if self._report.truth is None else self._report.truth[rows]
        texts = self._texts(rows)
        return [
            Card(
                key=visible(self._key(row)),
                picture=self._pictures[row],
                chance=float(posterior),
                posterior=texts[index],
                note=notes[index] if notes else "",
                truth="" if truth is None else _CLASSES[int(truth[index])],
            )
            for index, (row, posterior) in enumerate(zip(rows.tolist(), self._report.posterior(rows), strict=True))
        ]

    def _texts(self, rows: np.ndarray) -> list[str]:
        """How likely each image is to be positive: in per cent, or by its margin where the labels are too few."""
        if self._report.count.has_estimates:
            return [probability(float(posterior)) for posterior in self._report.posterior(rows)]
        return [f"margin {margin:.2f}" for margin in self._report.margins_of(rows)]

    def map_points(self, layout: EmbeddingMap) -> dict[str, Any]:
        """Points of the map as data of the page's script."""
        report, rows = self._report, layout.rows
        pictures = self._thumbnails(rows, _MAP_SIDE)
        points: dict[str, Any] = {
            "pca": layout.pca.tolist(),
            "tsne": None if layout.tsne is None else layout.tsne.tolist(),
            "posterior": np.round(report.posterior(rows), 3).tolist(),
            "likely": [f"{text} likely positive" if text.endswith("%") else text for text in self._texts(rows)],
            "labelled": report.data.labels.positive[rows].astype(int).tolist(),
            "key": [visible(key) for key in report.data.keys(rows)],
            "picture": [picture.uri for picture in pictures],
            "problem": [picture.problem for picture in pictures],
        }
        if report.truth is not None:
            points["truth"] = [_CLASSES[int(true_class)] for true_class in report.truth[rows]]
        return points

    def map_numbers(self, layout: EmbeddingMap) -> MapNumbers:
        """Counts of the map, and shares of likely positives among neighbours on it."""
        if not self._report.count.has_estimates:
            return MapNumbers(shown=len(layout.rows), explained=layout.explained, near_labelled=None, everywhere=None)
        labelled = self._report.data.s[layout.rows] == 1
        likely = labelled | (self._report.posterior(layout.rows) > 0.5)
        points = layout.pca if layout.tsne is None else layout.tsne
        near_labelled, everywhere = shares_of_likely(points, labelled, likely)
        return MapNumbers(
            shown=len(layout.rows), explained=layout.explained, near_labelled=near_labelled, everywhere=everywhere
        )


def _rows(report: ReportData, seed: int) -> dict[str, np.ndarray]:
    labelled, ranked = report.labelled, report.ranked
    drawn = np.random.default_rng(seed).permutation(labelled)[:SHOWN]
    lowest = np.argsort(report.posterior(labelled), kind="stable")[: SHOWN // 2]
    unsure = np.argsort(np.abs(report.posterior(ranked) - 0.5), kind="stable")[:SHOWN]
    return {
        "labelled": np.sort(drawn),
        "doubted": labelled[lowest],
        **_unlike(report),
        "twins": report.twins[0][: SHOWN // 2],
        "top": ranked[:SHOWN],
        "doubtful": ranked[unsure],
    }


def _unlike(report: ReportData) -> dict[str, np.ndarray]:
    """If labelled and likely positives differ: the rows of each that are least similar to the other."""
    by_likeness = report.scar.rows_by_likeness if report.scar.verdict == "differ" else np.empty(0, np.int64)
    is_labelled = report.data.s[by_likeness] == 1
    return {
        "unlike_found": by_likeness[is_labelled][: SHOWN // 2],
        "unlike_labelled": by_likeness[~is_labelled][::-1][: SHOWN // 2],
    }


def _largest_groups(group: np.ndarray) -> list[np.ndarray]:
    numbers, sizes = np.unique(group, return_counts=True)
    order = np.argsort(-sizes, kind="stable")[:_GROUPS]
    return [np.flatnonzero(group == numbers[index])[:_GROUP_CARDS] for index in order if sizes[index] > 1]


def visible(key: str) -> str:
    """Replace control characters by their symbols, and other invisible characters by their code points."""
    key = re.sub("[\0-\x1f]", lambda match: chr(0x2400 + ord(match[0])), key)
    return _INVISIBLE.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", key)


def probability(value: float) -> str:
    """Format a probability in per cent; never as 0 % or 100 %."""
    if value < 0.001:
        return "under 0.1 %"
    if value > 0.999:
        return "over 99.9 %"
    return f"{100 * value:.1f} %"
