"""Caches whose images are there, or were; the embeddings are made up."""

import hashlib

import numpy as np
from PIL import Image

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.cache.keys import encode_keys
from pucache.cache.writer import Rows, write_file
from pucache.encoders.spec import EncoderSpec


def shaded(width, height, level=200):
    """A picture that darkens to the right."""
    row = np.linspace(level, 0, width).astype(np.uint8)
    return Image.fromarray(np.stack([np.tile(row, (height, 1))] * 3, 2))


def cache_of(path, source, digests):
    """Write a cache of images in `source`, from the digest of each key (None: unknown)."""
    keys = sorted(digests, key=str.encode)
    encoded = encode_keys(keys)
    table = np.array([list(digests[key] or bytes(32)) for key in keys], np.uint8).reshape(-1, 32)
    X = np.ones((len(keys), 2), np.float32)
    rows = Rows(encoded, X, table, np.full((len(keys), 2), -1))
    shape = (len(keys), encoded.itemsize, X.dtype)
    write_file(path, EncoderSpec.imported("none", 2), str(source), [rows], shape=shape, failures={})
    return EmbeddingCache(path)


def folder_of(tmp_path, files, name="images"):
    """Write a folder of encoded images, key by key, and the cache of it."""
    for key, data in files.items():
        path = tmp_path / name / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    digests = {key: hashlib.sha256(data).digest() for key, data in files.items()}
    return cache_of(tmp_path / f"{name}.h5", tmp_path / name, digests)
