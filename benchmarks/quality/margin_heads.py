"""Train many linear heads at once on any loss of the margins, with pucache's L-BFGS."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pucache.heads.lbfgs import minimise
from pucache.heads.moments import Moments
from pucache.heads.preconditioner import LeadingDirections, evenly_spaced
from pucache.heads.solve import flushed_denormals

TOLERANCE, EVALUATIONS = 3e-3, 60
_CURVATURE = 0.25
_DIRECTIONS = 64

# margins (A, n) and the heads that they belong to (A,) -> losses (A,)
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Rows:
    """Rows to train on, P before U, centred and scaled as pucache's heads see them.

    Attributes
    ----------
    X : (n, d) float32 tensor
    p : int
        The first rows are labelled.
    fold : (n,) tensor
        Each row is left out of the heads of its fold; `folds` is the number of a head that leaves out none.
    folds : int
    directions, variances, rest
        Of `pucache.heads.preconditioner.LeadingDirections`.
    """

    X: Tensor
    p: int
    fold: Tensor
    folds: int
    directions: Tensor
    variances: Tensor
    rest: float

    @classmethod
    def of(cls, X: np.ndarray, s: np.ndarray, fold: np.ndarray, moments: Moments) -> "Rows":
        order = np.argsort(-s, kind="stable")
        scaled = torch.from_numpy(X.astype(np.float32)).sub_(torch.from_numpy(moments.centre)).div_(moments.spread)
        leading = LeadingDirections.of_sample(scaled[evenly_spaced(len(X))], _DIRECTIONS)
        return cls(
            scaled[order],
            int(s.sum()),
            torch.from_numpy(fold[order]),
            int(fold.max()) + 1,
            leading.directions,
            leading.variances,
            leading.rest,
        )

    def thinned(self, unlabelled: int) -> "Rows":
        """All P and so many of U, evenly spaced."""
        u = len(self.X) - self.p
        kept = self.p + np.unique(np.linspace(0, u - 1, min(u, unlabelled)).astype(np.int64))
        rows = torch.from_numpy(np.concatenate([np.arange(self.p), kept]))
        return Rows(self.X[rows], self.p, self.fold[rows], self.folds, self.directions, self.variances, self.rest)

    def weights(self, column: Tensor) -> Tensor:
        """1 where a row is trained on by the heads that leave out the fold `column`, 0 elsewhere; (K, n)."""
        return (self.fold[None] != column[:, None]).float()

    def means(self, column: Tensor) -> tuple[Tensor, Tensor]:
        """Weights of means over P, (K, p), and over U, (K, u)."""
        weights = self.weights(column)
        return normalised(weights[:, : self.p]), normalised(weights[:, self.p :])

    def margins(self, parameters: Tensor) -> Tensor:
        """Margins of K heads, (K, n)."""
        return torch.addmm(parameters[:, -1:], parameters[:, :-1], self.X.T)

    def held_out(self, parameters: Tensor) -> Tensor:
        """Margins of each row by the head, of one for each fold, that did not see it; (n,)."""
        return self.margins(parameters)[self.fold, torch.arange(len(self.X))]


def normalised(weights: Tensor) -> Tensor:
    """Weights that sum to one in every row."""
    return weights / weights.sum(1, keepdim=True).clamp(min=1e-30)


def train(rows: Rows, loss: Loss, penalty: Tensor, start: Tensor, *, evaluations: int = EVALUATIONS) -> Tensor:
    """Minimise loss + penalty/2 |coef|^2 of every head from where it starts; (K, d + 1) each.

    What remains to be done is measured from heads of zero, wherever the start is.
    """

    def objective(parameters: Tensor, head: Tensor) -> tuple[Tensor, Tensor]:
        margins = rows.margins(parameters).requires_grad_()
        value = loss(margins, head)
        (slope,) = torch.autograd.grad(value.sum(), margins)
        coef = parameters[:, :-1]
        gradient = torch.cat([slope @ rows.X + penalty[head, None] * coef, slope.sum(1, keepdim=True)], 1)
        return value.detach() + 0.5 * penalty[head] * coef.square().sum(1), gradient

    def precondition(vectors: Tensor, head: Tensor) -> Tensor:
        across = 1 / (_CURVATURE * max(rows.rest, 0.01 / rows.X.shape[1]) + penalty[head, None])
        along = 1 / (_CURVATURE * rows.variances + penalty[head, None]) - across
        coef = vectors[:, :-1]
        turned = across * coef + (along * (coef @ rows.directions)) @ rows.directions.T
        return torch.cat([turned, vectors[:, -1:] / _CURVATURE], 1)

    if not len(start):
        return start
    every = torch.arange(len(start))
    with flushed_denormals():
        gradient = objective(torch.zeros_like(start), every)[1]
        reference = (gradient * precondition(gradient, every)).sum(1).sqrt()
        optimum = minimise(
            objective, start, precondition, tolerance=TOLERANCE, evaluations=evaluations, reference=reference
        )
    return optimum.parameters
