"""Sources of imports, and what must hold of the caches made of them."""

import os

import numpy as np
import pytest

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.cache.importing import import_embeddings
from pucache.errors import CacheError


def rows(n, d=5, dtype="f4", seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)).astype(dtype)


def shuffled_keys(n, seed=0):
    return [f"photos/{number}.jpg" for number in np.random.default_rng(seed).permutation(n)]


def expect(path, X, keys, dtype=None):
    """The cache is whole, and holds these rows under these keys."""
    cache = EmbeddingCache(path)
    cache.verify()
    assert sorted(keys, key=str.encode) == list(cache.keys)
    np.testing.assert_array_equal(np.asarray(cache.X)[cache.keys.rows(list(keys))], X)
    assert cache.X.dtype == (dtype or X.dtype)
    return cache


def refusal(*arguments, kind=CacheError, **options):
    """The one line with which an import is refused."""
    with pytest.raises(kind) as refused:
        import_embeddings(*arguments, **options)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def visible(folder):
    """Names in a folder but locks."""
    return sorted(name for name in os.listdir(folder) if not name.endswith(".lock"))
