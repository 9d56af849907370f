"""The second reader's random images: uniform over what he has left, and those of the first where that is possible."""

import numpy as np
import pytest
from helpers.reviews import Log

from pucache.reviewing.log import Choice
from pucache.reviewing.shared_draws import SharedDraws


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
