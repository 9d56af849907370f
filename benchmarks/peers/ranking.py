"""Ranking the unlabelled rows with bare faiss, and with pucache."""

import time
from pathlib import Path

import faiss
import numpy as np

from benchmarks.common.baselines import ranked, ranking_figures
from benchmarks.common.image_classes import Task
from benchmarks.common.row_cache import write_row_cache
from pucache import EmbeddingCache, PULinearClassifier
from pucache.retrieval.scorers import Fused, Similarity


def unit_rows(X: np.ndarray) -> np.ndarray:
    Z = X.astype(np.float32)
    faiss.normalize_L2(Z)
    return Z


def flat_index(Z: np.ndarray) -> faiss.IndexFlatIP:
    index = faiss.IndexFlatIP(Z.shape[1])
    index.add(Z)
    return index


def nearest_positive(X: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Cosine to the nearest labelled positive."""
    Z = unit_rows(X)
    return flat_index(Z[s == 1]).search(Z[s == 0], 1)[0][:, 0]


def mean_positive(X: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Cosine to the mean of the labelled positives, the one query."""
    Z = unit_rows(X)
    rows = Z[s == 0]
    query = Z[s == 1].mean(0, keepdims=True)
    faiss.normalize_L2(query)
    products, order = flat_index(rows).search(query, len(rows))
    scores = np.empty(len(rows), np.float32)
    scores[order[0]] = products[0]
    return scores


def ways(cache: EmbeddingCache, X: np.ndarray, s: np.ndarray) -> dict:
    def fused():
        model = PULinearClassifier().fit(cache.X, s)
        model.encoder_ = cache.encoder
        return ranked(cache, s, Fused(model))

    return {
        "bare faiss, cosine to the nearest positive": lambda: nearest_positive(X, s),
        "bare faiss, cosine to the mean of the positives": lambda: mean_positive(X, s),
        "retrieve-positives, by similarity (default)": lambda: ranked(cache, s, Similarity()),
        "train-pu and retrieve-positives --model: fused": fused,
    }


def retrieval(task: Task, like: EmbeddingCache, work: Path) -> list[dict]:
    """Figures of each way on a task, ranking all the unlabelled; each is run on a few rows before it is timed."""
    few = np.concatenate([np.flatnonzero(task.s == value)[:100] for value in (0, 1)])
    path = work / "peers.h5"
    small = write_row_cache(path, task.X[few], like.encoder)
    for call in ways(small, task.X[few], task.s[few]).values():
        call()
    cache, rows = write_row_cache(path, task.X, like.encoder), []
    for name, call in ways(cache, task.X, task.s).items():
        began = time.perf_counter()
        scores = call()
        rows.append({"way": name, "seconds": time.perf_counter() - began} | ranking_figures(task.hidden, scores))
    path.unlink()
    return rows
