"""Sources of imports, as clip-retrieval and others write them, and what must hold of the caches made of them."""

import numpy as np
import pyarrow
import pyarrow.parquet

from helpers.refusals import one_line
from pucache import EmbeddingCache, import_embeddings
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
    return one_line(kind, import_embeddings, *arguments, **options)


def write_parquet(path, **columns):
    """Write columns as a Parquet file; two-dimensional arrays become lists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = {name: list(values) if np.ndim(values) == 2 else values for name, values in columns.items()}
    pyarrow.parquet.write_table(pyarrow.table(table), path)
    return path


def write_clip_folder(folder, X, keys, sizes, **more):
    """Write `X` as parts of these sizes with metadata beside them; `more` holds further columns, whole."""
    start = 0
    (folder / "img_emb").mkdir(parents=True)
    for number, size in enumerate(sizes):
        rows = slice(start, start + size)
        np.save(folder / "img_emb" / f"img_emb_{number}.npy", X[rows])
        columns = {name: values[rows] for name, values in more.items()}
        write_parquet(folder / "metadata" / f"metadata_{number}.parquet", image_path=keys[rows], **columns)
        start += size
    assert start == len(X) == len(keys)
    return folder
