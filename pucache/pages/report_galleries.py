"""The images that the report shows, in groups, and as points of a map."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..progress import Progress
from .embedding_map import EmbeddingMap, choose_rows, company, embedding_map
from .report_data import Evidence
from .thumbnails import Thumbnail, thumbnails

SHOWN = 24  # images of a gallery
_GROUPS, _OF_A_GROUP = 6, 6
_SIDE, _MAP_SIDE = 112, 56  # pixels
_UNSEEN = re.compile("[\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_CLASSES = {1: "positive", 0: "negative", -1: "not known"}


@dataclass(frozen=True)
class Card:
    """An image of a gallery; `posterior` is its chance in words, `truth` "" where none was given."""

    key: str
    picture: Thumbnail
    chance: float
    posterior: str
    note: str
    truth: str


class Galleries:
    """Chooses rows for each gallery, and makes their pictures all at once.

    Parameters
    ----------
    evidence : Evidence
    images : str or path, optional
        Where the images are by now.
    seed : int
        Of the random samples.
    progress : Progress, optional
    """

    def __init__(self, evidence: Evidence, *, images: str | Path | None, seed: int, progress: Progress | None):
        self._evidence, self._images, self._progress = evidence, images, progress
        self._rows = _rows(evidence, seed)
        self._copies = _largest_groups(evidence.data.group)
        every = np.unique(np.concatenate([*self._rows.values(), *self._copies]))
        self._pictures = dict(zip(every.tolist(), self._thumbnails(every, _SIDE), strict=True))

    def _thumbnails(self, rows: np.ndarray, side: int) -> list[Thumbnail]:
        cache = self._evidence.data.cache
        return thumbnails(cache, rows, images=self._images, side=side, progress=self._progress)

    def cards(self) -> dict[str, list[Card]]:
        """The cards of each gallery: labelled, doubted, unlike_found, unlike_labelled, twins, top, doubtful."""
        found = {name: self._of(rows) for name, rows in self._rows.items()}
        twins = dict(zip(*(rows.tolist() for rows in self._evidence.twins), strict=True))
        notes = [f"same picture as {visible(self._key(twins[row]))}" for row in self._rows["twins"].tolist()]
        return found | {"twins": self._of(self._rows["twins"], notes)}

    def copies(self) -> list[list[Card]]:
        """The largest groups of images that are the same picture."""
        return [self._of(rows) for rows in self._copies]

    def pictures(self) -> dict[str, Any]:
        """How many pictures were asked for, how many are missing, and the reasons, the most frequent first."""
        problems = Counter(one.problem for one in self._pictures.values() if not one.uri)
        return {"asked": len(self._pictures), "missing": problems.total(), "problems": dict(problems.most_common())}

    def _key(self, row: int) -> str:
        return self._evidence.data.cache.keys[row]

    def _of(self, rows: np.ndarray, notes: list[str] | None = None) -> list[Card]:
        truth = None if self._evidence.truth is None else self._evidence.truth[rows]
        return [
            Card(
                visible(self._key(row)),
                self._pictures[row],
                float(posterior),
                probability(float(posterior)),
                notes[at] if notes else "",
                "" if truth is None else _CLASSES[int(truth[at])],
            )
            for at, (row, posterior) in enumerate(zip(rows.tolist(), self._evidence.posterior(rows), strict=True))
        ]

    def points(self, sample: int, seed: int) -> tuple[EmbeddingMap, dict[str, Any]]:
        """The map, and its points for the page's script."""
        evidence = self._evidence
        rows = choose_rows(evidence.labelled, evidence.unlabelled, evidence.ranked, sample=sample, seed=seed)
        laid = embedding_map(evidence.data.cache.X, rows, seed=seed)
        pictures = self._thumbnails(rows, _MAP_SIDE)
        points: dict[str, Any] = {
            "pca": laid.pca.tolist(),
            "tsne": None if laid.tsne is None else laid.tsne.tolist(),
            "posterior": np.round(evidence.posterior(rows), 3).tolist(),
            "likely": [probability(float(posterior)) for posterior in evidence.posterior(rows)],
            "labelled": evidence.data.labels.positive[rows].astype(int).tolist(),
            "key": [visible(key) for key in evidence.data.cache.keys[rows]],
            "picture": [one.uri for one in pictures],
            "problem": [one.problem for one in pictures],
        }
        if evidence.truth is not None:
            points["truth"] = [_CLASSES[int(true)] for true in evidence.truth[rows]]
        return laid, points

    def company(self, laid: EmbeddingMap) -> tuple[float, float]:
        """How likely positive the neighbours of labelled positives are on the map, see `embedding_map.company`."""
        labelled = self._evidence.data.s[laid.rows] == 1
        likely = labelled | (self._evidence.posterior(laid.rows) > 0.5)
        return company(laid.pca if laid.tsne is None else laid.tsne, labelled, likely)


def _rows(evidence: Evidence, seed: int) -> dict[str, np.ndarray]:
    labelled, ranked = evidence.labelled, evidence.ranked
    drawn = np.random.default_rng(seed).permutation(labelled)[:SHOWN]
    doubt = np.argsort(evidence.posterior(labelled), kind="stable")[: SHOWN // 2]
    unsure = np.argsort(np.abs(evidence.posterior(ranked) - 0.5), kind="stable")[:SHOWN]
    return {
        "labelled": np.sort(drawn),
        "doubted": labelled[doubt],
        **_unlike(evidence),
        "twins": evidence.twins[0][: SHOWN // 2],
        "top": ranked[:SHOWN],
        "doubtful": ranked[unsure],
    }


def _unlike(evidence: Evidence) -> dict[str, np.ndarray]:
    """Labelled positives least like the found and found ones least like the labelled, where the two kinds differ."""
    apart = evidence.scar.rows_by_likeness if evidence.scar.verdict == "differ" else np.empty(0, np.int64)
    is_labelled = evidence.data.s[apart] == 1
    return {
        "unlike_found": apart[is_labelled][: SHOWN // 2],
        "unlike_labelled": apart[~is_labelled][::-1][: SHOWN // 2],
    }


def _largest_groups(group: np.ndarray) -> list[np.ndarray]:
    numbers, sizes = np.unique(group, return_counts=True)
    order = np.argsort(-sizes, kind="stable")[:_GROUPS]
    return [np.flatnonzero(group == numbers[at])[:_OF_A_GROUP] for at in order if sizes[at] > 1]


def visible(key: str) -> str:
    """Write what cannot be seen so that it is: control characters by their pictures, other marks by their code."""
    key = re.sub("[\0-\x1f]", lambda found: chr(0x2400 + ord(found[0])), key)
    return _UNSEEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", key)


def probability(value: float) -> str:
    """Write a probability; never 0 % or 100 %, which none is."""
    if value < 0.001:
        return "under 0.1 %"
    if value > 0.999:
        return "over 99.9 %"
    return f"{100 * value:.1f} %"
