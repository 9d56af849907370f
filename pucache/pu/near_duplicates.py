"""Groups of images that are the same picture: equal bytes, or embeddings that nearly coincide.

For unit rows u and v, |u - v|^2 = 2 - 2 cos(u, v), and an orthogonal projection can only shorten
u - v. So every pair above a cosine lies within sqrt(2 - 2 cosine) in a few dimensions, where a
k-d tree finds it; each pair found there is measured again in all dimensions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import chain

import numpy as np
from scipy.spatial import cKDTree

from ..heads.linear_algebra import leading_subspace, unit_rows
from ..storage.mapped_arrays import release_pages, take_rows

_Pairs = tuple[np.ndarray, np.ndarray]
_DIRECTIONS = 24  # to compare pairs in before all dimensions
_TREE = 8  # to search in: trees are slow in more
_SAMPLE = 1024  # rows that the directions are estimated from
_BLOCK = 1 << 21  # numbers of X worked on at once
_PAIRS = 1 << 20  # pairs in memory at once; a row with more neighbours is taken alone
_CROWD = 1 << 10  # neighbours from which on it pays to leave out those of the same group
_ROUNDING, _SLACK = 1e-6, 1e-5  # of distances in float32: between unit rows; between projections, generously


def groups(X: np.ndarray, digests: np.ndarray | None = None, *, cosine: float | None = 0.999) -> np.ndarray:
    """Number the groups of rows that are the same picture.

    Two rows are twins when their digests are equal, their embeddings are equal byte for byte, or
    the cosine of their embeddings reaches the limit; a group is whatever twins of twins connect.
    No twin is missed; cosines are exact to about 1e-8. Rows of zeros are near each other only.

    Parameters
    ----------
    X : ndarray of float16 or float32, (n, d)
        Embeddings of any length; may be mapped, and is read in blocks.
    digests : ndarray of uint8, (n, 32), optional
        Of the image bytes; a row of zeros is unknown, and equal to none.
    cosine : float or None
        Least cosine of twins; 1 is the same direction up to rounding. Meant to be close to 1, as
        the time grows with the number of pairs near it. None, or above 1, for equal bytes only.

    Returns
    -------
    ndarray of int64, (n,)
        The smallest row of the group that each row is in.

    Raises
    ------
    ValueError
        `cosine` not above 0, shapes that do not fit, or embeddings that are not finite.
    """
    limit = 2.0 if cosine is None else cosine
    if not limit > 0:
        raise ValueError(f"cosine must be in (0, 1], or None for equal bytes only; got {cosine}")
    if digests is None:
        digests = np.zeros((len(X), 32), np.uint8)
    if X.ndim != 2 or digests.shape != (len(X), 32):
        raise ValueError(f"expected X (n, d) and digests (n, 32); got X {X.shape} and digests {digests.shape}")
    parent, known = np.arange(len(X)), np.flatnonzero(digests.any(1))
    _join_equal(parent, known, np.ascontiguousarray(digests[known]).view("S32").ravel())
    content, norm, Z = _scan(X, _directions(X, _DIRECTIONS if limit <= 1 else 0))
    distinct = _join_equal(parent, np.arange(len(X)), content)
    del content
    if limit <= 1:
        zero = np.flatnonzero(norm == 0)  # not all equal in bytes, as there is -0.0
        _join(parent, zero, zero[:1].repeat(len(zero)))
        distinct = distinct[norm[distinct] > 0]
        Z = Z[distinct]
        if len(distinct):
            order = cKDTree(Z[:, :_TREE]).indices  # neighbours in space become neighbours in number
            distinct, Z = distinct[order], Z[order]
        _join_near(parent, X, distinct, Z, max(float(np.sqrt(2 - 2 * limit)), _ROUNDING))
    return _roots(parent, np.arange(len(X)))


def unlabelled_twins(group: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the unlabelled rows that share a group with a labelled positive: positives found already.

    Parameters
    ----------
    group : ndarray of int, (n,)
        As `groups` returns it.
    s : ndarray, (n,)
        1 for labelled positives.

    Returns
    -------
    rows, labelled_rows : ndarray of int64, (m,)
        Each such unlabelled row, ascending, and the first labelled positive of its group.
    """
    positive = np.flatnonzero(s == 1)
    numbers, first = np.unique(group[positive], return_index=True)
    rows = np.flatnonzero((s != 1) & np.isin(group, numbers))
    return rows, positive[first[np.searchsorted(numbers, group[rows])]]


def _unit(block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows at length 1 in float32, and their lengths; rows of zeros stay."""
    wide: np.ndarray = block.astype("f4" if block.dtype == np.float16 else "f8")  # squares must not overflow
    norm = unit_rows(wide)
    return wide.astype(np.float32, copy=False), norm


def _directions(X: np.ndarray, count: int) -> np.ndarray:
    """Orthonormal (d, k), k <= count: any would let every pair be found, those of most variance let in few others."""
    n, d = X.shape
    basis = np.random.default_rng(0).normal(size=(d, min(count, d, n))).astype(np.float32)
    sample, _ = _unit(take_rows(X, np.unique(np.linspace(0, max(n - 1, 0), min(n, _SAMPLE)).astype(np.intp))))
    sample -= sample.mean(0) if n else 0
    return leading_subspace(sample, basis)


def _scan(X: np.ndarray, basis: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Read X once: a digest of each row (n,), its length (n,), its unit row in the basis (n, k)."""
    n, d = X.shape
    content, norm, Z = np.empty(n, "S32"), np.empty(n), np.empty((n, basis.shape[1]), np.float32)
    step = max(1, _BLOCK // max(1, d))
    for start in range(0, n, step):
        block = np.array(X[start : start + step])
        release_pages(X)
        here = slice(start, start + len(block))
        content[here] = [hashlib.sha256(row).digest() for row in block]
        unit, norm[here] = _unit(block)
        Z[here] = unit @ basis
        bad = np.flatnonzero(~np.isfinite(norm[here]))
        if len(bad):
            raise ValueError(f"X holds NaN or infinite values, first in row {start + bad[0]}")
    return content, norm, Z


# parent (n,): a row of the same group that is not larger; the smallest of a group is its own parent


def _roots(parent: np.ndarray, rows: np.ndarray) -> np.ndarray:
    root = parent[rows]
    while (parent[root] != root).any():
        root = parent[rows] = parent[root]  # shortens the way, so that long chains are short the next time
    return root


def _join(parent: np.ndarray, one: np.ndarray, other: np.ndarray) -> None:
    while len(one):
        a, b = _roots(parent, one), _roots(parent, other)
        apart = a != b
        one, other, a, b = one[apart], other[apart], a[apart], b[apart]
        np.minimum.at(parent, np.maximum(a, b), np.minimum(a, b))


def _join_equal(parent: np.ndarray, rows: np.ndarray, content: np.ndarray) -> np.ndarray:
    """Join the rows of equal content; returns the first row of each content."""
    _, first, inverse = np.unique(content, return_index=True, return_inverse=True)
    _join(parent, rows, rows[first[inverse]])
    return rows[first]


def _join_near(parent: np.ndarray, X: np.ndarray, rows: np.ndarray, Z: np.ndarray, radius: float) -> None:
    """Join the rows whose unit rows are within the radius; Z (m, k) holds projections of these, neighbours together."""
    step = max(1, _BLOCK // (2 * X.shape[1]) if len(rows) else 1)
    for one, other in _candidates(parent, rows, Z, radius + _SLACK):
        for start in range(0, len(one), step):
            i, j = one[start : start + step], other[start : start + step]
            apart = _roots(parent, i) != _roots(parent, j)  # in a crowd, few are after the first blocks
            i, j = i[apart], j[apart]
            difference = _unit(X[i])[0] - _unit(X[j])[0]
            twins = np.einsum("ij,ij->i", difference, difference) <= radius**2
            _join(parent, i[twins], j[twins])


def _candidates(parent: np.ndarray, rows: np.ndarray, Z: np.ndarray, radius: float) -> Iterator[_Pairs]:
    """Yield pairs near in projection, a bounded number at a time; in a crowd, not those joined by then."""
    if not len(rows):
        return
    tree = cKDTree(Z[:, :_TREE], leafsize=64)
    count = tree.query_ball_point(tree.data, radius, return_length=True, workers=-1)
    busy = np.flatnonzero(count > 1)  # each is near itself
    for part in np.split(busy, 1 + np.flatnonzero(np.diff(np.cumsum(count[busy]) // _PAIRS))):
        others, nearby = np.arange(len(rows)), tree
        if count[part].max(initial=0) > _CROWD:
            others = _joinable(parent, rows, tree, part, radius)
            nearby = cKDTree(tree.data[others])
        found = nearby.query_ball_point(tree.data[part], radius, return_sorted=False)
        i = np.repeat(part, np.array([len(some) for some in found], np.intp))
        j = others[np.fromiter(chain.from_iterable(found), np.intp, len(i))]
        i, j = i[i < j], j[i < j]
        close = np.square(Z[i] - Z[j]).sum(1) <= radius**2
        yield rows[i[close]], rows[j[close]]


def _joinable(parent: np.ndarray, rows: np.ndarray, tree: cKDTree, part: np.ndarray, radius: float) -> np.ndarray:
    """Positions around a part of the tree; if the part is of one group, only those outside it."""
    centre = tree.data[part].mean(0)
    reach = np.linalg.norm(tree.data[part] - centre, axis=1).max() + radius
    others = np.array(tree.query_ball_point(centre, reach), np.intp)
    home = np.unique(_roots(parent, rows[part]))
    return others if len(home) > 1 else others[_roots(parent, rows[others]) != home]
