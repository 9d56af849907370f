"""Steps as CUDA graphs, and the proof on the device at hand that they do what the steps do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..errors import one_line

RunSteps = Callable[[int], None]  # runs so many steps

_TOLERANCE = 0.01  # of the distance that training moved; two runs of the same kernels differ by their rounding
log = logging.getLogger("pucache")


class GraphedSteps:
    """Steps 0, 1, ..., captured as one CUDA graph for each number of steps.

    A graph has one launch, where each step has several, and the steps read the same memory in each replay.

    Parameters
    ----------
    step : callable
        Takes the number of a step. It has run before, and neither waits for the device nor copies from the host.
    device : torch.device
    """

    def __init__(self, step: Callable[[int], None], device: torch.device):
        self._step, self._device = step, device
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def __call__(self, count: int) -> None:
        """Run the first `count` steps."""
        if count not in self._graphs:
            self._graphs[count] = self._capture(count)
        self._graphs[count].replay()

    def _capture(self, count: int) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream(self._device), capture_error_mode="thread_local"):
            for number in range(count):
                self._step(number)
        return graph


def graphed_if_equal(
    state: Sequence[Tensor], epoch: Callable[[RunSteps], None], eager: RunSteps, graphed: RunSteps
) -> RunSteps:
    """Train an epoch both ways and return the graphed steps, or the eager ones where the results differ.

    Parameters
    ----------
    state : sequence of tensor
        All that training changes; the first has the parameters. Trained for one epoch afterwards.
    epoch : callable
        Trains the first epoch by the steps that it is given.
    eager, graphed : callable
        Both ways of running steps.
    """
    start = [tensor.clone() for tensor in state]
    epoch(eager)
    expected = [tensor.clone() for tensor in state]
    _restore(state, start)
    fault = "it does not compute what the steps compute"
    try:
        epoch(graphed)
        distance, moved = (expected[0] - state[0]).norm(), (expected[0] - start[0]).norm()
        if bool(distance <= _TOLERANCE * moved):
            return graphed
    except RuntimeError as error:
        fault = one_line(error)
    log.warning("the training step is not used as a CUDA graph: %s; going on without, which is slower", fault)
    _restore(state, expected)
    return eager


def _restore(state: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(state, values, strict=True):
        tensor.copy_(value)
