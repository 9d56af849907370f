import errno
import os

import numpy as np
import pytest
from helpers.cache_files import FAILURES, refusal, write

from pucache import EmbeddingCache
from pucache.cache.reader import CacheFile


@pytest.mark.parametrize("meanwhile", [lambda path: write(path, ["z"]), lambda path: path.unlink()])
def test_a_cache_that_is_open_is_read_to_the_end_as_it_was(path, meanwhile):
    before, cache = EmbeddingCache(path).X.copy(), EmbeddingCache(path)
    meanwhile(path)
    np.testing.assert_array_equal(cache.X, before)
    np.testing.assert_array_equal(np.concatenate([block.copy() for _, block in cache.blocks()]), before)
    assert list(cache.keys) == ["a", "bé", "c\nd", "e"] and cache.failures == FAILURES


def test_a_map_beyond_the_end_of_its_file_is_one_line_and_no_death(path):
    cache = EmbeddingCache(path)
    path.rename(path.with_name("other"))
    os.truncate(path.with_name("other"), 100)
    assert "was cut short while it was read; restore it from a copy" in refusal(lambda: list(cache.blocks()))


def test_an_error_of_the_disk_is_one_line_and_no_death(path, monkeypatch):
    def broken(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    cache = EmbeddingCache(path)
    monkeypatch.setattr(os, "preadv", broken)
    for action in (lambda: list(cache.blocks()), cache.verify):
        assert refusal(action) == f"cannot read {path}: Input/output error"


def test_a_file_replaced_after_it_was_opened_is_not_mixed_with_the_new_one(path):
    file = CacheFile(path)
    write(path, ["z"])
    one = EmbeddingCache(file)
    for action in (lambda: file.X, lambda: list(one.blocks()), lambda: file.take("keys", np.arange(2)), one.verify):
        assert "was replaced or removed while it was open; open it again" in refusal(action)
    path.unlink()
    assert "was replaced or removed while it was open" in refusal(lambda: file.X)
