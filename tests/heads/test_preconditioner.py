import numpy as np
import pytest
import torch

from pucache.heads import preconditioner as module
from pucache.heads.preconditioner import LeadingDirections, Preconditioner, evenly_spaced, systematic_sample

pytestmark = pytest.mark.usefixtures("one_thread")
SPECTRUM = np.array([5.0, 3.0, 1.5, 0.5, 0.2, 0.1, 0.05, 0.02])


def spectral(n=3000):
    """Rows whose covariance is SPECTRUM squared over its sum, in turned axes."""
    draw = np.random.default_rng(0)
    axes = np.linalg.qr(draw.normal(size=(8, 8)))[0]
    scaled = SPECTRUM / np.sqrt(np.square(SPECTRUM).sum())
    return torch.tensor(((draw.normal(size=(n, 8)) * scaled) @ axes + 0.3).astype(np.float32))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("count", [3, 8, 64])
def test_leading_directions_are_the_eigenvectors_of_the_covariance(count, weighted):
    X = spectral()
    weights = np.arange(3000.0) / np.arange(3000.0).sum() if weighted else np.full(3000, 1 / 3000)
    given = torch.tensor(weights, dtype=torch.float32) if weighted else None
    leading = LeadingDirections.of_sample(X, count, given)
    values, vectors = np.linalg.eigh(np.cov(X.numpy().astype(float).T, aweights=weights, bias=True))
    q = min(count, 8)
    directions, order = leading.directions.numpy(), leading.variances.numpy().argsort()[::-1]
    np.testing.assert_allclose(leading.centre, np.average(X, axis=0, weights=weights), atol=1e-5)
    np.testing.assert_allclose(leading.variances.numpy()[order], values[::-1][:q], rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(np.abs((directions[:, order] * vectors[:, ::-1][:, :q]).sum(0)), 1, atol=1e-3)
    np.testing.assert_allclose(directions.T @ directions, np.eye(q), atol=1e-5)
    assert leading.rest == pytest.approx(values[:-q].mean() if q < 8 else values.sum() / 8, rel=0.02)


@pytest.mark.parametrize("rows", [1, 5])
def test_no_more_directions_than_rows(rows):
    leading = LeadingDirections.of_sample(spectral(rows), 64)
    assert leading.directions.shape == (8, rows) and leading.variances.shape == (rows,)
    assert leading.rest == pytest.approx(0, abs=1e-6)


def hessian(leading, curvature, penalty):
    """Curvature times the second moments of rows with 1 appended, plus the penalty of the coefficients."""
    d = len(leading.centre)
    beside = torch.diag(leading.variances - leading.rest)
    covariance = leading.directions @ beside @ leading.directions.T + leading.rest * torch.eye(d)
    mean = torch.cat([leading.centre, torch.ones(1)])
    whole = torch.zeros(d + 1, d + 1)
    whole[:d, :d] = covariance
    return curvature * (whole + mean[:, None] * mean) + penalty * torch.diag(torch.tensor([1.0] * d + [0.0]))


@pytest.mark.parametrize("count", [2, 8])
def test_the_preconditioner_inverts_the_hessian_of_each_head(count):
    leading = LeadingDirections.of_sample(spectral(), count)
    curvature, penalty = torch.tensor([0.1, 2.0, 0.3]), torch.tensor([0.01, 0.1, 3.0])
    apply, vectors = Preconditioner(leading, curvature, penalty), torch.randn(3, 9)
    for head in ([0, 1, 2], [2], [1, 2]):
        inverted = apply(vectors[head], torch.tensor(head))
        for row, k in enumerate(head):
            product = hessian(leading, curvature[k], penalty[k]) @ inverted[row]
            torch.testing.assert_close(product, vectors[k], rtol=0.1 if k == 0 else 0.02, atol=0.02)


def test_directions_without_variance_do_not_explode():
    leading = LeadingDirections.of_sample(torch.ones(10, 4), 64)
    inverted = Preconditioner(leading, torch.ones(1), torch.zeros(1))(torch.ones(1, 5), torch.tensor([0]))
    assert torch.isfinite(inverted).all() and inverted.abs().max() <= 4 / module._MIN_VARIANCE * 5


def test_evenly_spaced_rows_are_from_everywhere(monkeypatch):
    assert evenly_spaced(3).tolist() == [0, 1, 2]
    monkeypatch.setattr(module, "SAMPLE", 5)
    assert evenly_spaced(101).tolist() == [0, 25, 50, 75, 100]


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
