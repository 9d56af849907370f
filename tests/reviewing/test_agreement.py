"""Two readers: Cohen's kappa and its interval, and random images that the second gets too where that is possible."""

import json

import numpy as np
import pytest
from helpers.reviews import Log
from sklearn.metrics import cohen_kappa_score

from pucache.reviewing.agreement import Concordance, SharedDraws
from pucache.reviewing.log import Choice


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


def decide_best(log, groups, rng):
    """A reader whose ranking finds the positives, which are the groups below 3, first."""
    for group in groups:
        log.decide(group, Choice.POSITIVE if group < 3 else Choice.NEGATIVE)
    if log.left and rng.random() < 0.5:
        log.draw(rng.choice(log.left), rng.choice([Choice.POSITIVE, Choice.NEGATIVE, None]))


def drawn_of(first, second, rng):
    """Draw a group for the second reader."""
    group, seen = int(rng.choice(second.left)), {entry.group for entry in second.entries}
    instead = None if group in seen else SharedDraws(first.entries, 0, 1).instead_of(group, 0, seen)
    return group if instead is None else instead.group


@pytest.mark.parametrize("looks", [(), (0,), (0, 5), (6, 7)])
def test_every_image_that_is_left_is_drawn_as_often_as_any_other(looks):
    rng, counts = np.random.default_rng(0), np.zeros((2, 8))
    for _ in range(2000):
        first, second = Log(8), Log(8)
        decide_best(first, (0, 1), rng)
        for _ in range(3):
            first.draw(int(rng.choice(first.left)), Choice.NEGATIVE)
        for group in looks:
            second.decide(group, Choice.POSITIVE)
        if looks:  # taken back, so that it is left although it is not new
            second.decide(looks[0], Choice.UNDONE)
        for row in counts:
            group = drawn_of(first, second, rng)
            row[group] += 1
            second.draw(group, Choice.NEGATIVE)
    left = [group for group in range(8) if group not in looks[1:]]
    assert counts[0].sum() == counts[0, left].sum()
    for drawn in counts[:, left]:
        assert (np.abs(drawn - 2000 / len(left)) < 4.5 * np.sqrt(2000 / len(left))).all()


def test_both_get_the_same_images_where_they_have_the_same_left():
    rng, first, second = np.random.default_rng(0), Log(200), Log(200)
    for _ in range(40):
        first.draw(int(rng.choice(first.left)), Choice.NEGATIVE)
    order = [entry.group for entry in first.entries if entry.is_draw]
    for group in order:
        assert drawn_of(first, second, np.random.default_rng(group)) == group
        second.draw(group, Choice.NEGATIVE)
    assert drawn_of(first, second, rng) not in order, "his own from then on"
