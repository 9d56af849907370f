"""Limited-memory BFGS on many independent problems at once (Nocedal and Wright 2006, algorithm 7.4).

Every evaluation of the objective is one trial point for each problem still running. A problem whose
trial decreases its value enough moves there; otherwise its step is shortened for the next trial;
finished problems are left out. So each pass over the data serves all problems, whatever their pace.

For a CUDA device the host waits once an evaluation, to see which problems are still running. Rejected trials
are dropped there without a selection of rows, and directions come from products of matrices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .precision import full_precision

# parameters (A, p) and the numbers of their problems (A,) -> values (A,), gradients (A, p)
Objective = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
# vectors (A, p) and the numbers of their problems (A,) -> approximate inverse Hessian times vectors (A, p)
Preconditioner = Callable[[Tensor, Tensor], Tensor]

_MEMORY = 10  # pairs of step and gradient change that are kept
_SUFFICIENT = 1e-4  # Armijo's share of the decrease that the slope predicts
_ROUNDING = 3e-7  # relative rounding error of a value in float32
_SHORTEST = 1e-3  # a step shortened to this finds no decrease above rounding: the problem is finished


def rows_of(values: Tensor, problem: Tensor) -> Tensor:
    """Values (K, ...) of some problems, whose numbers (A,) ascend; where these are all, the values themselves."""
    return values if len(values) == len(problem) else values[problem]


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
            running = _selected(running, state.unfinished(running, tolerance * rows_of(self._reference, running)))
            if not len(running):
                break
            trial = state.trial(running)
            value, gradient = objective(trial, running)
            moved = state.accept_or_shorten(running, trial, value, gradient, self._preconditioner(gradient, running))
            state.update_direction(moved, self._preconditioner)
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
    """All K problems; methods take the numbers of those that are concerned, (A,), ascending."""

    def __init__(self, start: Tensor):
        self.parameters = start.clone()
        self.value, self._gradient, self._preconditioned = start[:, 0].clone(), start.clone(), start.clone()
        self._direction, self._slope = torch.zeros_like(start), torch.zeros_like(self.value)
        self._step_size = torch.ones_like(self.value)
        self._steps = start.new_zeros((_MEMORY + 1, *start.shape))  # the last slot takes what is not remembered
        self._gradient_changes = torch.zeros_like(self._steps)
        self._inverse_curvature = start.new_zeros((_MEMORY + 1, len(start)))  # 1 / (step . gradient change), 0: empty
        self._count = torch.zeros(len(start), dtype=torch.int64, device=start.device)
        self._updates = 0  # of the memory: no problem has more pairs
        self._scale = torch.ones_like(self.value)  # of the preconditioner, by the newest pair

    def restart(self, value: Tensor, gradient: Tensor, preconditioned: Tensor) -> None:
        """Take over value and gradient of all problems by the objective of a new stage."""
        self.value, self._gradient, self._preconditioned = value.clone(), gradient.clone(), preconditioned.clone()
        self._step_size.fill_(1)

    def norm(self, problem: Tensor) -> Tensor:
        """Norm of the preconditioned gradient, (A,)."""
        return (rows_of(self._gradient, problem) * rows_of(self._preconditioned, problem)).sum(1).clamp(min=0).sqrt()

    def unfinished(self, problem: Tensor, least: Tensor) -> Tensor:
        """Whether the norm of the gradient is above ``least`` (A,) and rounding, and a step is left to try, (A,)."""
        norm = self.norm(problem)
        rounding = _ROUNDING * rows_of(self.value, problem).abs().sqrt()
        return (norm > least) & (norm > rounding) & (rows_of(self._step_size, problem) >= _SHORTEST)

    def trial(self, problem: Tensor) -> Tensor:
        """Trial points, (A, p)."""
        step = rows_of(self._step_size, problem)[:, None] * rows_of(self._direction, problem)
        return rows_of(self.parameters, problem) + step

    def accept_or_shorten(
        self, problem: Tensor, trial: Tensor, value: Tensor, gradient: Tensor, preconditioned: Tensor
    ) -> Tensor:
        """Move where the trial decreases the value enough, and shorten the step elsewhere.

        Returns the problems whose directions change: those that moved. On CUDA all of them are returned, as the host
        does not know which moved; the directions of the others come out as they were.
        """
        before, size = rows_of(self.value, problem), rows_of(self._step_size, problem)
        predicted = size * rows_of(self._slope, problem)
        accepted = value <= before + _SUFFICIENT * predicted + _ROUNDING * before.abs()
        shorter = -predicted / (2 * (value - before - predicted)).clamp(min=1e-30)  # minimum of a parabola
        shortened = size * shorter.nan_to_num(0.1).clamp(0.1, 0.5)
        self._step_size[problem] = torch.where(accepted, 1, shortened)
        reached = [trial, value, gradient, preconditioned]
        if accepted.is_cuda:
            masks = (accepted[:, None] if values.dim() > 1 else accepted for values in reached)
            moves = zip(masks, reached, self._point, strict=True)
            reached = [torch.where(mask, new, rows_of(current, problem)) for mask, new, current in moves]
        else:
            problem, *reached = (values[accepted] for values in (problem, *reached))
        if len(problem):
            self._move(problem, *reached)
        return problem

    @property
    def _point(self) -> tuple[Tensor, ...]:
        return self.parameters, self.value, self._gradient, self._preconditioned

    def _move(self, problem: Tensor, trial: Tensor, value: Tensor, gradient: Tensor, preconditioned: Tensor) -> None:
        """Remember step and gradient change where they have curvature, which those without a step have not."""
        step, change = trial - rows_of(self.parameters, problem), gradient - rows_of(self._gradient, problem)
        curvature = (step * change).sum(1)
        keep = curvature > 1e-8 * step.norm(dim=1) * change.norm(dim=1)
        slot = torch.where(keep, rows_of(self._count, problem) % _MEMORY, _MEMORY)
        self._steps[slot, problem], self._gradient_changes[slot, problem] = step, change
        self._inverse_curvature[slot, problem] = 1 / curvature
        scale = (change * (preconditioned - rows_of(self._preconditioned, problem))).sum(1) / curvature
        newest = torch.where(scale > 0, 1 / scale.clamp(min=1e-30), 1)
        self._scale[problem] = torch.where(keep, newest, rows_of(self._scale, problem))
        self._count[problem] += keep
        self._updates += 1
        for values, new in zip(self._point, (trial, value, gradient, preconditioned), strict=True):
            values[problem] = new

    def update_direction(self, problem: Tensor, preconditioner: Preconditioner) -> None:
        """Compute the next search directions."""
        if not len(problem):
            return
        gradient, steepest = rows_of(self._gradient, problem), -rows_of(self._preconditioned, problem)
        solve = self._by_products if problem.is_cuda else self._two_loop_recursion
        newton = -solve(problem, preconditioner)
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

    def _by_products(self, problem: Tensor, preconditioner: Preconditioner) -> Tensor:
        """The two-loop recursion by triangular systems of all pairs (Byrd, Nocedal and Schnabel 1994).

        A handful of launches in place of a dozen for each pair; rounding apart, the result is the same.
        """
        memory, row = min(_MEMORY, self._updates), problem[:, None]
        if not memory:
            return rows_of(self._preconditioned, problem) * rows_of(self._scale, problem)[:, None]
        newest_last = torch.arange(-memory, 0, device=problem.device)
        slot = (rows_of(self._count, problem)[:, None] + newest_last) % _MEMORY  # (A, m)
        steps, changes = self._steps[slot, row], self._gradient_changes[slot, row]  # (A, m, p), zero where empty
        gradient = rows_of(self._gradient, problem)
        with full_precision(problem.device):
            products = torch.bmm(steps, changes.mT).triu_()  # step i . change j for i <= j
            diagonal = products.diagonal(dim1=1, dim2=2)  # (A, m)
            diagonal += diagonal == 0  # of empty slots
            along = torch.bmm(steps, gradient[:, :, None])
            alpha = torch.linalg.solve_triangular(products, along, upper=True)  # (A, m, 1)
            q = torch.baddbmm(gradient[:, :, None], changes.mT, alpha, alpha=-1)[:, :, 0]
            z = preconditioner(q, problem) * rows_of(self._scale, problem)[:, None]
            rest = torch.baddbmm(diagonal[:, :, None] * alpha, changes, z[:, :, None], alpha=-1)
            beta = torch.linalg.solve_triangular(products.mT, rest, upper=False)
            return torch.baddbmm(z[:, :, None], steps.mT, beta)[:, :, 0]


def _selected(problem: Tensor, mask: Tensor) -> Tensor:
    """The problems of a mask, (A,); a device is waited for once."""
    if not mask.is_cuda:
        return problem[mask]
    count = int(mask.sum())
    return problem if count == len(mask) else problem[mask.byte().sort(descending=True, stable=True).indices[:count]]
