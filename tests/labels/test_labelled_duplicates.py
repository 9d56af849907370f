import numpy as np
import pytest

from pucache.labels.near_duplicates import duplicates_of

N = 120
X = np.random.default_rng(0).normal(size=(N, 6)).astype(np.float32)
DIGESTS = np.random.default_rng(1).integers(0, 256, (N, 32), np.uint8)
KNOWN = np.array([3, 50, 119])
OTHERS = np.setdiff1d(np.arange(N), KNOWN)


def at_angle(vector, cosine, length=1.0):
    """A row of this cosine to the vector."""
    across = np.roll(vector, 1).astype(float)
    vector = vector.astype(float) / np.linalg.norm(vector)
    across -= across @ vector * vector
    return length * (cosine * vector + np.sqrt(1 - cosine**2) * across / np.linalg.norm(across))


def found(cache, cosine, rows=OTHERS, known=KNOWN):
    return rows[duplicates_of(cache, rows, known, cosine)].tolist()


@pytest.mark.parametrize("cosine", [None, 1.5, 0.999])
def test_equal_bytes_are_twins_whatever_their_embeddings(opened, cosine):
    digests = DIGESTS.copy()
    digests[[7, 80]], digests[81] = digests[50], digests[7] ^ 1
    assert found(opened(X, digests), cosine) == [7, 80]


def test_digests_that_are_not_known_are_equal_to_none(opened):
    digests = DIGESTS.copy()
    digests[[3, 7, 8]] = 0
    assert found(opened(X, digests), None) == []


@pytest.mark.parametrize("limit", [0.9, 0.99, 0.999])
def test_embeddings_are_twins_from_the_limit_on(opened, limit):
    rows = X.copy()
    for row, cosine, length in ((7, limit, 1), (8, limit + 2e-6, 300), (9, limit - 1e-5, 1), (60, 1, 0.01)):
        rows[row] = at_angle(rows[50], cosine, length)
    assert found(opened(rows), limit) == [7, 8, 60]
    assert found(opened(rows), None) == found(opened(rows), 1.01) == []


def test_rounding_keeps_no_row_from_the_direction_of_its_multiple(opened):
    rows = X.copy()
    known = np.arange(0, N, 2)
    rows[1::2] = np.float32(3.3) * X[known]
    assert found(opened(rows), 1.0, np.arange(1, N, 2), known) == list(range(1, N, 2))


def test_a_twin_of_a_twin_is_none(opened):
    rows, digests = X.copy(), DIGESTS.copy()
    rows[7] = at_angle(rows[50], 0.995)
    rows[8] = at_angle(rows[7], 0.995)
    digests[9] = digests[7]
    assert rows[8] @ rows[50] / np.linalg.norm(rows[8]) / np.linalg.norm(rows[50]) < 0.99
    assert found(opened(rows, digests), 0.99) == [7]


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
