import numpy as np
import pytest
import torch

from pucache.heads.design_matrix import DesignMatrix
from pucache.heads.moments import Moments
from pucache.heads.preconditioner import HessianPreconditioner
from pucache.heads.second_moments import SecondMoments, systematic_sample

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")


def rows(n=300, d=5):
    return np.random.default_rng(0).normal(2, [0.1, 0.5, 1, 2, 4][:d], (n, d)).astype(np.float32)


def test_a_systematic_sample_draws_each_row_as_often_as_its_importance_says():
    importance = np.random.default_rng(1).exponential(size=1000)
    importance[::3] = 0
    drawn, weights = systematic_sample(importance, 400)
    expected = 400 * importance / importance.sum()
    times = np.zeros(1000)
    times[drawn] = weights * 400
    assert (np.diff(drawn) > 0).all() and weights.sum() == pytest.approx(1)
    assert (np.abs(times - expected) < 1 + 1e-9).all() and not times[importance == 0].any()


def test_few_rows_are_all_taken_with_their_importance():
    drawn, weights = systematic_sample(np.array([0.0, 3, 1]), 4)
    assert drawn.tolist() == [1, 2] and weights.tolist() == [0.75, 0.25]


def test_second_moments_are_the_weighted_mean_of_outer_products():
    X, importance = rows(), np.arange(300.0)
    moments = Moments.of(X)
    x = np.column_stack([(X - moments.centre) / moments.spread, np.ones(300)])
    second = SecondMoments.of_sample(DesignMatrix(X, np.zeros(300), moments, CPU), importance)
    np.testing.assert_allclose(second.matrix, x.T @ (x * importance[:, None]) / importance.sum(), atol=1e-5)


@pytest.mark.parametrize("ratio", [1e-3, 1.0])
def test_the_inverse_is_that_of_the_matrix_plus_the_ratio(ratio):
    X = rows()
    second = SecondMoments.of_sample(DesignMatrix(X, np.zeros(300), None, CPU), np.ones(300))
    whole = second.matrix.double() + torch.diag(torch.tensor([ratio] * 5 + [second.least_ratio], dtype=torch.float64))
    torch.testing.assert_close(second.inverse(ratio).double() @ whole, torch.eye(6).double(), rtol=0, atol=1e-3)
    assert second.inverse(ratio) is second.inverse(ratio)


def test_a_matrix_that_rounding_made_indefinite_is_inverted():
    matrix = torch.eye(4)
    matrix[2, 2] = -1e-3
    inverse = SecondMoments(matrix).inverse(1e-5)
    assert torch.isfinite(inverse).all() and (torch.linalg.eigvalsh(inverse) > 0).all()


def test_heads_use_multiples_of_the_same_inverses():
    X = rows()
    second = SecondMoments.of_sample(DesignMatrix(X, np.zeros(300), None, CPU), np.ones(300))
    curvature, ratio = torch.tensor([0.1, 0.2, 0.1]), torch.tensor([0.01, 0.01, 1.0])
    apply = HessianPreconditioner(second, curvature, curvature * ratio)
    vectors = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    for head in ([0, 1, 2], [2], [1, 2]):
        expected = [vectors[k] @ second.inverse(10 ** float(ratio[k].log10())) / curvature[k] for k in head]
        torch.testing.assert_close(apply(vectors[head], torch.tensor(head)), torch.stack(expected))
