"""Slices of retrieval: exact search, the graph of neighbours and rankings, on the device and on the CPU."""

from functools import partial

import numpy as np
import torch

from benchmarks.gpu.limits import limits
from benchmarks.gpu.slices import Bench, Figure, LeftOut, Slice
from benchmarks.gpu.timing import timed
from pucache.neighbours.knn import RowSearch, nearest

NEIGHBOURS = 100
BLOCK = 1024  # queries of one product of the plain search


def rows_and_queries(bench: Bench) -> tuple[np.ndarray, np.ndarray]:
    """Float32 rows, and some of them as queries."""
    rows = bench.X.astype(np.float32)
    return rows, np.ascontiguousarray(rows[: bench.size.queries])


def exact_search(bench: Bench) -> list[Figure]:
    """The nearest rows of some queries: pucache on the device and on the CPU, and a plain loop of torch."""
    rows, queries = rows_and_queries(bench)
    k = min(NEIGHBOURS, len(rows))
    name = f"{len(queries):,} queries, {k} nearest of {len(rows):,}"
    floor = 2 * queries.size * len(rows) / limits(bench).single
    search = RowSearch(rows, k, device=str(bench.device))
    here = timed(bench, lambda: search.nearest(queries))
    each_time = timed(bench, lambda: nearest(queries, rows, k, device=str(bench.device)))
    cpu = timed(bench, lambda: nearest(queries, rows, k, device="cpu"), repeats=1)
    on_device = torch.from_numpy(rows).to(bench.device)
    plain = timed(bench, lambda: plain_search(on_device, queries, k))
    agreement = shared(search.nearest(queries)[1], nearest(queries, rows, k, device="cpu")[1])
    return [
        *here.figures(f"{name}: device", limit=floor, note=f"{search.search_by}, rows uploaded before"),
        Figure(f"{name}: device, rows uploaded each time", each_time.warm),
        Figure(f"{name}: CPU", cpu.warm),
        Figure(f"{name}: plain torch, rows uploaded before", plain.warm, limit=floor),
        Figure("rows that the device finds as the CPU does", (agreement,), ""),
    ]


def plain_search(rows: torch.Tensor, queries: np.ndarray, k: int) -> np.ndarray:
    """Blocks of queries times all rows, and the greatest products of each."""
    neighbours = []
    for begin in range(0, len(queries), BLOCK):
        block = torch.from_numpy(queries[begin : begin + BLOCK]).to(rows.device)
        neighbours.append((block @ rows.T).topk(k).indices.cpu().numpy())
    return np.concatenate(neighbours)


def shared(neighbours: np.ndarray, expected: np.ndarray) -> float:
    """Mean share of neighbours that two searches have in common."""
    return float(np.mean([len(np.intersect1d(a, b)) / len(b) for a, b in zip(neighbours, expected, strict=True)]))


def faiss_search(bench: Bench) -> list[Figure]:
    """faiss itself, on the GPU where its build has kernels for it, and on the CPU."""
    import faiss

    rows, queries = rows_and_queries(bench)
    k = min(NEIGHBOURS, len(rows))
    product = {"metric": faiss.METRIC_INNER_PRODUCT}
    on_cpu = timed(bench, lambda: faiss.knn(queries, rows, k, **product), repeats=1)
    figures = [Figure("faiss on the CPU", on_cpu.warm)]
    if bench.on_gpu and faiss.get_num_gpus():
        resources = faiss.StandardGpuResources()
        on_gpu = timed(bench, lambda: faiss.knn_gpu(resources, queries, rows, k, **product))
        figures += on_gpu.figures("faiss on the GPU, rows uploaded each time")
    elif bench.on_gpu:
        figures[0] = Figure(figures[0].name, figures[0].values, note="this faiss sees no GPU")
    return figures


def graph(bench: Bench) -> list[Figure]:
    """The graph of neighbours that the distilled head learns from."""
    from pucache.neighbours.graph import neighbour_graph

    here = timed(bench, lambda: neighbour_graph(bench.X, device=str(bench.device)))
    cpu = timed(bench, lambda: neighbour_graph(bench.X, device="cpu"), repeats=1)
    floor = 2 * bench.size.rows**2 * bench.size.dim / limits(bench).single
    name = f"graph of neighbours of {bench.size.rows:,} rows"
    return [*here.figures(f"{name}: device", limit=floor), Figure(f"{name}: CPU", cpu.warm)]


def ranking(bench: Bench, *, by: str) -> list[Figure]:
    """The first thousand unlabelled rows of a cache."""
    from pucache.retrieval.model_scorers import Fused
    from pucache.retrieval.retrieve import rank_unlabelled
    from pucache.retrieval.similarity import Similarity
    from pucache.training.train_on_cache import train_pu

    cache = bench.cache()
    k = min(1000, int((bench.s == 0).sum()))
    model = train_pu(cache, bench.s, device=str(bench.device)) if by == "fused" else None

    def rank(device: str) -> np.ndarray:
        scorer = Similarity(by, device) if model is None else Fused(model, device)
        return rank_unlabelled(cache, bench.s, k=k, scorer=scorer).rows

    here = timed(bench, lambda: rank(str(bench.device)))
    cpu = timed(bench, lambda: rank("cpu"), repeats=1)
    agreement = shared(rank(str(bench.device))[None], rank("cpu")[None])
    name = f"ranking by {by}, k = {k:,}"
    return [
        *here.figures(f"{name}: device"),
        Figure(f"{name}: CPU", cpu.warm),
        Figure(f"{name}: rows that both rank there", (agreement,), ""),
    ]


def index(bench: Bench) -> list[Figure]:
    """An index of cells: the first search on the device, which uploads it, and those after it."""
    from pucache.neighbours.ann_index import open_or_build

    if bench.size.rows < 2000:
        raise LeftOut("an index of cells needs more rows")
    cache = bench.cache()
    opened = open_or_build(cache, "ivf")
    queries = opened.whitening.centred_units(bench.X[: bench.size.queries])
    here, cpu = (
        timed(bench, lambda: opened.search(queries, NEIGHBOURS, device=device))  # noqa: B023
        for device in (str(bench.device), "cpu")
    )
    return [*here.figures("index of cells, search: device"), Figure("index of cells, search: CPU", cpu.warm)]


SLICES = (
    Slice("exact search", exact_search),
    Slice("graph of neighbours", graph),
    Slice("ranking, whitened", partial(ranking, by="whitened")),
    Slice("ranking, max", partial(ranking, by="max")),
    Slice("ranking, fused", partial(ranking, by="fused")),
    Slice("faiss", faiss_search),
    Slice("index of cells", index),
)
