"""Groups that nobody named: labels that lie in few videos, patients or sites whose images are much alike.

Such labels are worth far fewer than they are, and estimates that count each of them are confidently wrong. Two signs
tell them from independent images, whatever these show, in whatever folders they lie and however labels were chosen.

1. Neighbours. Around an image of an independent pile the distances d_1 <= d_2 <= ... of the others grow smoothly: the
   spacings j * log(d_{j+1} / d_j) are exponential variables of one mean, the inverse of the dimension (Levina and
   Bickel 2004). Behind the last frame of a video lies a gap: a spacing many times as great as their median.
2. Names. Images that stand next to each other in the listing are no nearer than others of their folder, unless they
   are frames that follow each other. Folders of a class, of a month or of a site pass both.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..neighbours.whitening import centred_units
from ..storage.rows import RowMatrix, evenly_spaced, release_pages, row_slices, take_rows
from ..threads import one_blas_thread
from .groups import numbered

if TYPE_CHECKING:
    from ..cache.embedding_cache import EmbeddingCache

FOLDER = "(.*)/[^/]*"
# folder; what stands before the last number of a name; the name less its last digits
PATTERNS = (FOLDER, r"(.*\D)\d+\D*\.[^./]*$", *(rf"(.*)\d{{{digits}}}\.[^./]*$" for digits in (3, 2, 1)))
LEAST = 10  # labels; with fewer nothing is estimated, and nothing can be said of them
GAP = 16.0  # times the median spacing, which is exceeded around one independent image in a hundred
SHOW_GAP, ARE_NEXT = 0.4, 0.5  # shares of images with a gap, and of near ones beside them in the listing
FEWER = 0.8  # groups that hold the labels, relative to what chance would give
_PROBES, _NEAREST = 64, 64  # labelled images looked at, and their neighbours
_NEXT = 10  # of these, which may be beside an image in the listing
_SHARE_OF_ROWS = 20  # neighbours are at most one in so many rows
_FITS, _AS_GOOD = 0.5, 0.8  # share of the neighbours that are of the group; relative to the best pattern
_LARGER = 3  # times the neighbourhood that a group may be
_FOLDER = 4 * _NEXT  # rows; in smaller folders near images are beside each other by chance
_MEAN_ROWS = 4096
_LABELLED = 1024  # whose neighbourhoods are joined where names do not tell groups


@dataclass(frozen=True, eq=False)
class UnnamedGroups:
    """Groups that hold labels, and are taken for named ones until the user says otherwise."""

    # first row of each row's group; without a pattern neighbourhoods are joined until they are too few for any figure
    group: np.ndarray
    labelled: int  # positives, copies once
    holding: int  # groups that they lie in
    by_chance: int  # groups that would hold as many images drawn at random
    pattern: str = ""  # on keys, which tells groups; "" where names do not

    def sentence(self, cache: EmbeddingCache, sources: Sequence[str]) -> str:
        """What was seen, what follows from it, and what to type."""
        where, named = "neighbourhoods of images that look alike", "TABLE"
        if self.pattern:
            kind = "folders" if self.pattern == FOLDER else "runs of names"
            where = f"of {len(np.unique(self.group)):,} {kind}, each of images that look alike"
            named = shlex.quote(self.pattern)
        stated = "Figures count each group as one label" if self.pattern else "No figure is stated"
        caches = " ".join(shlex.quote(str(file.path)) for file in cache.files)
        labels = " ".join(shlex.quote(source) for source in sources) or "LABELS"
        out = " --out grouped.csv" * ("labels.csv" in sources)  # which the command would write
        return (
            f"{self.labelled:,} labelled positives lie in {self.holding:,} {where}; drawn at random they would lie in "
            f"about {self.by_chance:,}. {stated} until you name groups: pucache labels "
            f"{caches} {labels} --groups {named}{out} (none: all images are independent)"
        )


def find_unnamed_groups(
    X: RowMatrix, keys: Sequence[str], labelled: np.ndarray, twin: np.ndarray, numbers: np.ndarray | None = None
) -> UnnamedGroups | None:
    """Look whether labels lie in few groups of images that are not independent.

    `labelled` are rows, int64 (m,), ascending; rows that show the same picture, `twin` int64 (n,), count once.
    `numbers` are the positions of the rows among the keys, where these are those of more rows. None where no sign of
    groups is seen, or labels are spread over as many as chance would give.
    """
    first = labelled[np.unique(twin[labelled], return_index=True)[1]]
    count = min(_NEAREST, len(X) // _SHARE_OF_ROWS)
    if len(first) < LEAST or count < _NEXT:
        return None
    probes = first[evenly_spaced(len(first), _PROBES)]
    near, distance = _nearest(X, probes, count, twin)
    sizes = _neighbourhoods(distance)
    has_gaps = (sizes > 0).mean() >= SHOW_GAP

    def folder(row: int) -> str:
        return keys[row if numbers is None else int(numbers[row])].rpartition("/")[0]

    if not has_gaps and _share_next(probes, near, twin, folder) < ARE_NEXT:
        return None
    largest = _LARGER * (1 + int(np.median(sizes[sizes > 0]))) if has_gaps else len(X)
    listed = keys if numbers is None else [keys[number] for number in numbers.tolist()]
    pattern, group = _pattern(listed, probes, near, largest)
    if group is None:
        group = _joined(X, first[evenly_spaced(len(first), _LABELLED)], count, twin, has_gaps=has_gaps)
    _, of = np.unique(group, return_inverse=True)
    by_chance = round(float((1 - (1 - np.bincount(of) / len(of)) ** len(first)).sum()))
    held = np.unique(group[first])
    if not pattern:  # those of unlabelled rows are not known, so that estimates would fail: too few groups for any
        stands_for = np.arange(len(group))
        stands_for[held] = held[np.arange(len(held)) % (LEAST - 1)]
        group = stands_for[group]
    found = UnnamedGroups(group, len(first), len(held), by_chance, pattern)
    return found if found.holding < FEWER * min(len(first), by_chance) else None


@one_blas_thread
def _nearest(X: RowMatrix, rows: np.ndarray, count: int, twin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The nearest other pictures of some rows, ascending by distance, int64 (m, count), and their distances."""
    mean = take_rows(X, evenly_spaced(len(X), _MEAN_ROWS)).mean(0, dtype=np.float64).astype(np.float32)
    units = centred_units(take_rows(X, rows), mean)
    near: np.ndarray = np.zeros((len(rows), 0), np.int64)
    cosine: np.ndarray = np.zeros((len(rows), 0), np.float32)
    for part in row_slices(*X.shape):
        found = units @ centred_units(np.array(X[part]), mean).T
        found[twin[rows][:, None] == twin[part]] = -1
        near = np.concatenate([near, np.broadcast_to(np.arange(part.start, part.stop), found.shape)], axis=1)
        cosine = np.concatenate([cosine, found], axis=1)
        best = np.argpartition(-cosine, min(count, cosine.shape[1]) - 1, axis=1)[:, :count]
        near, cosine = np.take_along_axis(near, best, axis=1), np.take_along_axis(cosine, best, axis=1)
        release_pages(X)
    order = np.argsort(-cosine, axis=1, kind="stable")
    near, cosine = np.take_along_axis(near, order, axis=1), np.take_along_axis(cosine, order, axis=1)
    return near, np.sqrt(np.maximum(2 - 2 * cosine.astype(np.float64), 1e-12))


def _neighbourhoods(distance: np.ndarray) -> np.ndarray:
    """Neighbours before the gap around each row, int64 (m,); 0 where there is none. `distance` (m, k) ascends."""
    j = np.arange(1, distance.shape[1])
    spacing = j * np.log(distance[:, 1:] / distance[:, :-1])
    middle = np.median(spacing, axis=1)  # 0 where many distances are equal, as of attributes that are yes or no
    return np.where((middle > 0) & (spacing.max(1) > GAP * middle), j[spacing.argmax(1)], 0)


def _share_next(rows: np.ndarray, near: np.ndarray, twin: np.ndarray, folder: Callable[[int], str]) -> float:
    """Share of the pictures beside rows in the listing, in large folders, that are among the nearest of these rows."""
    counts = []
    for row, of_row in zip(rows.tolist(), near[:, :_NEXT], strict=True):
        ends = [end for end in (row - _FOLDER, row + _FOLDER) if 0 <= end < len(twin)]
        if any(folder(end) == folder(row) for end in ends):
            counts += [
                other in of_row for other in (row - 1, row + 1) if 0 <= other < len(twin) and twin[other] != twin[row]
            ]
    return float(np.mean(counts)) if counts else 0.0


def _pattern(keys: Sequence[str], rows: np.ndarray, near: np.ndarray, largest: int) -> tuple[str, np.ndarray | None]:
    """The coarsest pattern whose groups hold the neighbours of rows as well as the best one, and the groups."""
    fits: dict[str, tuple[float, np.ndarray]] = {}
    for pattern in PATTERNS:
        found = map(re.compile(pattern).search, keys)
        group = numbered(["" if one is None else one.group(1) for one in found])
        size = np.bincount(group, minlength=len(group))[group[rows]]
        if 2 <= np.median(size) <= largest and len(np.unique(group)) > 1:
            counted = np.arange(near.shape[1]) < (size - 1)[:, None]
            is_of_group = (group[near] == group[rows][:, None]) & counted
            fit = float((is_of_group.sum(1) / np.maximum(counted.sum(1), 1)).mean())
            if fit >= _FITS:
                fits[pattern] = fit, group
    for pattern, (fit, group) in fits.items():
        if fit >= _AS_GOOD * max(fit for fit, _ in fits.values()):
            return pattern, group
    return "", None


def _joined(X: RowMatrix, rows: np.ndarray, count: int, twin: np.ndarray, *, has_gaps: bool) -> np.ndarray:
    """Groups of rows and their neighbours: those before the gap, or else near ones that are next in the listing."""
    from scipy.sparse import coo_array, csgraph

    near, distance = _nearest(X, rows, count, twin)
    position = np.arange(count)
    if has_gaps:
        together = position < _neighbourhoods(distance)[:, None]
    else:
        together = (position < _NEXT) & (np.abs(near - rows[:, None]) == 1)
    of, place = np.nonzero(together)
    edges = coo_array((np.ones(len(of), bool), (rows[of], near[of, place])), shape=(len(X), len(X)))
    number = csgraph.connected_components(edges, directed=False)[1]
    return np.unique(number, return_index=True)[1][number]
