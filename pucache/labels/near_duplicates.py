"""Images that show the same picture: equal bytes, or embeddings that nearly coincide.

Training, retrieval and review search them here: groups among all images, or duplicates of the labelled ones.

For unit rows u and v, |u - v|^2 = 2 - 2 cos(u, v), and an orthogonal projection can only shorten
u - v. So every pair above a cosine lies within sqrt(2 - 2 cosine) in a few dimensions, where a
k-d tree finds it; each pair found there is measured again in all dimensions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from ..cache.embedding_cache import EmbeddingCache
from ..devices import cores
from ..neighbours.whitening import centred_units, leading_subspace, put, units_and_norms
from ..storage.rows import RowMatrix, evenly_spaced, release_pages, row_slices, take_rows
from ..threads import one_blas_thread

if TYPE_CHECKING:
    import torch
    from scipy.spatial import cKDTree

_Pairs = tuple[np.ndarray, np.ndarray]
_DIRECTIONS = 20  # dimensions in which pairs are compared before all dimensions
_TREE_DIMENSIONS = 8  # of the k-d tree, which is slow in more
_SAMPLE = 1024  # rows that the directions are estimated from
_BLOCK_VALUES = 1 << 21  # values of X worked on at once
_PAIRS = 1 << 20  # pairs in memory at once; a row with more neighbours is taken alone
_PAIRS_COMPARED = 1 << 16  # pairs whose projections are compared at once
_CROWD = 1 << 10  # neighbours from which on those of the same group are left out of the search
_ROUNDING = 1e-6  # of distances between unit rows in float32
_SLACK = 1e-5  # added to distances between projections
_COSINE_ROUNDING = 1e-6  # error of a cosine in float32
_COSINE_DOUBT = 1e-5  # beyond it, the rounding of a matrix product decides nothing
_LABELLED_PER_BLOCK = 1 << 12


def groups(
    X: RowMatrix,
    digests: RowMatrix | None = None,
    *,
    cosine: float | None = 0.999,
    device: torch.device | None = None,
) -> np.ndarray:
    """Number the groups of rows that show the same picture: the smallest row of each row's group, int64 (n,).

    Two rows are twins when their digests are equal, their embeddings are equal byte for byte, or
    the cosine of their embeddings reaches the limit; a group is whatever twins of twins connect.
    No twin is missed; cosines are exact to about 1e-8. Rows of zeros are near each other only.

    X (n, d) may be mapped, and is read in blocks. `digests` (n, 32) are of the image bytes; a row of zeros is unknown,
    and equal to none. `cosine` is the least one of twins, 1 for the same direction up to rounding, and None, or above
    1, for equal bytes only; it is meant to be close to 1, as the time grows with the number of pairs near it. Raises
    ValueError where it is not above 0, where shapes do not fit, and where embeddings are not finite.
    """
    if X.ndim != 2 or (digests is not None and digests.shape != (len(X), 32)):
        shape = (len(X), 32) if digests is None else digests.shape
        raise ValueError(f"expected X (n, d) and digests (n, 32); got X {X.shape} and digests {shape}")
    scan = DuplicateScan(X.shape, lambda rows: take_rows(X, rows), cosine, device)
    step = max(1, _BLOCK_VALUES // max(1, X.shape[1]))
    for start in range(0, len(X), step):
        scan.add(start, np.array(X[start : start + step]))
        release_pages(X)
    return scan.groups(X, digests)


class DuplicateScan:
    """One pass over the rows of X, after which their groups can be computed.

    `take` returns a copy of some rows of X, (m, d), given their ascending numbers; `cosine` is that of `groups`. A GPU
    projects the rows.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        take: Callable[[np.ndarray], np.ndarray],
        cosine: float | None,
        device: torch.device | None = None,
    ):
        limit = 2.0 if cosine is None else cosine
        if not limit > 0:
            raise ValueError(f"cosine must be in (0, 1], or None for equal bytes only; got {cosine}")
        n, self._limit = shape[0], limit
        self._gpu = device if device is not None and device.type == "cuda" else None
        basis = _directions(shape, take, _DIRECTIONS if limit <= 1 else 0)
        self._basis = put(basis, self._gpu)
        self._content = np.empty((n, 2), np.uint64)  # half of SHA-256
        self._not_zero = np.empty(n, bool)
        self._projection = np.empty((n, basis.shape[1]), np.float32)

    @one_blas_thread
    def add(self, start: int, block: np.ndarray) -> None:
        """Take the rows from ``start`` on, (b, d) in C order; raises `ValueError` where one is not finite."""
        rows = slice(start, start + len(block))
        unit, norm = units_and_norms(put(block, self._gpu))  # a GPU works on it while the host hashes
        projection = unit @ self._basis
        hashes = b"".join(hashlib.sha256(row).digest()[:16] for row in block)
        self._content[rows] = np.frombuffer(hashes, np.uint64).reshape(-1, 2)
        if self._gpu is not None:
            projection, norm = projection.cpu().numpy(), norm.cpu().numpy()
        bad = np.flatnonzero(~np.isfinite(norm))
        if len(bad):
            raise ValueError(f"X holds NaN or infinite values, first in row {start + bad[0]}")
        self._not_zero[rows], self._projection[rows] = norm > 0, projection

    def groups(self, X: RowMatrix, digests: RowMatrix | None = None) -> np.ndarray:
        """Groups of all rows, int64 (n,), once each row has been added; to be called once, as it frees the scan.

        Pairs of near duplicates are read once more from X; `digests` are as for `groups`.
        """
        parent = np.arange(len(self._not_zero))
        if digests is not None:
            _join_equal_digests(parent, digests)
        rows = _repeated(self._content[:, 0])
        distinct = self._not_zero.copy()
        distinct[rows] = False
        first = _join_equal(parent, rows, self._content[rows].view("V16").ravel())
        distinct[first] = self._not_zero[first]
        del self._content
        if self._limit <= 1:
            zero = np.flatnonzero(~self._not_zero)  # not all equal in bytes, as there is -0.0
            _join(parent, zero, zero[:1].repeat(len(zero)))
            rows = np.flatnonzero(distinct)
            projection = self._projection[rows]
            del self._projection
            if len(rows):
                _join_near(parent, X, rows, projection, max(float(np.sqrt(2 - 2 * self._limit)), _ROUNDING))
        return _roots(parent, np.arange(len(parent)))


def joined_groups(*groupings: np.ndarray) -> np.ndarray:
    """Number whatever rows any of several groupings (n,) connect, as `groups` does, int64 (n,)."""
    rows = np.arange(len(groupings[0]))
    parent = rows.copy()
    for group in groupings:
        _join_equal(parent, rows, group)
    return _roots(parent, rows)


def equal_digests(digests: RowMatrix) -> np.ndarray:
    """Number the groups of rows with equal `digests` (n, 32), as `groups` does; one of zeros is equal to none."""
    parent = np.arange(len(digests))
    _join_equal_digests(parent, digests)
    return _roots(parent, np.arange(len(parent)))


def _join_equal_digests(parent: np.ndarray, digests: RowMatrix) -> None:
    recorded, words = np.empty(len(digests), bool), np.empty(len(digests), np.uint64)  # the first eight bytes of each
    for part in row_slices(*digests.shape):
        block = np.ascontiguousarray(digests[part])
        recorded[part], words[part] = block.any(1), block.view(np.uint64)[:, 0]
        release_pages(digests)
    rows = np.flatnonzero(recorded)
    rows = rows[_repeated(words[rows])]  # few: only these are compared in full
    _join_equal(parent, rows, take_rows(digests, rows).view("V32").ravel())


def _repeated(words: np.ndarray) -> np.ndarray:
    """Positions of the words that occur more than once, int64 (m,), ascending."""
    order = np.argsort(words)
    in_order = words[order]
    occurs_again = np.zeros(len(words), bool)
    occurs_again[1:] = in_order[1:] == in_order[:-1]
    occurs_again[:-1] |= occurs_again[1:]
    return np.sort(order[occurs_again])


def unlabelled_twins(group: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Unlabelled rows that share a group with a labelled positive, so that they are positive too.

    Returns these rows, int64 (m,), ascending, and the first labelled positive of the group of each.
    """
    positive = np.flatnonzero(s == 1)
    numbers, first = np.unique(group[positive], return_index=True)
    rows = np.flatnonzero((s != 1) & np.isin(group, numbers))
    return rows, positive[first[np.searchsorted(numbers, group[rows])]]


def _directions(shape: tuple[int, int], take: Callable[[np.ndarray], np.ndarray], count: int) -> np.ndarray:
    """Orthonormal (d, k), k <= count. Any directions find every pair; those of most variance admit few others."""
    n, d = shape
    basis = np.random.default_rng(0).normal(size=(d, min(count, d, n))).astype(np.float32)
    sample = centred_units(take(evenly_spaced(n, _SAMPLE)))
    sample -= sample.mean(0) if n else 0
    return leading_subspace(sample, basis)


# Union-find. parent (n,): a row of the same group that is not larger; the smallest of a group is its own parent.


def _roots(parent: np.ndarray, rows: np.ndarray) -> np.ndarray:
    root = parent[rows]
    while (parent[root] != root).any():
        root = parent[rows] = parent[root]  # path compression
    return root


def _join(parent: np.ndarray, first: np.ndarray, second: np.ndarray) -> None:
    while len(first):
        a, b = _roots(parent, first), _roots(parent, second)
        apart = a != b
        first, second, a, b = first[apart], second[apart], a[apart], b[apart]
        np.minimum.at(parent, np.maximum(a, b), np.minimum(a, b))


def _join_equal(parent: np.ndarray, rows: np.ndarray, content: np.ndarray) -> np.ndarray:
    """Join the rows of equal content; returns the first row of each content."""
    _, first, inverse = np.unique(content, return_index=True, return_inverse=True)
    _join(parent, rows, rows[first[inverse]])
    return rows[first]


def _tree(projection: np.ndarray) -> cKDTree:
    """Tree of the leading coordinates."""
    from scipy.spatial import cKDTree

    return cKDTree(projection[:, :_TREE_DIMENSIONS].astype(np.float64), leafsize=64)


def _join_near(parent: np.ndarray, X: RowMatrix, rows: np.ndarray, projection: np.ndarray, radius: float) -> None:
    """Join the rows whose unit rows are within the radius."""
    order = _tree(projection).indices  # neighbours in space get nearby numbers
    rows, projection = rows[order], projection[order]
    step = max(1, _BLOCK_VALUES // (2 * X.shape[1]))
    for first, second in _candidates(parent, rows, projection, radius + _SLACK):
        for start in range(0, len(first), step):
            i, j = first[start : start + step], second[start : start + step]
            apart = _roots(parent, i) != _roots(parent, j)  # in a crowd, few are after the first blocks
            i, j = i[apart], j[apart]
            difference = centred_units(X[i]) - centred_units(X[j])
            twins = np.einsum("ij,ij->i", difference, difference) <= radius**2
            _join(parent, i[twins], j[twins])


def _candidates(parent: np.ndarray, rows: np.ndarray, projection: np.ndarray, radius: float) -> Iterator[_Pairs]:
    """Yield pairs that are near in projection, a bounded number at a time; in a crowd, not those joined already."""
    tree = _tree(projection)
    count = tree.query_ball_point(tree.data, radius, return_length=True, workers=cores())
    busy = np.flatnonzero(count > 1)  # each row is near itself
    for part in np.split(busy, 1 + np.flatnonzero(np.diff(np.cumsum(count[busy]) // _PAIRS))):
        others, nearby = np.arange(len(rows)), tree
        if count[part].max(initial=0) > _CROWD:
            others = _joinable(parent, rows, tree, part, radius)
            nearby = _tree(projection[others])
        neighbours = nearby.query_ball_point(tree.data[part], radius, return_sorted=False)
        i = np.repeat(part, np.array([len(row) for row in neighbours], np.intp))
        j = others[np.fromiter(chain.from_iterable(neighbours), np.intp, len(i))]
        i, j = i[i < j], j[i < j]
        starts = range(0, len(i), _PAIRS_COMPARED)
        parts = [slice(start, start + _PAIRS_COMPARED) for start in starts]
        squares = [np.square(projection[i[part]] - projection[j[part]]).sum(1) for part in parts]
        near = np.concatenate([np.empty(0), *squares]) <= radius**2
        yield rows[i[near]], rows[j[near]]


def _joinable(parent: np.ndarray, rows: np.ndarray, tree: cKDTree, part: np.ndarray, radius: float) -> np.ndarray:
    """Positions around a part of the tree; if the part is of one group, only those outside it."""
    centre = tree.data[part].mean(0)
    reach = np.linalg.norm(tree.data[part] - centre, axis=1).max() + radius
    others = np.array(tree.query_ball_point(centre, reach), np.intp)
    own_groups = np.unique(_roots(parent, rows[part]))
    return others if len(own_groups) > 1 else others[_roots(parent, rows[others]) != own_groups]


# Duplicates of labelled images.


def duplicates_of(
    cache: EmbeddingCache, rows: np.ndarray, labelled_rows: np.ndarray, cosine: float | None
) -> np.ndarray:
    """Mark rows (m,) that show the same picture as a labelled one (p,), by its digest or the cosine to it; bool (m,).

    Both are ascending. `cosine` is the least one of duplicates, between embeddings as stored, not centred; None, or
    above 1, for digests only.
    """
    digests = cache.digest_matrix
    known = take_rows(digests, labelled_rows)
    is_duplicate = np.isin(_as_bytes(take_rows(digests, rows)), _as_bytes(known[known.any(1)]))  # zeros are unknown
    if cosine is None or cosine > 1:
        return is_duplicate
    labelled = centred_units(cache.take(labelled_rows))
    for part in row_slices(len(rows), cache.encoder.dim):
        is_duplicate[part] |= _are_close(centred_units(cache.take(rows[part])), labelled, cosine)
    return is_duplicate


@one_blas_thread
def _are_close(units: np.ndarray, labelled: np.ndarray, cosine: float) -> np.ndarray:
    """Mark the unit rows (m, d) with this cosine to one of the labelled (p, d), or a greater one; bool (m,)."""
    least, close = cosine - _COSINE_ROUNDING, np.zeros(len(units), bool)
    for begin in range(0, len(labelled), _LABELLED_PER_BLOCK):
        block = labelled[begin : begin + _LABELLED_PER_BLOCK]
        greatest = (units @ block.T).max(1, initial=-1)
        above = greatest >= least
        # a product of matrices may round a row differently beside other rows; single products do not
        for row in np.flatnonzero(np.abs(greatest - least) < _COSINE_DOUBT):
            above[row] = np.vecdot(units[row], block).max() >= least
        close |= above
    return close


def _as_bytes(digests: np.ndarray) -> np.ndarray:
    """One value of 32 bytes a row."""
    return np.ascontiguousarray(digests).view("V32").ravel()
