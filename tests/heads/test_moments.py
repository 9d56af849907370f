import numpy as np
import pytest

from pucache.heads.moments import Moments


@pytest.mark.parametrize(
    "mean, dtype", [(0.0, np.float32), (1000.0, np.float32), (1e5, np.float32), (10.0, np.float16)]
)
def test_moments_are_those_of_float64_however_far_the_mean_is_from_zero(mean, dtype):
    draw = np.random.default_rng(0)
    rows = (mean * draw.normal(size=5) + draw.normal(size=(700, 5)) * np.arange(1, 6)).astype(dtype)
    exact, moments = rows.astype(np.float64), Moments.of(rows)
    assert moments.centre.dtype == np.float32
    np.testing.assert_allclose(moments.centre, exact.mean(0), rtol=1e-7, atol=1e-6)
    assert moments.spread == pytest.approx(np.sqrt(np.square(exact - exact.mean(0)).sum(1).mean()), rel=1e-5)
    assert moments.root_mean_square == pytest.approx(np.sqrt(np.square(exact).mean()), rel=1e-6)
