import os

import pytest
import torch
from helpers.started import in_two
from helpers.training_parts import recipe, trained, with_two_norms, without_norms

from pucache.pretraining import process_group

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]


def everything():
    """What one process finds, alone or as one of two."""
    accumulate = 2 if "RANK" in os.environ else 1
    with process_group.joined("cpu"):  # once, and not in each part: a process may find what another is just leaving
        return {
            "modern": trained(with_two_norms().double(), recipe(), steps=4),
            "parts": trained(without_norms(), recipe(projector_norm=False, accumulate=accumulate), 5),
            "parts with norms": trained(with_two_norms(), recipe(accumulate=2), steps=3),
        }


@pytest.fixture(scope="module")
def both():
    return in_two(everything)


def furthest(a, b):
    """The greatest difference of two states, of which counts must be equal."""
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a if not a[name].is_floating_point())
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def test_two_processes_learn_what_one_does(both):
    """Gathered projections, their gradients and shared batch norms are those of the whole batch."""
    alone = everything()
    for found in both:
        for name in ("modern", "parts"):
            assert found[name][0] == pytest.approx(alone[name][0], abs=1e-5)
            assert furthest(found[name][1], alone[name][1]) < 1e-6


def test_all_processes_end_with_one_network_and_one_loss(both):
    first, second = both
    for name in first:
        assert first[name][0] == second[name][0]
        assert furthest(first[name][1], second[name][1]) == 0
