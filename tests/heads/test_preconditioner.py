import numpy as np
import pytest

from pucache.heads.preconditioner import systematic_sample

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_systematic_sample_draws_each_row_as_often_as_its_importance_says():
    importance = np.random.default_rng(1).exponential(size=1000)
    importance[::3] = 0
    drawn, weights = systematic_sample(importance, 400)
    expected = 400 * importance / importance.sum()
    times = np.zeros(1000)
    times[drawn] = weights * 400
    assert (np.diff(drawn) > 0).all() and weights.sum() == pytest.approx(1)
    assert (np.abs(times - expected) < 1 + 1e-9).all() and not times[importance == 0].any()
