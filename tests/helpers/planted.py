"""Planted positives among unlabelled rows, and caches of bare arrays."""

import numpy as np

from helpers.cache_files import write_rows
from pucache import EmbeddingCache, EncoderSpec
from pucache.cache.keys import encode_keys
from pucache.cache.writer import Rows
from pucache.heads.minibatch import SGDSettings

ODD_KEYS = ['a,"b".png', "c\nd.png", "e\r\nf.png", "g\rh.png", "i\u2028j.png", " k .png", "é🦊.png"]
ODD_KEYS += ["'l'.png", '"m".png']
QUICK = SGDSettings(epochs=1, min_steps=150, learning_rate=0.02)


def planted(n=400, d=6, labelled=40, prior=0.3, seed=0, apart=1.0):
    """Draw two blobs: X (n, d) float32, s, y; `labelled` rows of the positive one are named, in any place."""
    draw = np.random.default_rng(seed)
    hidden = round(prior * (n - labelled))
    place = draw.permutation(n)
    s, y = np.zeros(n, np.int8), np.zeros(n, np.int8)
    s[place[:labelled]] = 1
    y[place[: labelled + hidden]] = 1
    X = draw.normal(size=(n, d)) + apart * (2 * y[:, None] - 1) + 0.3
    return X.astype(np.float32), s, y


def write_cache(path, X, keys=None, *, encoder=None, failures=None, digests=None, source=""):
    """Write rows as a cache, sorted by key, and open it; NaN is not minded."""
    encoded = encode_keys(keys or [f"{row:05}.png" for row in range(len(X))])
    order = np.argsort(encoded)
    digests = np.zeros((len(X), 32), np.uint8) if digests is None else digests[order]
    encoder = encoder or EncoderSpec.imported("planted", X.shape[1])
    rows = Rows(encoded[order], X[order], digests, np.full((len(X), 2), -1))
    return EmbeddingCache(write_rows(path, rows, spec=encoder, source=source, failures=failures))


def two_kinds(labelled=120, unlabelled=4000, seed=0, side=0.0):
    """X, s and y of positives of two kinds; `side` is by how much the labelled lean to one of them."""
    draw = np.random.default_rng(seed)
    X = draw.standard_normal((unlabelled + labelled, 16))
    s, y = np.zeros(len(X), np.int8), draw.random(len(X)) < 0.1
    s[:labelled], y[:labelled] = 1, True
    kind = np.where(draw.random(len(X)) < np.where(s == 1, 0.5 + side, 0.5), 1, -1)
    X[y, 0] += 6
    X[y, 1] += 3 * kind[y]
    return X.astype(np.float32), s, y
