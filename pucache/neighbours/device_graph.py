"""Graphs of neighbours on a GPU: all rows of a pile, or other rows in it."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import torch

from ..progress import Progress, Silent
from .backends import TORCH_CPU, TORCH_GPU
from .device_pile import DevicePile
from .device_source import DeviceSource
from .device_whitening import estimate
from .row_source import RowSource, subset
from .weighted_graph import NeighbourGraph, graph_of_lists, renumbered
from .whitening import Whitening

_log = logging.getLogger(__name__)


def graph_on_gpu(
    source: RowSource,
    rows: np.ndarray | None,
    whitening: Whitening | None,
    *,
    k: int,
    exact: bool,
    gpu: torch.device,
    progress: Progress | None,
) -> NeighbourGraph:
    """As `pucache.neighbours.graph.neighbour_graph`, on a GPU; at least one row.

    With `exact` all rows are compared, else those of near cells.
    """
    on_device = DeviceSource(source, gpu)
    whitening = whitening or estimate(on_device)
    part = on_device if rows is None else DeviceSource(subset(source, rows), gpu)
    with progress or Silent() as progress:
        if exact:
            return _exact_graph(part, whitening, k=k, progress=progress)
        return _graph_by_cells(part, whitening, k=k, progress=progress)


def _exact_graph(rows: DeviceSource, whitening: Whitening, *, k: int, progress: Progress) -> NeighbourGraph:
    pile = DevicePile(rows, whitening)
    progress.start(pile.part_count * len(rows), "finding neighbours")
    best = pile.nearest_of_all(k, progress.advance)
    return graph_of_lists(len(rows), k, whitening, slice(None), best, search_by=TORCH_GPU)


def _graph_by_cells(rows: DeviceSource, whitening: Whitening, *, k: int, progress: Progress) -> NeighbourGraph:
    from .cell_search import nearest_by_cells
    from .device_cells import fits, nearest_by_cells_on_gpu

    if fits(len(rows), len(whitening.variances), rows.device):
        search_by, results = TORCH_GPU, nearest_by_cells_on_gpu(rows, whitening, k, progress=progress)
    else:
        _log.warning("%s whitened rows do not fit into the memory of the GPU; the CPU searches", f"{len(rows):,}")
        search_by, results = TORCH_CPU, nearest_by_cells(rows.source, whitening, k, progress=progress)
    numbers, (cosines, neighbours), search = results
    lists = cosines, renumbered(neighbours, numbers)
    graph = graph_of_lists(len(rows), k, whitening, numbers, lists, search_by=search_by)
    return replace(graph, search=search, exact=False)


class QueriedPile:
    """Rows of a pile on a GPU, in which the neighbours of other rows are searched.

    Parameters
    ----------
    source : RowSource
        At least one row.
    whitening : Whitening or None
        Of the source; None estimates it.
    gpu : torch.device
    """

    def __init__(self, source: RowSource, whitening: Whitening | None, gpu: torch.device):
        rows = DeviceSource(source, gpu)
        self._gpu, self._whitening = gpu, whitening or estimate(rows)
        self._pile = DevicePile(rows, self._whitening)

    def nearest(self, queries: RowSource, k: int, *, progress: Progress) -> NeighbourGraph:
        """Find the k nearest rows of the pile to each query."""
        progress.start(len(self._pile), "finding neighbours")
        best = self._pile.nearest_to(DeviceSource(queries, self._gpu), k, progress.advance)
        return graph_of_lists(len(queries), k, self._whitening, slice(None), best, search_by=TORCH_GPU)
