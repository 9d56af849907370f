import numpy as np
import pytest

from pucache.heads.linear_algebra import leading_subspace, truncated_svd, unit_rows

DRAW = np.random.default_rng(0)


def decaying(n, d):
    """A matrix whose singular values fall by a tenth each."""
    left, right = (np.linalg.qr(DRAW.normal(size=(size, min(n, d))))[0] for size in (n, d))
    return ((left * 0.9 ** np.arange(min(n, d))) @ right.T).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_have_unit_norm_and_zeros_stay(dtype):
    rows = DRAW.normal(size=(5, 7)).astype(dtype)
    rows[3] = 0
    before = rows.copy()
    norms = unit_rows(rows)
    np.testing.assert_allclose(norms, np.linalg.norm(before, axis=1), rtol=1e-6)
    np.testing.assert_allclose(rows * norms[:, None], before, atol=1e-6)
    assert (rows[3] == 0).all() and rows.dtype == dtype


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_that_is_not_finite_has_a_norm_that_is_not(value):
    rows = np.ones((3, 4), np.float32)
    rows[1, 2] = value
    assert np.isfinite(unit_rows(rows)).tolist() == [True, False, True]


@pytest.mark.parametrize("shape", [(300, 40), (40, 300), (50, 50), (5, 3), (1, 4)])
def test_a_truncated_svd_is_the_leading_part_of_the_exact_one(shape):
    A = decaying(*shape)
    count = min(6, *shape)
    values, directions = truncated_svd(A, count)
    _, exact, right = np.linalg.svd(A.astype(float), full_matrices=False)
    assert values.dtype == directions.dtype == np.float32
    np.testing.assert_allclose(values, exact[:count], rtol=1e-4)
    np.testing.assert_allclose(np.abs(directions @ right[:count].T), np.eye(count), atol=1e-3)


def test_a_leading_subspace_is_orthonormal_and_holds_the_leading_direction():
    A = decaying(200, 30)
    basis = leading_subspace(A, DRAW.normal(size=(30, 8)).astype(np.float32))
    np.testing.assert_allclose(basis.T @ basis, np.eye(8), atol=1e-5)
    first = np.linalg.svd(A)[2][0]
    assert np.linalg.norm(basis.T @ first) == pytest.approx(1, abs=1e-3)
