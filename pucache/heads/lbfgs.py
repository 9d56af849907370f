"""Limited-memory BFGS on many independent problems at once (Nocedal and Wright 2006, algorithm 7.4).

Every evaluation of the objective is one trial point for each problem still running. A problem whose
trial decreases its value enough moves there; otherwise its step is shortened for the next trial;
finished problems leave the batch. So each pass over the data serves all problems, whatever their pace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from numpy.typing import ArrayLike
from torch import Tensor

# parameters (A, p) and the numbers of their problems (A,) -> values (A,), gradients (A, p)
Objective = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
# vectors (A, p) and the numbers of their problems (A,) -> approximate inverse Hessian times vectors (A, p)
InverseHessian = Callable[[Tensor, Tensor], Tensor]

_MEMORY = 10  # pairs of step and gradient change that are kept
_SUFFICIENT = 1e-4  # Armijo's share of the decrease that the slope predicts
_ROUNDING = 3e-7  # relative rounding error of a value in float32
_SHORTEST = 1e-3  # a step shortened to this, without remembered pairs, finds no decrease: the problem is finished


def minimise(
    objective: Objective,
    start: Tensor,
    preconditioner: InverseHessian,
    *,
    tolerance: ArrayLike,
    evaluations: int,
    reference: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Minimise K smooth functions of p parameters, from `start` (K, p).

    A problem is finished when the norm of its preconditioned gradient falls below the share `tolerance` (K,) of its
    `reference` (K,), by default the norm at the start. `evaluations` is the greatest number of evaluations of the
    objective. Returns the parameters, their values (K,), and the norms there relative to the references, (K,).
    """
    every = torch.arange(len(start), device=start.device)
    value, gradient = objective(start, every)
    batch = _Batch.at(every, start, value, gradient, preconditioner(gradient, every))
    reference = batch.norm() if reference is None else reference
    enough = reference * torch.as_tensor(tolerance, dtype=reference.dtype, device=reference.device)
    parameters, value, norm, used = start.clone(), value.clone(), batch.norm(), 1
    while used < evaluations:
        running = batch.unfinished(enough[batch.problem])
        if not running.all():
            batch = batch.select(running)
        if not len(batch.problem):
            break
        batch.update_direction(preconditioner)
        trial = batch.parameters + batch.step_size[:, None] * batch.direction
        trial_value, gradient = objective(trial, batch.problem)
        batch.accept_or_shorten(trial, trial_value, gradient, preconditioner(gradient, batch.problem))
        parameters[batch.problem], value[batch.problem] = batch.parameters, batch.value
        norm[batch.problem] = batch.norm()
        used += 1
    return parameters, value, norm / reference.clamp(min=1e-30)


@dataclass
class _Batch:
    """The A problems still running; the first axis of every tensor is theirs.

    ``steps`` and ``changes`` (A, memory, p) are the newest pairs, each in the slot of its number modulo the memory,
    and ``inverse_curvature`` (A, memory) is 1 / (step . change), 0 in empty slots. ``scale`` corrects the
    preconditioner by the newest pair.
    """

    problem: Tensor
    parameters: Tensor
    value: Tensor
    gradient: Tensor
    preconditioned: Tensor
    direction: Tensor
    slope: Tensor
    step_size: Tensor
    steps: Tensor
    changes: Tensor
    inverse_curvature: Tensor
    pairs: Tensor
    scale: Tensor

    @classmethod
    def at(cls, problem: Tensor, start: Tensor, value: Tensor, gradient: Tensor, preconditioned: Tensor) -> _Batch:
        heads, size = start.shape
        memory = start.new_zeros((heads, _MEMORY, size))
        return cls(
            problem=problem,
            parameters=start,
            value=value,
            gradient=gradient,
            preconditioned=preconditioned,
            direction=torch.zeros_like(start),
            slope=torch.zeros_like(value),
            step_size=torch.ones_like(value),
            steps=memory,
            changes=memory.clone(),
            inverse_curvature=start.new_zeros((heads, _MEMORY)),
            pairs=torch.zeros_like(problem),
            scale=torch.ones_like(value),
        )

    def select(self, mask: Tensor) -> _Batch:
        return _Batch(**{field.name: getattr(self, field.name)[mask] for field in fields(self)})

    def norm(self) -> Tensor:
        """Norm of the preconditioned gradient, (A,)."""
        return (self.gradient * self.preconditioned).sum(1).clamp(min=0).sqrt()

    def unfinished(self, least: Tensor) -> Tensor:
        """Whether the norm of the gradient is above ``least`` (A,) and rounding, and a step is left to try, (A,)."""
        norm = self.norm()
        return (norm > least) & (norm > _ROUNDING * self.value.abs().sqrt()) & (self.step_size >= _SHORTEST)

    def accept_or_shorten(self, trial: Tensor, value: Tensor, gradient: Tensor, preconditioned: Tensor) -> None:
        """Move where the trial decreases the value enough, and shorten the step elsewhere."""
        predicted = self.step_size * self.slope
        accepted = value <= self.value + _SUFFICIENT * predicted + _ROUNDING * self.value.abs()
        shorter = -predicted / (2 * (value - self.value - predicted)).clamp(min=1e-30)  # minimum of a parabola
        shortened = self.step_size * shorter.nan_to_num(0.1).clamp(0.1, 0.5)
        self.step_size = torch.where(accepted, 1, shortened)
        self._remember(accepted, trial - self.parameters, gradient - self.gradient, preconditioned)
        self._forget((self.step_size < _SHORTEST) & (self.pairs > 0))
        self.value = torch.where(accepted, value, self.value)
        for name, new in (("parameters", trial), ("gradient", gradient), ("preconditioned", preconditioned)):
            setattr(self, name, torch.where(accepted[:, None], new, getattr(self, name)))

    def _remember(self, accepted: Tensor, step: Tensor, change: Tensor, preconditioned: Tensor) -> None:
        """Keep step and gradient change where the problem moved and they have curvature."""
        curvature = (step * change).sum(1)
        keep = accepted & (curvature > 1e-8 * step.norm(dim=1) * change.norm(dim=1))
        rows, slot = torch.arange(len(keep), device=keep.device), self.pairs % _MEMORY
        for memory, new in ((self.steps, step), (self.changes, change)):
            memory[rows, slot] = torch.where(keep[:, None], new, memory[rows, slot])
        self.inverse_curvature[rows, slot] = torch.where(keep, 1 / curvature, self.inverse_curvature[rows, slot])
        scale = (change * (preconditioned - self.preconditioned)).sum(1) / curvature
        self.scale = torch.where(keep, torch.where(scale > 0, 1 / scale.clamp(min=1e-30), 1), self.scale)
        self.pairs = self.pairs + keep

    def _forget(self, stuck: Tensor) -> None:
        """Drop the pairs of problems whose direction finds no decrease: one of little curvature may be the cause."""
        self.inverse_curvature = torch.where(stuck[:, None], 0, self.inverse_curvature)
        self.pairs, self.scale = torch.where(stuck, 0, self.pairs), torch.where(stuck, 1, self.scale)
        self.step_size = torch.where(stuck, 1, self.step_size)

    def update_direction(self, preconditioner: InverseHessian) -> None:
        """Compute the search directions; without a new pair they come out as they were."""
        newton = -self._two_loop_recursion(preconditioner)
        slope = (newton * self.gradient).sum(1)
        uphill = slope >= 0
        self.direction = torch.where(uphill[:, None], -self.preconditioned, newton)
        self.slope = torch.where(uphill, -(self.preconditioned * self.gradient).sum(1), slope)

    def _two_loop_recursion(self, preconditioner: InverseHessian) -> Tensor:
        rows = torch.arange(len(self.problem), device=self.problem.device)
        slots = [(self.pairs - 1 - back) % _MEMORY for back in range(min(_MEMORY, int(self.pairs.max())))]
        memory = [[m[rows, slot] for m in (self.steps, self.changes, self.inverse_curvature)] for slot in slots]
        q, alphas = self.gradient, []
        for step, change, inverse in memory:
            alphas.append(inverse * (step * q).sum(1))
            q = q - alphas[-1][:, None] * change
        z = preconditioner(q, self.problem) * self.scale[:, None]
        for (step, change, inverse), alpha in zip(reversed(memory), reversed(alphas), strict=True):
            z += (alpha - inverse * (change * z).sum(1))[:, None] * step
        return z
