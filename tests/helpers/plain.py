"""Retrieval written down plainly, in float64 and whole matrices; what the blocks and indexes are held against."""

import numpy as np


def unit(X, of=None):
    """Centred on the mean of `of`, by default X, at length 1; zero where a row equals it."""
    centred = X.astype(float) - (X if of is None else of).astype(float).mean(0)
    centred[np.abs(centred).max(1) < 1e-6] = 0
    length = np.linalg.norm(centred, axis=1, keepdims=True)
    return centred / np.where(length > 0, length, 1)


def similarity(kind, X, positive, top=50):
    """Score of every row."""
    Z = unit(X)
    cosines = -np.sort(-Z @ Z[positive].T, axis=1)
    if kind == "whitened":
        covariance = Z.T @ Z / len(Z)
        ridge = np.trace(covariance) / np.count_nonzero(positive)
        if ridge == 0:
            return np.zeros(len(Z))
        return Z @ np.linalg.solve(covariance + ridge * np.eye(Z.shape[1]), Z[positive].mean(0))
    return cosines[:, :top].mean(1)


def whitened(X, of=None):
    """Rows in the space of the neighbours: along the axes of the covariance of `of`, each scaled, at length 1."""
    of = X if of is None else of
    Z, pile = unit(X, of), unit(of)
    variances, axes = np.linalg.eigh(pile.T @ pile / len(pile))
    W = Z @ axes / np.sqrt(variances + variances.mean())
    length = np.linalg.norm(W, axis=1, keepdims=True)
    return W / np.where(length > 0, length, 1)


def ranked(scores, candidates, k):
    """Candidates by falling score, ties by row."""
    rows = np.lexsort((np.arange(len(scores)), -scores))
    return rows[candidates[rows]][:k]
