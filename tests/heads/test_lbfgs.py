import pytest
import torch

from pucache.heads.lbfgs import minimise

pytestmark = pytest.mark.usefixtures("one_thread")
LIMIT = 400


def plain(vectors, problem):
    return vectors


class Rosenbrocks:
    """(1 - x)^2 + b_k (y - x^2)^2, curved valleys of growing narrowness; remembers which problems were asked about."""

    steepness = torch.tensor([1.0, 10.0, 100.0, 100.0, 30.0], dtype=torch.float64)
    start = torch.tensor([[-1.2, 1], [-1.2, 1], [-1.2, 1], [0, 3], [1, 1]], dtype=torch.float64)

    def __init__(self):
        self.asked = []

    def __call__(self, parameters, problem):
        self.asked.append(problem.tolist())
        (x, y), b = parameters.T, self.steepness[problem]
        off = y - x**2
        gradient = torch.stack([-2 * (1 - x) - 4 * b * x * off, 2 * b * off], 1)
        return (1 - x) ** 2 + b * off**2, gradient


def test_no_more_evaluations_than_allowed_and_what_is_found_by_then_is_kept():
    family, previous = Rosenbrocks(), float("inf")
    for limit in (1, 4, 12):
        family.asked.clear()
        found = minimise(family, family.start, plain, tolerance=1e-12, evaluations=limit)
        assert found.evaluations == len(family.asked) == limit
        torch.testing.assert_close(found.value, family(found.parameters, torch.arange(5))[0])
        assert found.value.sum() < previous
        previous = found.value.sum()


def test_a_step_out_of_the_domain_is_shortened():
    """x - a log x is NaN at negative x, where the first step leads."""
    scale = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)

    def barrier(x, k):
        return (x - scale[k, None] * x.log()).sum(1), 1 - scale[k, None] / x

    start = torch.full((3, 1), 0.9, dtype=torch.float64)
    far = minimise(barrier, start, lambda v, k: 9 * v, tolerance=1e-8, evaluations=LIMIT)
    torch.testing.assert_close(far.parameters[:, 0], scale, rtol=1e-6, atol=0)


def test_a_direction_spoilt_by_a_pair_of_hardly_any_curvature_is_given_up():
    """Far out on sqrt(1 + x^2) the newest pair magnifies steps, so none decreases the value; the search starts anew."""

    def valley(x, k):
        value = (1 + x**2).sqrt()
        return value.sum(1), x / value

    start = torch.tensor([[60.0], [-45.0]], dtype=torch.float64)
    found = minimise(valley, start, lambda v, k: 9 * v, tolerance=1e-6, evaluations=LIMIT)
    torch.testing.assert_close(found.parameters, torch.zeros_like(start), rtol=0, atol=1e-4)
