"""Limited-memory BFGS on many independent problems at once (Nocedal and Wright 2006, algorithm 7.4).

Every evaluation is one trial for every problem still running: a problem whose trial is good moves
on, one whose trial is bad tries a shorter step next time, one that is done is left out. So each
pass over the data serves all of them, whatever their pace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# parameters (A, p) and the problems they belong to (A,) -> values (A,), gradients (A, p)
Objective = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
# vectors (A, p) and their problems (A,) -> approximately inverse Hessian times vectors (A, p)
Preconditioner = Callable[[Tensor, Tensor], Tensor]

_MEMORY = 10
_SUFFICIENT = 1e-4  # Armijo's share of the decrease that the slope promises
_ROUNDING = 3e-7  # of a value in float32
_SHORTEST = 1e-3  # a step cut down to this finds no decrease above rounding: the problem is done


@dataclass(frozen=True)
class Minimum:
    """Where K problems ended.

    Attributes
    ----------
    parameters : (K, p) tensor
    value : (K,) tensor
    decrement : (K,) tensor
        Norm of the preconditioned gradient there, over that at the reference point.
    reference : (K,) tensor
        That norm.
    evaluations : int
        Passes over the data.
    """

    parameters: Tensor
    value: Tensor
    decrement: Tensor
    reference: Tensor
    evaluations: int


def minimise(
    objective: Objective,
    start: Tensor,
    preconditioner: Preconditioner,
    *,
    tolerance: float,
    evaluations: int,
    reference: Tensor | None = None,
) -> Minimum:
    """Minimise K smooth functions.

    Parameters
    ----------
    objective, preconditioner : callable
    start : (K, p) tensor
    tolerance : float
        A problem is done when its preconditioned gradient norm falls below this share of its
        reference.
    evaluations : int
        At most so many.
    reference : (K,) tensor, optional
        Norms that the tolerance refers to; those at the start by default.
    """
    everything = torch.arange(len(start), device=start.device)
    state = _State(everything, start.clone(), *objective(start, everything))
    norm = _norm(state.gradient, preconditioner(state.gradient, everything))
    reference = norm if reference is None else reference
    state.turn(preconditioner)
    done = _Results(start, state.value, norm)
    used = 1
    while True:
        running = (norm > tolerance * reference[state.problem]) & (state.step >= _SHORTEST)
        running &= norm > _ROUNDING * state.value.abs().sqrt()
        done.keep(state, norm)
        if not running.any() or used >= evaluations:
            break
        if not running.all():
            state.keep_only(running)
        value, gradient = objective(state.trial(), state.problem)
        used += 1
        moved = state.judge(value, gradient)
        state.turn(preconditioner, moved)
        norm = _norm(state.gradient, preconditioner(state.gradient, state.problem))
    return Minimum(done.parameters, done.value, done.norm / reference.clamp(min=1e-30), reference, used)


class _Results:
    """What is known of every problem, running or done."""

    def __init__(self, parameters: Tensor, value: Tensor, norm: Tensor):
        self.parameters, self.value, self.norm = parameters.clone(), value.clone(), norm.clone()

    def keep(self, state: _State, norm: Tensor) -> None:
        self.parameters[state.problem] = state.parameters
        self.value[state.problem] = state.value
        self.norm[state.problem] = norm


class _State:
    """The A problems still running; every tensor has them along one axis."""

    def __init__(self, problem: Tensor, parameters: Tensor, value: Tensor, gradient: Tensor):
        self.problem, self.parameters, self.value, self.gradient = problem, parameters, value, gradient
        self.direction, self.slope = torch.zeros_like(gradient), torch.zeros_like(value)
        self.step = torch.ones_like(value)
        self._moves = gradient.new_zeros((_MEMORY, *gradient.shape))
        self._turns = torch.zeros_like(self._moves)
        self._inverse = gradient.new_zeros((_MEMORY, len(value)))  # 1 / (move . turn), 0: none
        self._count = torch.zeros_like(problem)

    def trial(self) -> Tensor:
        """Where each problem tries next."""
        return self.parameters + self.step[:, None] * self.direction

    def judge(self, value: Tensor, gradient: Tensor) -> Tensor:
        """Move where the trial decreases the value enough, shorten the step elsewhere; says where it moved."""
        promised = self.step * self.slope
        good = value <= self.value + _SUFFICIENT * promised + _ROUNDING * self.value.abs()
        self._remember(good, gradient)
        shorter = -promised / (2 * (value - self.value - promised)).clamp(min=1e-30)  # of a parabola
        self.parameters = torch.where(good[:, None], self.trial(), self.parameters)
        self.value = torch.where(good, value, self.value)
        self.gradient = torch.where(good[:, None], gradient, self.gradient)
        self.step = torch.where(good, torch.ones_like(self.step), self.step * shorter.nan_to_num(0.1).clamp(0.1, 0.5))
        return good

    def _remember(self, good: Tensor, gradient: Tensor) -> None:
        move, turn = self.step[:, None] * self.direction, gradient - self.gradient
        curvature = (move * turn).sum(1)
        keep = (good & (curvature > 1e-8 * move.norm(dim=1) * turn.norm(dim=1))).nonzero()[:, 0]
        place = self._count[keep] % _MEMORY
        self._moves[place, keep], self._turns[place, keep] = move[keep], turn[keep]
        self._inverse[place, keep] = 1 / curvature[keep]
        self._count[keep] += 1

    def turn(self, preconditioner: Preconditioner, moved: Tensor | None = None) -> None:
        """Choose the direction of the next step, for the problems that moved."""
        fresh = -self._two_loops(preconditioner)
        slope = (fresh * self.gradient).sum(1)
        plain = -preconditioner(self.gradient, self.problem)
        uphill = slope >= 0
        fresh = torch.where(uphill[:, None], plain, fresh)
        slope = torch.where(uphill, (plain * self.gradient).sum(1), slope)
        moved = torch.ones_like(uphill) if moved is None else moved
        self.direction = torch.where(moved[:, None], fresh, self.direction)
        self.slope = torch.where(moved, slope, self.slope)

    def _two_loops(self, preconditioner: Preconditioner) -> Tensor:
        every = torch.arange(len(self.value), device=self.value.device)
        order = [(self._count - 1 - back) % _MEMORY for back in range(min(_MEMORY, int(self._count.max())))]
        memory = [(self._moves[at, every], self._turns[at, every], self._inverse[at, every]) for at in order]
        q, shares = self.gradient.clone(), []
        for move, turn, inverse in memory:
            shares.append(inverse * (move * q).sum(1))
            q -= shares[-1][:, None] * turn
        z = preconditioner(q, self.problem)
        if memory:  # scale as the newest pair says
            _, turn, inverse = memory[0]
            bent = (turn * preconditioner(turn, self.problem)).sum(1) * inverse
            z *= torch.where(bent > 0, 1 / bent.clamp(min=1e-30), torch.ones_like(bent))[:, None]
        for (move, turn, inverse), share in zip(reversed(memory), reversed(shares), strict=True):
            z += (share - inverse * (turn * z).sum(1))[:, None] * move
        return z

    def keep_only(self, running: Tensor) -> None:
        """Drop the problems that are done."""
        for name in ("problem", "parameters", "value", "gradient", "direction", "slope", "step", "_count"):
            setattr(self, name, getattr(self, name)[running])
        for name in ("_moves", "_turns", "_inverse"):
            setattr(self, name, getattr(self, name)[:, running])


def _norm(gradient: Tensor, preconditioned: Tensor) -> Tensor:
    return (gradient * preconditioned).sum(1).clamp(min=0).sqrt()
