"""Ranking and embedding without pucache (bare faiss, a DataLoader with timm) and with it."""

import time
from pathlib import Path

import faiss
import numpy as np
from sklearn.metrics import average_precision_score

from benchmarks.common.cifar import Task
from benchmarks.quality.retrieval import write_rows
from benchmarks.speed.embed import PEER_BATCH, hands, pixels, plain_loop
from pucache import EmbeddingCache, PULinearClassifier
from pucache.estimates.metrics import precision_at
from pucache.retrieval.model_scorers import Fused
from pucache.retrieval.retrieve import rank_unlabelled
from pucache.retrieval.similarity import Similarity

# --- retrieval: scores of the unlabelled rows --------------------------------------------------------


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


def ranked(cache: EmbeddingCache, s: np.ndarray, by) -> np.ndarray:
    ranking = rank_unlabelled(cache, s, k=None, scorer=by, twins=None)
    scores = np.full(len(s), -np.inf)
    scores[ranking.rows] = ranking.scores
    return scores[s == 0]


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
    small = write_rows(path, like, task.X[few])
    for call in ways(small, task.X[few], task.s[few]).values():
        call()
    cache, rows = write_rows(path, like, task.X), []
    for name, call in ways(cache, task.X, task.s).items():
        began = time.perf_counter()
        scores = call()
        rows.append({"way": name, "seconds": time.perf_counter() - began} | ranking_figures(task.hidden, scores))
    path.unlink()
    return rows


def ranking_figures(hidden: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    ranks = (100, 1000, int(hidden.sum()))
    precision = {f"P@{rank}" if rank != ranks[-1] else "P@hidden": precision_at(hidden, scores, rank) for rank in ranks}
    return {"AP": average_precision_score(hidden, scores)} | precision


# --- embedding: each in a process of its own -----------------------------------------------------------


def with_loader(files: list[Path], work: Path, workers: int) -> tuple[np.ndarray, float]:
    return plain_loop(files, workers)


def with_pucache(files: list[Path], work: Path, **how: str) -> tuple[np.ndarray, float]:
    """Whole runs of `embed` but for the encoder's start; features in the order of the files' names."""
    from pucache.embedding.embed import run_embedding
    from pucache.encoders.encoder import load_encoder
    from pucache.images.source import open_source

    encoder = load_encoder(**how)
    hands(encoder, lambda: encoder.forward(pixels(encoder, encoder.runtime.batch_size or 8)), 1)
    cache = work / "peers-embedded.h5"
    cache.unlink(missing_ok=True)
    report = run_embedding(open_source(files[0].parent), cache, encoder)
    X = np.asarray(EmbeddingCache(cache).X, np.float32)
    cache.unlink()
    return X, report.computed / report.seconds


EMBEDDERS = {
    "a plain DataLoader with timm": lambda files, work: with_loader(files, work, 0),
    "the same with two workers": lambda files, work: with_loader(files, work, 2),
    "pucache embed, torch in fp32": lambda files, work: with_pucache(files, work, runtime="torch", precision="fp32"),
    "pucache embed, defaults": with_pucache,
}
PLAIN, *_, DEFAULT = EMBEDDERS
QUICK_EMBEDDERS = (PLAIN, DEFAULT)


def embedder(name: str, folder: Path, work: Path) -> dict[str, float]:
    """Images a second, and the cosines of all features to those of the plain loop, which leaves them in WORK."""
    files = sorted(folder.glob("*.png"))
    if len(files) <= PEER_BATCH:
        raise ValueError(f"{folder} holds {len(files)} images; the first batch of {PEER_BATCH} is not timed")
    X, rate = EMBEDDERS[name](files, work)
    if name == PLAIN:
        np.save(work / "plain.npy", X)
    alike = cosines(X, np.load(work / "plain.npy"))
    return {"images": len(files), "rate": rate, "cosine": float(alike.mean()), "least": float(alike.min())}


def cosines(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Of row with row."""
    A, B = A.astype(float), B.astype(float)
    return (A * B).sum(1) / np.sqrt((A * A).sum(1) * (B * B).sum(1))
