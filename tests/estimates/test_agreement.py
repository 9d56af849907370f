"""Cohen's kappa of two readers, and its interval."""

import json

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from pucache.estimates.agreement import Concordance


@pytest.mark.parametrize("cells", [(20, 3, 5, 72), (1, 0, 0, 9), (0, 5, 5, 0), (50, 0, 0, 50), (7, 0, 3, 0)])
def test_kappa_is_that_of_scikit_learn_within_its_interval(cells):
    first = np.repeat([1, 1, 0, 0], cells)
    second = np.repeat([1, 0, 1, 0], cells)
    value, low, high = Concordance(*cells).kappa()
    assert value == pytest.approx(cohen_kappa_score(first, second))
    assert -1 < low < high < 1 and (low <= value <= high or abs(value) == 1)


@pytest.mark.parametrize("cells", [(0, 0, 0, 0), (50, 0, 0, 0), (0, 0, 0, 50), (4, 1, 0, 4)])
def test_without_two_answers_or_ten_pictures_there_is_no_kappa(cells):
    concordance = Concordance(*cells)
    assert concordance.kappa() is None and "kappa" not in str(concordance)
    assert json.loads(json.dumps(concordance.as_dict()))["kappa_low"] is None


@pytest.mark.parametrize(
    ("positive", "error", "n"), [(0.1, 0.05, 40), (0.1, 0.2, 200), (0.5, 0.05, 200), (0.5, 0.2, 40)]
)  # each pair of values
def test_the_interval_covers_the_kappa_of_two_readers_who_err(n, error, positive):
    rng, covered = np.random.default_rng(0), 0
    right, wrong = (1 - error) ** 2, error**2
    apart = error * (1 - error)
    p = [positive * right + (1 - positive) * wrong, apart, apart, positive * wrong + (1 - positive) * right]
    said = positive * (1 - error) + (1 - positive) * error
    by_chance = said**2 + (1 - said) ** 2
    kappa = (p[0] + p[3] - by_chance) / (1 - by_chance)
    intervals = [Concordance(*rng.multinomial(n, p).tolist()).kappa() for _ in range(400)]
    covered = [one is None or one[1] <= kappa <= one[2] for one in intervals]
    assert np.mean(covered) >= 0.92
