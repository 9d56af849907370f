"""Similarity of all rows to the positives, on a GPU: the rows are centred and compared where they are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ..cache.embedding_cache import EmbeddingCache
from ..heads.device_rows import upload
from ..neighbours.backends import TORCH_GPU, faiss_gpu
from ..neighbours.device_search import DeviceSearch, values_of
from ..neighbours.device_source import DeviceSource
from ..neighbours.device_whitening import DeviceWhitening, estimate
from ..neighbours.row_source import row_source
from ..neighbours.whitening import Whitening
from ..progress import Progress
from .query_comparison import QueryComparison
from .scorer import Scores


def device_scores(
    cache: EmbeddingCache,
    queries_of: Callable[[Whitening], np.ndarray],
    neighbours: int,
    gpu: torch.device,
    progress: Progress,
) -> Scores:
    """Scores of every row, as those of a `Similarity` up to rounding; the host waits for them once, at the end.

    Where faiss sees the GPU it searches the nearest positives, and the host waits once a block of rows.

    Parameters
    ----------
    cache : EmbeddingCache
    queries_of : callable
        Returns the queries of the similarity, float32 (p, d), given the whitening of the cache.
    neighbours : int
        See `pucache.retrieval.query_comparison.QueryComparison`.
    gpu : torch.device
    progress : Progress
        Started, for the rows of the cache.
    """
    rows = DeviceSource(row_source(cache), gpu)
    whitening = estimate(rows)
    on_device = DeviceWhitening(whitening, gpu)
    scores_of, search_by = _comparison(queries_of(whitening), neighbours, gpu)
    scores = torch.empty(len(cache), device=gpu)
    for part, X in rows.blocks():
        scores[part] = scores_of(on_device.centred_units(X))
        progress.advance(part.stop - part.start)
    return Scores(scores.cpu().numpy(), search_by=search_by)


def _comparison(queries: np.ndarray, neighbours: int, gpu: torch.device) -> tuple[Callable[[Tensor], Tensor], str]:
    """Function that maps centred unit rows (b, d) to scores (b,), all on the GPU; and what compares."""
    if not neighbours:
        direction = upload(queries[0], gpu)
        return lambda units: units.mul_(direction).sum(1), TORCH_GPU  # row by row, as on the CPU
    k = min(neighbours, len(queries))
    if faiss_gpu(gpu) is not None:
        comparison = QueryComparison(queries, neighbours, device=str(gpu))
        return lambda units: upload(comparison.scores(units.cpu().numpy()), gpu), comparison.search_by
    search = DeviceSearch(upload(queries, gpu), half=False)

    def mean_cosines(units: Tensor) -> Tensor:
        parts = [values_of(search.greatest(units[part], k)).mean(1) for part in search.blocks(len(units), k)]
        return torch.cat(parts)

    return mean_cosines, TORCH_GPU
