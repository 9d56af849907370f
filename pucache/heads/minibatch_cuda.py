"""The minibatch solver on a GPU: the training of `pucache.heads.minibatch` without waits in its steps."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from ..progress import Progress
from .cuda_graph import GraphedSteps, RunSteps, graphed_if_equal
from .minibatch_rounds import Rounds
from .minibatch_rows import Lag
from .minibatch_step import TrainingStep
from .precision import reduced_precision
from .problem import HeadProblem


def train_on_cuda(
    problem: HeadProblem,
    progress: Progress,
    *,
    scale: float,
    penalty: np.ndarray,
    epochs: int,
    batch_size: int,
    learning_rate: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Train heads on the batches, and in the order, that the CPU has.

    Parameters
    ----------
    problem : HeadProblem
        On a GPU.
    progress : Progress
    scale : float
        Factor of X.
    penalty : ndarray of float, (K,)
        Relative to the sum of the magnitudes of the risk's coefficients.
    epochs, batch_size : int
    learning_rate : float

    Returns
    -------
    parameters : ndarray of float32, (K, d + 1)
        Coefficients for scaled rows, and intercepts.
    risk, clamped : ndarray of float32, (K,)
        Means over the batches of the last epoch.
    """
    with torch.cuda.device(problem.device):
        rounds = Rounds(problem, torch.Generator().manual_seed(0), size=batch_size, scale=scale)
        parameters, device = problem.initial_parameters(problem.d**-0.5), problem.device
        absolute = problem.tensor(penalty) * rounds.risk_scale if penalty.any() else None
        step = TrainingStep(rounds, parameters, absolute, learning_rate)
        with reduced_precision(device):
            _train(rounds, step, progress, epochs)
        risk, clamped = rounds.report(step.parameters)
        return step.parameters[:, : problem.d + 1].cpu().numpy(), risk, clamped


def _train(rounds: Rounds, step: TrainingStep, progress: Progress, epochs: int) -> None:
    run: RunSteps = partial(_run_eagerly, step)
    lag = Lag()
    for number in range(epochs):
        rounds.shuffle()
        epoch = partial(_epoch, rounds, step, number)
        if number == 0 and epochs > 1:
            run = graphed_if_equal(step.state, epoch, run, GraphedSteps(step, step.parameters.device))
        else:
            epoch(run)
        lag.mark()  # so that progress is that of the device, but for two epochs
        progress.advance(1)


def _epoch(rounds: Rounds, step: TrainingStep, number: int, run: RunSteps) -> None:
    for round_number in range(len(rounds)):
        count = rounds.prepare(round_number)
        step.begin_round(number * rounds.batches + round_number * rounds.length)
        run(count)


def _run_eagerly(step: TrainingStep, count: int) -> None:
    for number in range(count):
        step(number)
