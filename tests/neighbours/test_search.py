import numpy as np
import pytest

from pucache.neighbours.search import find_gpu, row_search

DRAW = np.random.default_rng(0)
QUERIES, ROWS = DRAW.normal(size=(70, 5)).astype(np.float32), DRAW.normal(size=(3000, 5)).astype(np.float32)


@pytest.mark.parametrize("k", [1, 10, 2049, 3000, 10**6])
def test_the_nearest_are_those_of_the_greatest_products(k):
    products, rows = row_search(ROWS)(QUERIES, k)
    every = QUERIES.astype(float) @ ROWS.astype(float).T
    expected = -np.sort(-every, axis=1)[:, :k]
    assert products.shape == rows.shape == expected.shape
    assert products.dtype == np.float32 and rows.dtype == np.int64
    np.testing.assert_allclose(products, expected, atol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(every, rows, 1), expected, atol=1e-5)


def test_among_no_rows_none_is_nearest():
    assert row_search(ROWS[:0])(QUERIES, 3)[0].shape == (70, 0)
    assert row_search(ROWS)(QUERIES[:0], 3)[1].shape == (0, 3)


def test_a_device_is_the_cpu_or_there():
    assert find_gpu("cpu") is None
    with pytest.raises(ValueError, match="unknown device 'gpu'; use auto, cpu, cuda or cuda:N"):
        find_gpu("gpu")
