"""Limited-memory BFGS on many independent problems at once (Nocedal and Wright 2006, algorithm 7.4).

Every evaluation of the objective is one trial point for each problem still running. A problem whose
trial decreases its value enough moves there; otherwise its step is shortened for the next trial;
finished problems are left out. So each pass over the data serves all problems, whatever their pace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# parameters (A, p) and the numbers of their problems (A,) -> values (A,), gradients (A, p)
Objective = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
# vectors (A, p) and the numbers of their problems (A,) -> approximate inverse Hessian times vectors (A, p)
Preconditioner = Callable[[Tensor, Tensor], Tensor]

_MEMORY = 10  # pairs of step and gradient change that are kept
_SUFFICIENT = 1e-4  # Armijo's share of the decrease that the slope predicts
_ROUNDING = 3e-7  # relative rounding error of a value in float32
_SHORTEST = 1e-3  # a step shortened to this finds no decrease above rounding: the problem is finished


@dataclass(frozen=True)
class Minimum:
    """Final state of K problems.

    Attributes
    ----------
    parameters : (K, p) tensor
    value : (K,) tensor
    decrement : (K,) tensor
        Norm of the preconditioned gradient, relative to ``reference``.
    reference : (K,) tensor
        Norm of the preconditioned gradient at the reference point.
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
        A problem is finished when the norm of its preconditioned gradient falls below this share of
        its reference.
    evaluations : int
        Greatest number of evaluations of the objective.
    reference : (K,) tensor, optional
        Norms that the tolerance refers to; those at the start by default.

    Returns
    -------
    Minimum
    """
    all_problems = torch.arange(len(start), device=start.device)
    value, gradient = objective(start, all_problems)
    state = _State(all_problems, start.clone(), value, gradient, preconditioner(gradient, all_problems))
    norm = state.norm()
    reference = norm if reference is None else reference
    state.update_direction(preconditioner)
    results = _Results(start, state.value, norm)
    used = 1
    while True:
        running = (norm > tolerance * reference[state.problem]) & (state.step_size >= _SHORTEST)
        running &= norm > _ROUNDING * state.value.abs().sqrt()
        results.store(state, norm)
        if not running.any() or used >= evaluations:
            break
        if not running.all():
            state.keep_only(running)
        value, gradient = objective(state.trial(), state.problem)
        used += 1
        accepted = state.accept_or_shorten(value, gradient, preconditioner(gradient, state.problem))
        state.update_direction(preconditioner, accepted)
        norm = state.norm()
    return Minimum(
        parameters=results.parameters,
        value=results.value,
        decrement=results.norm / reference.clamp(min=1e-30),
        reference=reference,
        evaluations=used,
    )


class _Results:
    """Latest parameters, value and gradient norm of every problem, running or finished."""

    def __init__(self, parameters: Tensor, value: Tensor, norm: Tensor):
        self.parameters, self.value, self.norm = parameters.clone(), value.clone(), norm.clone()

    def store(self, state: _State, norm: Tensor) -> None:
        self.parameters[state.problem] = state.parameters
        self.value[state.problem] = state.value
        self.norm[state.problem] = norm


class _State:
    """The A problems still running; every tensor has them along one axis."""

    def __init__(self, problem: Tensor, parameters: Tensor, value: Tensor, gradient: Tensor, preconditioned: Tensor):
        self.problem, self.parameters, self.value, self.gradient = problem, parameters, value, gradient
        self._preconditioned = preconditioned  # gradient
        self.direction, self.slope = torch.zeros_like(gradient), torch.zeros_like(value)
        self.step_size = torch.ones_like(value)
        self._steps = gradient.new_zeros((_MEMORY, *gradient.shape))
        self._gradient_changes = torch.zeros_like(self._steps)
        self._inverse_curvature = gradient.new_zeros((_MEMORY, len(value)))  # 1 / (step . gradient change), 0: empty
        self._count = torch.zeros_like(problem)
        self._scale = torch.ones_like(value)  # of the preconditioner, by the newest pair

    def norm(self) -> Tensor:
        """Norm of the preconditioned gradient, (A,)."""
        return (self.gradient * self._preconditioned).sum(1).clamp(min=0).sqrt()

    def trial(self) -> Tensor:
        """Trial point of each problem."""
        return self.parameters + self.step_size[:, None] * self.direction

    def accept_or_shorten(self, value: Tensor, gradient: Tensor, preconditioned: Tensor) -> Tensor:
        """Move where the trial decreases the value enough, shorten the step elsewhere; returns where it moved."""
        predicted = self.step_size * self.slope
        accepted = value <= self.value + _SUFFICIENT * predicted + _ROUNDING * self.value.abs()
        self._remember(accepted, gradient, preconditioned)
        shorter = -predicted / (2 * (value - self.value - predicted)).clamp(min=1e-30)  # minimum of a parabola
        self.parameters = torch.where(accepted[:, None], self.trial(), self.parameters)
        self.value = torch.where(accepted, value, self.value)
        self.gradient = torch.where(accepted[:, None], gradient, self.gradient)
        self._preconditioned = torch.where(accepted[:, None], preconditioned, self._preconditioned)
        shortened = self.step_size * shorter.nan_to_num(0.1).clamp(0.1, 0.5)
        self.step_size = torch.where(accepted, torch.ones_like(self.step_size), shortened)
        return accepted

    def _remember(self, accepted: Tensor, gradient: Tensor, preconditioned: Tensor) -> None:
        step, change = self.step_size[:, None] * self.direction, gradient - self.gradient
        curvature = (step * change).sum(1)
        keep = (accepted & (curvature > 1e-8 * step.norm(dim=1) * change.norm(dim=1))).nonzero()[:, 0]
        slot = self._count[keep] % _MEMORY
        self._steps[slot, keep], self._gradient_changes[slot, keep] = step[keep], change[keep]
        self._inverse_curvature[slot, keep] = 1 / curvature[keep]
        scale = (change * (preconditioned - self._preconditioned)).sum(1)[keep] / curvature[keep]
        self._scale[keep] = torch.where(scale > 0, 1 / scale.clamp(min=1e-30), torch.ones_like(scale))
        self._count[keep] += 1

    def update_direction(self, preconditioner: Preconditioner, moved: Tensor | None = None) -> None:
        """Compute the next search direction of the problems that moved; of all by default."""
        newton = -self._two_loop_recursion(preconditioner)
        slope = (newton * self.gradient).sum(1)
        steepest = -self._preconditioned
        uphill = slope >= 0
        newton = torch.where(uphill[:, None], steepest, newton)
        slope = torch.where(uphill, (steepest * self.gradient).sum(1), slope)
        moved = torch.ones_like(uphill) if moved is None else moved
        self.direction = torch.where(moved[:, None], newton, self.direction)
        self.slope = torch.where(moved, slope, self.slope)

    def _two_loop_recursion(self, preconditioner: Preconditioner) -> Tensor:
        rows = torch.arange(len(self.value), device=self.value.device)
        slots = [(self._count - 1 - back) % _MEMORY for back in range(min(_MEMORY, int(self._count.max())))]
        memory = [
            (self._steps[slot, rows], self._gradient_changes[slot, rows], self._inverse_curvature[slot, rows])
            for slot in slots
        ]
        q, alphas = self.gradient.clone(), []
        for step, change, inverse in memory:
            alphas.append(inverse * (step * q).sum(1))
            q -= alphas[-1][:, None] * change
        z = preconditioner(q, self.problem) if memory else self._preconditioned.clone()
        z *= self._scale[:, None]
        for (step, change, inverse), alpha in zip(reversed(memory), reversed(alphas), strict=True):
            z += (alpha - inverse * (change * z).sum(1))[:, None] * step
        return z

    def keep_only(self, running: Tensor) -> None:
        """Drop the finished problems."""
        for name in ("problem", "parameters", "value", "gradient", "direction", "slope", "step_size"):
            setattr(self, name, getattr(self, name)[running])
        for name in ("_preconditioned", "_count", "_scale"):
            setattr(self, name, getattr(self, name)[running])
        for name in ("_steps", "_gradient_changes", "_inverse_curvature"):
            setattr(self, name, getattr(self, name)[:, running])
