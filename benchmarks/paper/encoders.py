"""Sections of benchmarks/paper/tables.py on encoders: small pretraining, feature maps, retrieval."""

import dataclasses
from pathlib import Path

import numpy as np
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from sklearn.metrics import average_precision_score
from sklearn.neighbors import NearestNeighbors

from benchmarks.common.cifar import CLASSES, VEHICLES, Cifar, Task, write_manifest
from benchmarks.common.environment import commit
from benchmarks.paper.rows import AUTHORS, CEILING, CS, LOGISTIC, authors, logistic, standardised
from benchmarks.quality.pretrain import SMALL, untrained
from benchmarks.quality.pretrain import Task as Files
from benchmarks.quality.retrieval import write_rows
from pucache import EmbeddingCache, PULinearClassifier, load_encoder, open_source
from pucache.embedding.embed import run_embedding
from pucache.estimates.metrics import precision_at
from pucache.heads.risks import PURisk
from pucache.heads.solve import fit_heads
from pucache.labels.folds import assign_folds
from pucache.pretraining.network import NetworkConfig
from pucache.pretraining.pretrain import pretrain
from pucache.retrieval.model_scorers import Fused
from pucache.retrieval.retrieve import rank_unlabelled
from pucache.retrieval.similarity import SIMILARITIES, Similarity

TAU_PLUS = {"contrastive": 0.0, "debiased": 0.1}
NETWORK, SIDE, NEIGHBOURS = "test_resnet", 32, 10
BUNDLED, UNTRAINED = "bundled", "untrained"
RANKS = (100, 1000)  # and as many as there are hidden positives


# --- pretraining -----------------------------------------------------------------------------------


def run_folder(work: Path, loss: str, seed: int) -> Path:
    """Where the encoder of a pretraining lies: that of this commit."""
    return work / f"paper-{loss}-{seed}-{commit() or 'unknown'}"


def pretrained(data: Cifar, work: Path, loss: str, seed: int) -> dict:
    """Figures of heads on features of the small network: ``untrained``, or trained with one of `TAU_PLUS`."""
    files = Files(data.folder, _made(work / "paper-small"), small=True)
    seconds, run = 0.0, run_folder(work, loss, seed)
    if loss == UNTRAINED:
        untrained(run, NETWORK, seed)
    else:
        recipe = dataclasses.replace(SMALL, tau_plus=TAU_PLUS[loss])
        network = NetworkConfig(NETWORK, stem="small", size=SIDE)
        seconds = pretrain(files.pile, run, network, recipe, seed=seed, positives=files.positives).seconds
    common = {"prior": files.prior, "solver": "sgd", "seed": seed}
    settings = {"nnpu": {"loss": "nnpu", **common}, "imbnnpu": {"loss": "imbnnpu", **common}, "default": {"seed": seed}}
    return {"heads": files.heads(f"{loss}-{seed}", run, settings, "auto"), "seconds": seconds, "sizes": files.sizes}


# --- maps ------------------------------------------------------------------------------------------


def mapped(data: Cifar, work: Path, features: str, each: int) -> dict:
    """A t-SNE of test images, `each` of a class, and how many of the nearest rows are of the same class."""
    rows = np.sort(np.concatenate([np.flatnonzero(data.label_test == name)[:each] for name in CLASSES]))
    label = data.label_test[rows]
    X = data.X_test[rows].astype(np.float32) if features == BUNDLED else _features(data, work, features, rows)
    near = neighbours(X)
    positive = np.isin(label, VEHICLES)
    short = PCA(min(50, len(X) - 1), random_state=0).fit_transform(X)
    points = TSNE(init="pca", random_state=0, perplexity=min(30, len(X) / 4)).fit_transform(short)
    return {
        "points": np.round(points, 2).tolist(),
        "classes": [CLASSES.index(name) for name in label],
        "same class": float((label[near] == label[:, None]).mean()),
        "same side": float((positive[near] == positive[:, None]).mean()),
    }


def neighbours(X: np.ndarray) -> np.ndarray:
    """The nearest `NEIGHBOURS` other rows of each row, by Euclidean distance; (n, NEIGHBOURS)."""
    neighbours = NearestNeighbors(n_neighbors=NEIGHBOURS).fit(X)
    return neighbours.kneighbors(return_distance=False)


def _features(data: Cifar, work: Path, features: str, rows: np.ndarray) -> np.ndarray:
    run = run_folder(work, features, 0)
    if features == UNTRAINED:
        untrained(run, NETWORK, 0)
    keys = [data.keys_test[row] for row in rows]
    manifest, path = (
        write_manifest(work / "paper-map.csv", data.folder / "test", keys),
        work / f"paper-map-{features}.h5",
    )
    path.unlink(missing_ok=True)
    run_embedding(open_source(manifest), path, load_encoder(str(run)))
    cache = EmbeddingCache(path)
    return np.array(cache.X, np.float32)[np.argsort(np.argsort(keys))]  # a cache is in the order of its keys


# --- retrieval -------------------------------------------------------------------------------------


def retrieved(data: Cifar, work: Path, seed: int) -> dict:
    """Precision at ranks and average precision of the positives hidden in the authors' pile, by each way."""
    task = data.authors()
    cache = write_rows(work / "paper-pile.h5", data.train, task.X)
    model = PULinearClassifier(random_state=seed).fit(task.X, task.s)
    model.encoder_ = cache.encoder
    ways = {
        "**pucache: classifier and neighbours, fused** (default)": _ranked(cache, task, Fused(model)),
        "pucache: classifier": model.margins(task.unlabelled),
        AUTHORS: authors(task, prior=task.prior, seeds=(seed,)).margins(task.unlabelled)[:, 0],
        **_logistic(task, seed),
    }
    ways |= {f"pucache: similarity, {kind}": _ranked(cache, task, Similarity(kind)) for kind in SIMILARITIES}
    unit = task.X / np.linalg.norm(task.X.astype(np.float32), axis=1, keepdims=True)
    ways["mean cosine to the labelled positives, not centred"] = unit[task.s == 0] @ unit[task.s == 1].mean(0)
    ways["supervised: rows it has not seen (5 folds), every other true label"] = _unseen(task, seed)
    return {"ways": {name: ranking_figures(task.hidden, scores) for name, scores in ways.items()}}


def ranking_figures(hidden: np.ndarray, scores: np.ndarray) -> list[float]:
    """Precision at each of `RANKS` and at the number of positives, then average precision."""
    at = [precision_at(hidden, scores, rank) for rank in (*RANKS, int(hidden.sum()))]
    return [*at, float(average_precision_score(hidden, scores))]


def _ranked(cache: EmbeddingCache, task: Task, by) -> np.ndarray:
    ranking = rank_unlabelled(cache, task.s, k=None, scorer=by, twins=None)  # all of them, copies too
    scores = np.empty(len(task.s))
    scores[ranking.rows] = ranking.scores
    return scores[task.s == 0]


def _logistic(task: Task, seed: int) -> dict[str, np.ndarray]:
    Z = standardised(task)[0]
    margins = logistic(Z, task.s, seed).margins(Z[task.s == 0])
    return {LOGISTIC.format(C): of for C, of in zip(CS, margins.T, strict=True)}


def _unseen(task: Task, seed: int) -> np.ndarray:
    fold = assign_folds(task.y.astype(int), 5, seed)
    weights = (fold[:, None] != np.arange(5)).astype(np.float32)
    labels = task.y.astype(np.int8)
    heads = fit_heads(task.X, labels, weights=weights, risk=PURisk("weighted_bce"), penalty=CEILING, seed=seed)
    return np.take_along_axis(heads.margins(task.X), fold[:, None], 1)[task.s == 0, 0]


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
