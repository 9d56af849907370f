import os

import pytest
import timm
import torch
from helpers.started import in_two
from helpers.training_parts import recipe, trained, with_two_norms, without_norms

from pucache.pretraining import process_group

pytestmark = pytest.mark.usefixtures("one_thread")

NORMS = {
    "rows": (lambda: torch.nn.BatchNorm1d(3), (8, 3)),
    "images": (lambda: torch.nn.BatchNorm2d(3), (8, 3, 4, 5)),
    "timm's, with its activation": (lambda: timm.layers.BatchNormAct2d(3, act_layer="silu"), (8, 3, 4, 5)),
}


def everything():
    """What one process finds, alone or as one of two."""
    with process_group.joined("cpu"):  # once, and not in each part: a process may find what another is just leaving
        return {
            "gathered": gathered(),
            "norms": {name: normed(*NORMS[name]) for name in NORMS},
            "modern": trained(with_two_norms().double(), recipe()),
            "parts": trained(
                without_norms(), recipe(projector_norm=False, accumulate=2 if "RANK" in os.environ else 1), 5
            ),
            "parts with norms": trained(with_two_norms(), recipe(accumulate=2), steps=3),
        }


def mine(x):
    share = len(x) // process_group.world_size()
    return x[process_group.rank() * share : (process_group.rank() + 1) * share]


def gathered():
    """What is gathered, and the gradient of a sum to which the processes add differently."""
    whole = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(1))
    with process_group.joined("cpu"):
        z = mine(whole).clone().requires_grad_()
        everybody, first = process_group.gather(z)
        (everybody**3 * mine(torch.tensor([1.0, 10.0])).sum()).sum().backward()
        return everybody.detach(), first, z.grad


def normed(make, shape):
    """Two steps of a batch norm: output, gradients, statistics, and its output in eval mode."""
    draw = torch.Generator().manual_seed(2)
    norm, whole, weights = make(), torch.randn(shape, generator=draw) * 3 + 1, torch.randn(shape, generator=draw)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.uniform_(0.5, 2, generator=draw)
    with process_group.joined("cpu"):
        if process_group.world_size() > 1:
            norm = process_group.share_batch_norm(torch.nn.Sequential(norm))[0]
        x = mine(whole).clone().requires_grad_()
        norm(mine(weights))
        norm.zero_grad()
        made = norm(x)
        (made * mine(weights)).sum().backward()
        slopes = {name: process_group.sum_over_processes(p.grad) for name, p in norm.named_parameters()}
        judged = norm.eval()(mine(whole)).detach()
        return made.detach(), x.grad, slopes, dict(norm.state_dict()), judged


@pytest.fixture(scope="module")
def alone(one_thread):
    return everything()


@pytest.fixture(scope="module")
def both():
    return in_two(everything)


def furthest(a, b):
    """The greatest difference of two states, of which counts must be equal."""
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a if not a[name].is_floating_point())
    return max(float((a[name] - b[name]).abs().max()) for name in a)


# --- the parts ---------------------------------------------------------------------------------


def test_what_is_gathered_and_its_gradient_are_those_of_one_process(alone, both):
    whole, _, _ = alone["gathered"]
    slope = 3 * whole**2 * 11  # the first process adds the sum once, the second ten times
    for number, found in enumerate(both):
        everybody, first, gradient = found["gathered"]
        assert torch.equal(everybody, whole) and first == 2 * number
        torch.testing.assert_close(gradient, slope[first : first + 2])


@pytest.mark.parametrize("name", NORMS)
def test_a_shared_batch_norm_is_one_of_the_whole_batch(name, alone, both):
    made, slope, slopes, kept, judged = alone["norms"][name]
    shares = [found["norms"][name] for found in both]
    torch.testing.assert_close(torch.cat([share[0] for share in shares]), made, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(torch.cat([share[1] for share in shares]), slope, atol=1e-5, rtol=1e-5)
    for share in shares:
        torch.testing.assert_close(share[2], slopes, atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(share[3], kept)
    torch.testing.assert_close(torch.cat([share[4] for share in shares]), judged, atol=1e-5, rtol=1e-5)


# --- training ----------------------------------------------------------------------------------


RUNS = ["modern", "parts"]


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_learn_what_one_does(name, alone, both):
    for found in both:
        assert found[name][0] == pytest.approx(alone[name][0], abs=1e-5)
        assert furthest(found[name][1], alone[name][1]) < 1e-6


def test_all_processes_end_with_one_network_and_one_loss(both):
    first, second = both
    for name in (*RUNS, "parts with norms"):
        assert first[name][0] == second[name][0]
        assert furthest(first[name][1], second[name][1]) == 0
