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
    minimiser = Minimiser(start, preconditioner, reference)
    minimiser.run(objective, tolerance=tolerance, evaluations=evaluations)
    return minimiser.minimum()


class Minimiser:
    """Minimisation in stages: each has an objective of its own, and continues with the curvature of those before.

    Parameters
    ----------
    start : (K, p) tensor
    preconditioner : callable
    reference : (K,) tensor, optional
        Norms that tolerances refer to; those at the first evaluation by default.

    Attributes
    ----------
    evaluations : int
        Passes over the data until now.
    """

    def __init__(self, start: Tensor, preconditioner: Preconditioner, reference: Tensor | None = None):
        self._state, self._preconditioner, self._reference = _State(start), preconditioner, reference
        self.evaluations = 0

    def run(self, objective: Objective, *, tolerance: float, evaluations: int) -> None:
        """Minimise until all problems are finished, with at most so many evaluations.

        Parameters
        ----------
        objective : callable
            Approximately that of the stages before.
        tolerance : float
        evaluations : int
        """
        state, running = self._state, self._all_problems
        value, gradient = objective(state.parameters, running)
        state.restart(value, gradient, self._preconditioner(gradient, running))
        if self._reference is None:
            self._reference = state.norm(running)
        state.update_direction(running, self._preconditioner)
        for _ in range(evaluations - 1):
            running = running[state.unfinished(running, tolerance * self._reference[running])]
            if not len(running):
                break
            trial = state.trial(running)
            value, gradient = objective(trial, running)
            moved = state.accept_or_shorten(running, trial, value, gradient, self._preconditioner(gradient, running))
            state.update_direction(running[moved], self._preconditioner)
            self.evaluations += 1
        self.evaluations += 1

    def minimum(self) -> Minimum:
        """State after the last stage."""
        state, reference = self._state, self._reference
        assert reference is not None
        return Minimum(
            parameters=state.parameters,
            value=state.value,
            decrement=state.norm(self._all_problems) / reference.clamp(min=1e-30),
            reference=reference,
            evaluations=self.evaluations,
        )

    @property
    def parameters(self) -> Tensor:
        """Parameters reached, (K, p)."""
        return self._state.parameters

    @property
    def _all_problems(self) -> Tensor:
        return torch.arange(len(self._state.parameters), device=self._state.parameters.device)


class _State:
    """All K problems; methods take the numbers of those that are concerned, (A,)."""

    def __init__(self, start: Tensor):
        self.parameters = start.clone()
        self.value, self._gradient, self._preconditioned = start[:, 0].clone(), start.clone(), start.clone()
        self._direction, self._slope = torch.zeros_like(start), torch.zeros_like(self.value)
        self._step_size = torch.ones_like(self.value)
        self._steps = start.new_zeros((_MEMORY, *start.shape))
        self._gradient_changes = torch.zeros_like(self._steps)
        self._inverse_curvature = start.new_zeros((_MEMORY, len(start)))  # 1 / (step . gradient change), 0: empty
        self._count = torch.zeros(len(start), dtype=torch.int64, device=start.device)
        self._scale = torch.ones_like(self.value)  # of the preconditioner, by the newest pair

    def restart(self, value: Tensor, gradient: Tensor, preconditioned: Tensor) -> None:
        """Take over value and gradient of all problems by the objective of a new stage."""
        self.value, self._gradient, self._preconditioned = value.clone(), gradient.clone(), preconditioned.clone()
        self._step_size.fill_(1)

    def norm(self, problem: Tensor) -> Tensor:
        """Norm of the preconditioned gradient, (A,)."""
        return (self._gradient[problem] * self._preconditioned[problem]).sum(1).clamp(min=0).sqrt()

    def unfinished(self, problem: Tensor, least: Tensor) -> Tensor:
        """Whether the norm of the gradient is above ``least`` (A,) and rounding, and a step is left to try, (A,)."""
        norm = self.norm(problem)
        rounding = _ROUNDING * self.value[problem].abs().sqrt()
        return (norm > least) & (norm > rounding) & (self._step_size[problem] >= _SHORTEST)

    def trial(self, problem: Tensor) -> Tensor:
        """Trial points, (A, p)."""
        return self.parameters[problem] + self._step_size[problem, None] * self._direction[problem]

    def accept_or_shorten(
        self, problem: Tensor, trial: Tensor, value: Tensor, gradient: Tensor, preconditioned: Tensor
    ) -> Tensor:
        """Move where the trial decreases the value enough, shorten the step elsewhere; returns where it moved, (A,)."""
        before, predicted = self.value[problem], self._step_size[problem] * self._slope[problem]
        accepted = value <= before + _SUFFICIENT * predicted + _ROUNDING * before.abs()
        shorter = -predicted / (2 * (value - before - predicted)).clamp(min=1e-30)  # minimum of a parabola
        self._step_size[problem] *= torch.where(accepted, 1, shorter.nan_to_num(0.1).clamp(0.1, 0.5))
        moved = problem[accepted]
        if len(moved):
            trial, gradient, preconditioned = trial[accepted], gradient[accepted], preconditioned[accepted]
            self._remember(moved, trial, gradient, preconditioned)
            self.parameters[moved], self.value[moved] = trial, value[accepted]
            self._gradient[moved], self._preconditioned[moved] = gradient, preconditioned
            self._step_size[moved] = 1
        return accepted

    def _remember(self, problem: Tensor, trial: Tensor, gradient: Tensor, preconditioned: Tensor) -> None:
        step, change = trial - self.parameters[problem], gradient - self._gradient[problem]
        curvature = (step * change).sum(1)
        keep = curvature > 1e-8 * step.norm(dim=1) * change.norm(dim=1)
        scale = (change * (preconditioned - self._preconditioned[problem])).sum(1)[keep] / curvature[keep]
        kept = problem[keep]
        slot = self._count[kept] % _MEMORY
        self._steps[slot, kept], self._gradient_changes[slot, kept] = step[keep], change[keep]
        self._inverse_curvature[slot, kept] = 1 / curvature[keep]
        self._scale[kept] = torch.where(scale > 0, 1 / scale.clamp(min=1e-30), torch.ones_like(scale))
        self._count[kept] += 1

    def update_direction(self, problem: Tensor, preconditioner: Preconditioner) -> None:
        """Compute the next search directions."""
        if not len(problem):
            return
        gradient, steepest = self._gradient[problem], -self._preconditioned[problem]
        newton = -self._two_loop_recursion(problem, preconditioner)
        slope = (newton * gradient).sum(1)
        uphill = slope >= 0
        self._direction[problem] = torch.where(uphill[:, None], steepest, newton)
        self._slope[problem] = torch.where(uphill, (steepest * gradient).sum(1), slope)

    def _two_loop_recursion(self, problem: Tensor, preconditioner: Preconditioner) -> Tensor:
        count = self._count[problem]
        slots = [(count - 1 - back) % _MEMORY for back in range(min(_MEMORY, int(count.max())))]
        memory = [
            (self._steps[slot, problem], self._gradient_changes[slot, problem], self._inverse_curvature[slot, problem])
            for slot in slots
        ]
        q, alphas = self._gradient[problem], []
        for step, change, inverse in memory:
            alphas.append(inverse * (step * q).sum(1))
            q = q - alphas[-1][:, None] * change
        z = preconditioner(q, problem) if memory else self._preconditioned[problem]
        z = z * self._scale[problem, None]
        for (step, change, inverse), alpha in zip(reversed(memory), reversed(alphas), strict=True):
            z += (alpha - inverse * (change * z).sum(1))[:, None] * step
        return z
