"""Caches whose images are there, or were; the embeddings are made up."""

import hashlib

import numpy as np
from PIL import Image

from helpers.cache_files import write_rows
from pucache import EmbeddingCache, EncoderSpec
from pucache.cache.keys import encode_keys
from pucache.cache.writer import Rows

ODD = [
    "photos/<script>document.title = 'ran'</script>.png",
    'say "cheese", please.png',
    "it's 100 %?&#/plain.png",
    "line\nbreak\r\nand\ttab.png",
    "emoji 🦜 👩‍👩‍👧.png",
    "שלום/\u202egnp.exe.png",
    "separators\u2028and\u2029.png",
    " blanks around ",
    "long/" + "x" * 4087 + ".png",
]


def shaded(width, height, level=200):
    """A picture that darkens to the right."""
    row = np.linspace(level, 0, width).astype(np.uint8)
    return Image.fromarray(np.stack([np.tile(row, (height, 1))] * 3, 2))


def cache_of(path, source, digests):
    """Write a cache of images in `source`, from the digest of each key (None: unknown)."""
    keys = sorted(digests, key=str.encode)
    table = np.array([list(digests[key] or bytes(32)) for key in keys], np.uint8).reshape(-1, 32)
    rows = Rows(encode_keys(keys), np.ones((len(keys), 2), np.float32), table, np.full((len(keys), 2), -1))
    return EmbeddingCache(write_rows(path, rows, spec=EncoderSpec.imported("none", 2), source=str(source)))


def folder_of(tmp_path, files, name="images"):
    """Write a folder of encoded images, key by key, and the cache of it."""
    for key, data in files.items():
        path = tmp_path / name / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    digests = {key: hashlib.sha256(data).digest() for key, data in files.items()}
    return cache_of(tmp_path / f"{name}.h5", tmp_path / name, digests)
