import pickle
from itertools import pairwise

import numpy as np
import pytest
from helpers.cache_files import damage, refusal, write
from hypothesis import given, settings
from hypothesis import strategies as st

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.cache.row_range import Piece, RowRange, file_ranges, row_ranges
from pucache.errors import CacheError

KEYS = [f"{row:05}" for row in range(1605)]
FILES = {"a.h5": slice(0, 700), "b.h5": slice(700, 705), "c.h5": slice(705, 1605)}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Three files of 700, 5 and 900 rows; hashed by 256 rows, read by 100."""
    monkeypatch.setattr("pucache.cache.reader.BLOCK_BYTES", 100 * 8 * 2)
    monkeypatch.setattr("pucache.cache.row_range._BLOCKS_PER_RANGE", 3)
    for name, rows in FILES.items():
        write(tmp_path / name, KEYS[rows])
    return EmbeddingCache(tmp_path)


def copies(blocks, first=0):
    return [(first + rows.start, X.tolist()) for rows, X in blocks]


def test_ranges_hold_every_row_once_in_the_blocks_of_the_cache(cache):
    ranges, blocks = pickle.loads(pickle.dumps(row_ranges(cache))), []
    assert [rows.start for rows in ranges] == list(range(0, 1605, 300))
    for rows in ranges:
        opened, inside = rows.open(), np.arange(0, len(rows), 7)
        assert list(opened.keys) == KEYS[rows.start : rows.start + len(rows)]
        np.testing.assert_array_equal(opened.take(inside), cache.X[rows.start + inside])
        np.testing.assert_array_equal(opened.take_digests(inside), cache.digests[rows.start + inside])
        blocks += copies(opened.blocks(check=True), rows.start)
    assert blocks == copies(cache.blocks())


def test_a_range_for_each_file(cache):
    ranges = file_ranges(cache)
    assert [(rows.start, len(rows)) for rows in ranges] == [(0, 700), (700, 5), (705, 900)]
    assert list(ranges[2].open().keys) == KEYS[705:]


@settings(max_examples=15)
@given(row=st.integers(0, 1604))
def test_a_changed_row_is_noticed_in_the_range_where_its_checksum_begins(tmp_path_factory, row):
    path = write(tmp_path_factory.mktemp("changed") / "cache.h5", KEYS)
    checksum, bounds = EmbeddingCache(path).files[0].checksum, [0, 300, 301, 700, 1605]
    damage(path, "embeddings", row)
    damaged = []
    for start, stop in pairwise(bounds):
        try:
            list(RowRange(start, (Piece(str(path), checksum, start, stop),)).open().blocks(check=True))
        except CacheError as error:
            assert str(error).startswith(f"{path} is damaged: embeddings are not as they were written")
            damaged.append(start)
    assert damaged == [max(start for start in bounds[:-1] if start <= row // 256 * 256)]


def test_a_file_that_vanished_or_was_replaced_is_named(cache, tmp_path):
    last, path = row_ranges(cache)[-1], write(tmp_path / "c.h5", ["other"])
    assert refusal(last.open) == f"{path} was replaced while it was read; run the command again"
    path.unlink()
    assert refusal(last.open).startswith(f"the cache file c.h5 vanished from the folder {tmp_path} while")


def test_an_error_names_rows_and_file(cache, tmp_path):
    rows = row_ranges(cache)[2]
    assert str(rows) == f"rows 600 to 899 ({tmp_path / 'a.h5'} and 2 more)"
    error = rows.open().not_finite_error(np.array([100, 101, 200]))
    assert str(error).startswith(f"{tmp_path / 'b.h5'} holds NaN or infinite embeddings ('00700'")


@pytest.mark.parametrize("name", ["", "/b.h5"])
def test_another_machine_fetches_its_own_copy_from_the_url(cache, memory, tmp_path, monkeypatch, name):
    for file in FILES:
        memory.pipe_file(f"/shards/{file}", (tmp_path / file).read_bytes())
    in_store = EmbeddingCache(f"memory://shards{name}")
    ranges = pickle.loads(pickle.dumps(row_ranges(in_store)))
    for file in in_store.files:
        file.path.unlink()
    monkeypatch.setenv("PUCACHE_WORK", str(tmp_path / "other"))
    assert [key for rows in ranges for key in rows.open().keys] == list(in_store.keys)
    copies = sorted(path.name for path in (tmp_path / "other").rglob("*.h5"))
    assert copies == (["b.h5"] if name else list(FILES))
