import numpy as np
import pytest
from helpers.refusals import one_line
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from pucache.labels import near_duplicates
from pucache.labels.near_duplicates import duplicates_of, equal_digests, groups, unlabelled_twins


def at_cosine(draw, u, cosine, length=1.0):
    """Draw a row of this length at a cosine to another."""
    u = u.astype(float) / np.linalg.norm(u.astype(float))
    w = draw.normal(size=u.shape)
    w -= (w @ u) * u
    return length * (cosine * u + np.sqrt(1 - cosine**2) * w / np.linalg.norm(w))


def rows_with_twins(seed, n, d, cosine, off):
    """Draw n rows: of their own, near an earlier one (just above or below the cosine), equal to one, zero."""
    draw = np.random.default_rng(seed)
    X = [draw.normal(size=d)]
    while len(X) < n:
        u = X[draw.integers(len(X))]
        kind = draw.integers(5)
        if kind < 2 and u.any():
            X.append(at_cosine(draw, u, min(1, cosine + (off if kind else -off)), draw.uniform(0.3, 30)))
        else:
            X.append((draw.normal(size=d), u, np.zeros(d))[kind % 3])
    return np.array(X)


def by_brute_force(X, cosine):
    """Group by all pairs, in float64; also by how much the nearest cosine misses the limit."""
    X = X.astype(np.float64)
    norm = np.linalg.norm(X, axis=1)
    U = X / np.where(norm > 0, norm, 1)[:, None]
    cosines = U @ U.T
    zero = norm == 0
    _, number = connected_components(csr_matrix((cosines >= cosine) | np.outer(zero, zero)))
    _, first, group = np.unique(number, return_index=True, return_inverse=True)
    other = ~np.eye(len(X), dtype=bool) & ~(X[:, None] == X).all(2)
    return first[group], np.abs(cosines - cosine)[other].min(initial=1)


@pytest.fixture(params=["plenty", "scarce"])
def room(request, monkeypatch):
    """Also with so little room that everything goes in many blocks."""
    if request.param == "scarce":
        for name, value in {"_PAIRS": 4, "_CROWD": 2, "_BLOCK_VALUES": 48, "_SAMPLE": 5}.items():
            monkeypatch.setattr(near_duplicates, name, value)


# --- against brute force -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_groups_are_those_of_all_pairs(room, dtype):
    @settings(max_examples=30)
    @given(
        st.integers(0, 2**32),
        st.integers(1, 60),
        st.integers(2, 40),
        st.sampled_from([0.5, 0.9, 0.99, 0.999, 0.9999]),
        st.sampled_from([1e-6, 1e-4, 1e-2]),
    )
    def check(seed, n, d, cosine, off):
        X = rows_with_twins(seed, n, d, cosine, off).astype(dtype)
        expected, miss = by_brute_force(X, cosine)
        assume(miss > 5e-8)
        found = groups(X, cosine=cosine)
        assert found.dtype == np.int64 and found.tolist() == expected.tolist()

    check()


@pytest.mark.parametrize("scale", [1e-30, 1, 1e30])
@pytest.mark.parametrize("off", [-2e-8, 2e-8])
def test_the_limit_is_sharp_at_any_length(off, scale):
    draw = np.random.default_rng(0)
    u = draw.normal(size=1280).astype(np.float32)
    X = np.stack([u, *(at_cosine(draw, u, 0.999 + off, draw.uniform(0.3, 30)) for _ in range(50))])
    assert groups((scale * X).astype(np.float32)).tolist() == ([0] * 51 if off > 0 else [*range(51)])


# --- bytes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "cosine", "expected"),
    [
        *(([[1, 2], [1, 2], [2, 4], [1, 2.01], [0, 0], [0, 0]], none, [0, 0, 2, 3, 4, 4]) for none in (None, 1.5)),
        ([[0, 0], [-0.0, 0], [0, 0], [6e-8, 0]], 0.999, [0, 0, 0, 3]),
        *((np.zeros(shape), 0.999, [0] * shape[0]) for shape in [(0, 5), (1, 5), (3, 0)]),
    ],
)
def test_groups_of_equal_bytes_of_zeros_and_of_the_smallest_shapes(rows, cosine, expected):
    assert groups(np.array(rows, np.float16), cosine=cosine).tolist() == expected


def test_equal_digests_join_and_unknown_ones_do_not():
    X = np.eye(6, dtype=np.float32)
    digests = np.zeros((6, 32), np.uint8)
    digests[[1, 4], 31] = 5
    digests[[2, 3], 0] = 5, 6
    assert groups(X, digests, cosine=None).tolist() == equal_digests(digests).tolist() == [0, 1, 2, 3, 1, 5]


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize("cosine", [0, -0.5, float("nan")])
def test_a_cosine_outside_its_domain_is_refused(cosine):
    text = one_line(ValueError, groups, np.ones((2, 2), np.float32), cosine=cosine)
    assert "cosine must be in (0, 1], or None for equal bytes only; got" in text


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_embeddings_that_are_not_finite_are_refused(room, bad):
    X = np.ones((9, 30), np.float16)
    X[5, 2] = bad
    with pytest.raises(ValueError, match="NaN or infinite values, first in row 5"):
        groups(X)


def test_unlabelled_twins_of_labelled_positives_are_listed():
    group = np.array([0, 1, 0, 3, 1, 0, 6, 3, 1])
    rows, labelled = unlabelled_twins(group, np.array([0, 0, 1, 0, 1, 1, 1, 0, 0]))
    assert rows.tolist() == [0, 1, 8] and labelled.tolist() == [2, 4, 4]
    assert rows.dtype == labelled.dtype == np.int64


# --- labelled duplicates --------------------------------------------------------------------------

N = 120
X = np.random.default_rng(0).normal(size=(N, 6)).astype(np.float32)
DIGESTS = np.random.default_rng(1).integers(0, 256, (N, 32), np.uint8)
KNOWN = np.array([3, 50, 119])
OTHERS = np.setdiff1d(np.arange(N), KNOWN)


def found(cache, cosine, rows=OTHERS, known=KNOWN):
    return rows[duplicates_of(cache, rows, known, cosine)].tolist()


@pytest.mark.parametrize("cosine", [None, 1.5, 0.999])
def test_equal_bytes_are_twins_whatever_their_embeddings_and_unknown_ones_are_not(opened, cosine):
    digests = DIGESTS.copy()
    digests[[7, 80]], digests[81], digests[[3, 8]] = digests[50], digests[7] ^ 1, 0
    assert found(opened(X, digests), cosine) == [7, 80]


@pytest.mark.parametrize("limit", [0.9, 0.99, 0.999])
def test_embeddings_are_twins_from_the_limit_on(opened, limit):
    rows = X.copy()
    for row, cosine, length in ((7, limit, 1), (8, limit + 2e-6, 300), (9, limit - 1e-5, 1), (60, 1, 0.01)):
        rows[row] = at_cosine(np.random.default_rng(row), rows[50], cosine, length)
    assert found(opened(rows), limit) == [7, 8, 60]
    assert found(opened(rows), None) == found(opened(rows), 1.01) == []


def test_rounding_keeps_no_row_from_the_direction_of_its_multiple(opened):
    rows = X.copy()
    known = np.arange(0, N, 2)
    rows[1::2] = np.float32(3.3) * X[known]
    assert found(opened(rows), 1.0, np.arange(1, N, 2), known) == list(range(1, N, 2))


def test_rows_of_zeros_are_twins_of_none(opened):
    rows = X.copy()
    rows[[50, 7]] = 0
    assert found(opened(rows), 0.5, np.array([7])) == []


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_all_pairs_are_as_the_matrix_of_cosines_says(opened, dtype):
    rows = X.astype(dtype)
    wide = rows.astype(float)
    wide /= np.linalg.norm(wide, axis=1, keepdims=True)
    expected = OTHERS[(wide[OTHERS] @ wide[KNOWN].T).max(1) >= 0.6]
    assert 3 < len(expected) < 60 and found(opened(rows), 0.6) == expected.tolist()
