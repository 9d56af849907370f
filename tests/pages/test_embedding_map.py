import numpy as np
import pytest
from helpers.planted import planted
from helpers.slow import slow

from pucache.pages.embedding_map import choose_rows, embedding_map, shares_of_likely


def test_a_sample_is_a_third_labelled_a_third_top_and_the_rest_at_random():
    labelled, unlabelled = np.arange(0, 1000, 5), np.setdiff1d(np.arange(1000), np.arange(0, 1000, 5))
    ranked = unlabelled[::-1]
    rows = choose_rows(labelled, unlabelled, ranked, sample=90, seed=0)
    assert len(rows) == 90 and (np.diff(rows) > 0).all()
    assert np.isin(rows, labelled).sum() == 30
    assert np.isin(ranked[:30], rows).all()
    others = np.setdiff1d(rows, np.concatenate([labelled, ranked[:30]]))
    assert len(others) == 30 and others.min() < 300 < others.max()


@pytest.mark.parametrize("n", [60, slow(900)])
def test_principal_components_are_those_of_the_singular_value_decomposition(n):
    X, _, _ = planted(n=n, d=8, apart=3.0)
    rows = np.arange(0, n, 2)
    layout = embedding_map(X, rows)
    centred = X[rows] - X[rows].mean(0)
    U, S, _ = np.linalg.svd(centred, full_matrices=False)
    for axis in range(2):
        expected = U[:, axis] * S[axis]
        assert abs(np.corrcoef(layout.pca[:, axis], expected)[0, 1]) > 0.999
    assert layout.explained == pytest.approx((S[:2] ** 2).sum() / (S**2).sum(), rel=1e-3)
    assert layout.pca.min() == 0 and layout.pca.max() == 1 and np.array_equal(layout.rows, rows)


def test_two_heaps_lie_apart_in_the_neighbour_map():
    X, _, y = planted(n=160, d=10, apart=3.0)
    layout = embedding_map(X, np.arange(160))
    near, everywhere = shares_of_likely(layout.tsne, y == 1, y == 1)
    assert near > 0.99 and everywhere == pytest.approx(y.mean())
