import pytest
import torch

from pucache.heads.lbfgs import minimise

pytestmark = pytest.mark.usefixtures("one_thread")
DIM, LIMIT = 6, 400


def plain(vectors, problem):
    return vectors


class Quadratics:
    """0.5 (x - c_k)' H_k (x - c_k) + k, of condition 1 to 10,000; remembers which problems were asked about."""

    def __init__(self, count=5):
        draw = torch.Generator().manual_seed(0)
        self.centre = torch.randn(count, DIM, dtype=torch.float64, generator=draw)
        turns = torch.linalg.qr(torch.randn(count, DIM, DIM, dtype=torch.float64, generator=draw)).Q
        condition = torch.logspace(0, 4, count, dtype=torch.float64)
        share = torch.linspace(0, 1, DIM, dtype=torch.float64)
        self.hessian = turns @ torch.diag_embed(20 * condition[:, None] ** -share) @ turns.mT
        self.start = 3 * torch.randn(count, DIM, dtype=torch.float64, generator=draw)
        self.asked = []

    def __call__(self, parameters, problem):
        self.asked.append(problem.tolist())
        away = parameters - self.centre[problem]
        gradient = torch.einsum("kij,kj->ki", self.hessian[problem], away)
        return 0.5 * (gradient * away).sum(1) + problem, gradient


class Rosenbrocks:
    """(1 - x)^2 + b_k (y - x^2)^2, curved valleys of growing narrowness."""

    steepness = torch.tensor([1.0, 10.0, 100.0, 100.0, 30.0], dtype=torch.float64)
    start = torch.tensor([[-1.2, 1], [-1.2, 1], [-1.2, 1], [0, 3], [1, 1]], dtype=torch.float64)
    centre = torch.ones(5, 2, dtype=torch.float64)

    def __init__(self):
        self.asked = []

    def __call__(self, parameters, problem):
        self.asked.append(problem.tolist())
        (x, y), b = parameters.T, self.steepness[problem]
        off = y - x**2
        gradient = torch.stack([-2 * (1 - x) - 4 * b * x * off, 2 * b * off], 1)
        return (1 - x) ** 2 + b * off**2, gradient


FAMILIES = [Quadratics, Rosenbrocks]


def only(family, k):
    """Problem k by itself."""
    return lambda parameters, problem: family(parameters, problem + k)


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_minima_are_found(kind):
    family = kind()
    found = minimise(family, family.start, plain, tolerance=1e-7, evaluations=LIMIT)
    torch.testing.assert_close(found.parameters, family.centre, rtol=0, atol=1e-4)
    assert (found.decrement <= 1e-7).all() and found.evaluations == len(family.asked) < LIMIT
    problem = torch.arange(len(family.start))
    torch.testing.assert_close(found.value, family(found.parameters, problem)[0])


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_problem_ends_where_it_ends_alone_after_as_many_evaluations(kind):
    family = kind()
    together = minimise(family, family.start, plain, tolerance=1e-3, evaluations=LIMIT)
    paces = [sum(k in asked for asked in family.asked) for k in range(5)]
    assert len(set(paces)) >= 3 and max(paces) == together.evaluations
    for k, pace in enumerate(paces):
        alone = minimise(only(family, k), family.start[k : k + 1], plain, tolerance=1e-3, evaluations=LIMIT)
        assert alone.evaluations == pace
        torch.testing.assert_close(alone.parameters[0], together.parameters[k], rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(alone.value[0], together.value[k], rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(alone.decrement[0], together.decrement[k], rtol=1e-4, atol=1e-9)


def test_the_tolerance_refers_to_the_reference_where_one_is_given():
    family = Quadratics()
    _, at_start = family(family.start, torch.arange(5))
    reference = 1e3 * at_start.norm(dim=1)
    own = minimise(family, family.start, plain, tolerance=1e-3, evaluations=LIMIT)
    lax = minimise(family, family.start, plain, tolerance=1e-3, evaluations=LIMIT, reference=reference)
    assert lax.evaluations == 1 < own.evaluations
    torch.testing.assert_close(lax.decrement, torch.full_like(reference, 1e-3))


@pytest.mark.parametrize("kind", FAMILIES)
def test_no_more_evaluations_than_allowed_and_what_is_found_by_then_is_kept(kind):
    family, previous = kind(), float("inf")
    for limit in (1, 4, 12):
        family.asked.clear()
        found = minimise(family, family.start, plain, tolerance=1e-12, evaluations=limit)
        assert found.evaluations == len(family.asked) == limit
        torch.testing.assert_close(found.value, family(found.parameters, torch.arange(5))[0])
        assert found.value.sum() < previous
        previous = found.value.sum()


def test_a_problem_at_its_minimum_stays_there_whatever_the_others_do():
    family = Quadratics()
    family.start[2] = family.centre[2]
    found = minimise(family, family.start, plain, tolerance=1e-7, evaluations=LIMIT)
    assert (found.parameters[2] == family.centre[2]).all() and found.decrement[2] == 0
    assert sum(2 in asked for asked in family.asked) == 1
    torch.testing.assert_close(found.parameters, family.centre, rtol=0, atol=1e-4)
    only_it = minimise(only(family, 2), family.start[2:3], plain, tolerance=1e-7, evaluations=LIMIT)
    assert only_it.evaluations == 1 and (only_it.parameters[0] == family.centre[2]).all()


def test_a_better_preconditioner_makes_fewer_evaluations():
    family = Quadratics()
    exact = torch.linalg.inv(family.hessian)
    newton = minimise(
        family,
        family.start,
        lambda vectors, problem: torch.einsum("kij,kj->ki", exact[problem], vectors),
        tolerance=1e-6,
        evaluations=LIMIT,
    )
    assert newton.evaluations == 2
    torch.testing.assert_close(newton.parameters, family.centre, rtol=0, atol=1e-6)


def test_a_step_out_of_the_domain_is_shortened():
    """x - a log x is NaN at negative x, where the first step leads."""
    scale = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)

    def barrier(x, k):
        return (x - scale[k, None] * x.log()).sum(1), 1 - scale[k, None] / x

    start = torch.full((3, 1), 0.9, dtype=torch.float64)
    far = minimise(barrier, start, lambda v, k: 9 * v, tolerance=1e-8, evaluations=LIMIT)
    torch.testing.assert_close(far.parameters[:, 0], scale, rtol=1e-6, atol=0)


def test_a_gradient_of_rounding_alone_ends_the_search():
    def flat(x, k):
        return torch.full_like(x[:, 0], 0.5), torch.full_like(x, 1e-9) * torch.sign(x)

    found = minimise(flat, torch.ones(3, 4), plain, tolerance=1e-3, evaluations=LIMIT)
    assert found.evaluations == 1 and (found.parameters == 1).all()


def test_a_direction_spoilt_by_a_pair_of_hardly_any_curvature_is_given_up():
    """Far out on sqrt(1 + x^2) the newest pair magnifies steps, so none decreases the value; the search starts anew."""

    def valley(x, k):
        value = (1 + x**2).sqrt()
        return value.sum(1), x / value

    start = torch.tensor([[60.0], [-45.0]], dtype=torch.float64)
    found = minimise(valley, start, lambda v, k: 9 * v, tolerance=1e-6, evaluations=LIMIT)
    torch.testing.assert_close(found.parameters, torch.zeros_like(start), rtol=0, atol=1e-4)
