"""Caches whose images are there, or were; the embeddings are made up."""

import hashlib

import numpy as np
from PIL import Image

from helpers.planted import write_cache

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


def cache_of(path, source, digests, X=None, **more):
    """Write a cache of images in `source`, from the digest of each key (None: unknown); X is in the order of these."""
    table = np.array([list(digest or bytes(32)) for digest in digests.values()], np.uint8)
    X = np.ones((len(digests), 2), np.float32) if X is None else X
    return write_cache(path, X, list(digests), digests=table, source=str(source), **more)


def folder_of(tmp_path, files, name="images", cache="", **more):
    """Write a folder of encoded images, key by key, and the cache of it."""
    for key, data in files.items():
        path = tmp_path / name / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    digests = {key: hashlib.sha256(data).digest() for key, data in files.items()}
    return cache_of(tmp_path / (cache or f"{name}.h5"), tmp_path / name, digests, **more)
