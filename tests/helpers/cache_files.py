"""Cache files of made-up rows, damage to them, and the one line in which they are refused."""

import zlib

import h5py
import numpy as np

from helpers.refusals import one_line
from helpers.tiny import tiny_encoder
from pucache.cache.keys import encode_keys
from pucache.cache.writer import Rows, write_file
from pucache.errors import CacheError

SPEC = tiny_encoder().spec
FAILURES = {"broken.png": "not an image", "gone/é.png": "cannot be read"}


def rows_of(keys, dtype="float16"):
    """Rows that depend on nothing but their keys, sorted."""
    keys = sorted(keys)
    draws = [np.random.default_rng(zlib.crc32(key.encode())) for key in keys]
    X = np.array([draw.normal(size=SPEC.dim) for draw in draws], dtype).reshape(-1, SPEC.dim)
    digests = np.array([draw.integers(0, 256, 32) for draw in draws], np.uint8).reshape(-1, 32)
    digests[:, -2:] = 0  # what a conversion of fixed-width bytes would lose
    size_mtime = np.array([draw.integers(0, 1 << 62, 2) for draw in draws], np.int64).reshape(-1, 2)
    return Rows(encode_keys(keys), X, digests, size_mtime)


def write_rows(path, rows, *, spec=SPEC, source="photos", failures=None, shard=""):
    """Write one block of rows as a cache file."""
    shape = (len(rows.keys), rows.keys.itemsize, rows.X.dtype)
    write_file(path, spec, source, [rows], shape=shape, failures=failures or {}, shard=shard)
    return path


def write(path, keys, *, dtype="float16", **options):
    """Write a cache file of `rows_of` these keys."""
    return write_rows(path, rows_of(keys, dtype), **options)


def damage(path, name, row=0):
    """Flip a bit in one row of a dataset; returns the bytes of the damaged file."""
    with h5py.File(path) as file:
        offset, size, n = file[name].id.get_offset(), file[name].nbytes, len(file[name])
    data = bytearray(path.read_bytes())
    data[offset + size // n * (row % n)] ^= 0x80
    path.write_bytes(data)
    return bytes(data)


def refusal(action, *arguments, **options):
    """The one line of the `CacheError` that an action raises."""
    return one_line(CacheError, action, *arguments, **options)
