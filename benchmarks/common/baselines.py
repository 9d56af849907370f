"""Plain ways beside pucache's, and rankings of the unlabelled rows."""

import numpy as np
from sklearn.metrics import average_precision_score

from pucache import EmbeddingCache
from pucache.estimates.metrics import precision_at
from pucache.heads.linear_heads import FittedHeads
from pucache.heads.risks import PURisk
from pucache.heads.solve import fit_heads
from pucache.retrieval.retrieve import rank_unlabelled

BCE = PURisk("weighted_bce")


def standardised(X: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
    """X and other rows, each column less its mean in X, over its standard deviation there; float32."""
    centre, scale = X.mean(0, dtype=np.float64), X.std(0, dtype=np.float64) + 1e-6
    return [((rows - centre) / scale).astype(np.float32) for rows in (X, *others)]


def logistic(Z: np.ndarray, labels: np.ndarray, Cs: tuple[float, ...], **options) -> FittedHeads:
    """Balanced logistic regression at each C, by heads of pucache; tests/heads compares them with scikit-learn."""
    scale = np.square(Z, dtype=np.float64).sum(1).mean()  # the unit of penalties
    return fit_heads(Z, labels, risk=BCE, penalty=1 / (np.array(Cs) * len(Z) * scale), **options)


def centroid_margins(X: np.ndarray, s: np.ndarray, *rows: np.ndarray) -> list[np.ndarray]:
    """Margins of rows along the line from the mean of U to the mean of P, 0 in the middle."""
    positive, unlabelled = (X[s == value].mean(0, dtype=np.float64) for value in (1, 0))
    direction = positive - unlabelled
    return [part @ direction - (positive + unlabelled) @ direction / 2 for part in rows]


def ranked(cache: EmbeddingCache, s: np.ndarray, scorer) -> np.ndarray:
    """Scores of the unlabelled, copies too, by a scorer of `retrieve_positives`."""
    ranking = rank_unlabelled(cache, s, k=None, scorer=scorer, twins=None)
    scores = np.full(len(s), -np.inf)
    scores[ranking.rows] = ranking.scores
    return scores[s == 0]


def ranking_figures(hidden: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    """Average precision, and precision at some ranks and at the number of positives."""
    ranks = {"P@100": 100, "P@1000": 1000, "P@hidden": int(hidden.sum())}
    precision = {name: precision_at(hidden, scores, rank) for name, rank in ranks.items()}
    return {"AP": float(average_precision_score(hidden, scores))} | precision
