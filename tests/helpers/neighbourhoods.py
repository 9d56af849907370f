"""Piles in which neighbours help or mislead, and graphs that are given instead of searched."""

import numpy as np

from pucache.neighbours.graph_file import TEMPERATURE, NeighbourGraph


def clusters(n=600, d=32, labelled=20, seed=0, kinds=6, apart=0.6):
    """X, s and y of blobs of which one is positive: what is wanted is a neighbourhood."""
    draw = np.random.default_rng(seed)
    centres = apart * draw.normal(size=(kinds, d))
    kind = draw.integers(kinds, size=n)
    X = centres[kind] + draw.normal(size=(n, d))
    return X.astype(np.float32), *_labelled(kind == 0, labelled, draw)


def cut_across(n=600, d=8, labelled=20, seed=0, kinds=60):
    """X, s and y of tight blobs, positive by one direction within each: neighbours say nothing about it."""
    draw = np.random.default_rng(seed)
    centres = 2 * draw.normal(size=(kinds, d))
    kind, y = draw.integers(kinds, size=n), draw.random(n) < 0.3
    X = centres[kind] + 0.15 * draw.normal(size=(n, d))
    X[:, 0] = 0.3 * draw.normal(size=n) + 1.2 * y
    return X.astype(np.float32), *_labelled(y, labelled, draw)


def _labelled(y, count, draw):
    s = np.zeros(len(y), np.int8)
    s[draw.permutation(np.flatnonzero(y))[:count]] = 1
    return s, y.astype(np.int8)


def random_graph(n, k=5, seed=0, among=None):
    """A graph of k random neighbours of each row, of the same value of `among` where that is given."""
    draw = np.random.default_rng(seed)
    among = np.zeros(n) if among is None else among
    rows = np.full((n, k), -1, np.int32)
    for row in range(n):
        others = np.flatnonzero((among == among[row]) & (np.arange(n) != row))
        rows[row] = draw.permutation(others)[:k]
    cosines = -np.sort(-draw.uniform(0.1, 0.9, (n, k)), axis=1)
    return NeighbourGraph(rows=rows, cosines=cosines.astype(np.float16))


def dense_weights(graph, n):
    """The matrix W of a graph in float64, (m, n); a row without neighbours has all rows of the pile."""
    W = np.zeros((len(graph), n))
    for row, (neighbours, cosines) in enumerate(zip(graph.rows, graph.cosines.astype(float), strict=True)):
        for neighbour, cosine in zip(neighbours, cosines, strict=True):
            if neighbour >= 0:
                W[row, neighbour] += np.exp(cosine / TEMPERATURE)
        if not W[row].any():
            W[row] = 1
    return W / W.sum(1, keepdims=True)
