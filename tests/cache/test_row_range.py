import pickle
from itertools import pairwise

import numpy as np
import pytest
from helpers.planted import write_cache
from hypothesis import given, settings
from hypothesis import strategies as st

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.cache.row_range import Piece, RowRange, file_ranges, row_ranges
from pucache.errors import CacheError
from pucache.storage.atomic import replacing

D = 3


@pytest.fixture
def shards(tmp_path, monkeypatch):
    """Three files of 700, 5 and 900 rows; hashed by 256 rows, read by 100."""
    monkeypatch.setattr("pucache.cache.reader.BLOCK_BYTES", 100 * D * 4)
    monkeypatch.setattr("pucache.cache.row_range._BLOCKS_PER_RANGE", 3)
    X = np.random.default_rng(0).standard_normal((1605, D), np.float32)
    digests = np.arange(1605, dtype=np.uint8)[:, None] + np.arange(32, dtype=np.uint8)
    for name, rows in {"a": slice(0, 700), "b": slice(700, 705), "c": slice(705, 1605)}.items():
        keys = [f"{row:05}" for row in range(rows.start, rows.stop)]
        write_cache(tmp_path / f"{name}.h5", X[rows], keys, digests=digests[rows])
    return EmbeddingCache(tmp_path), X, digests


def test_ranges_hold_every_row_once_in_the_blocks_of_the_cache(shards):
    cache, X, digests = shards
    ranges = pickle.loads(pickle.dumps(row_ranges(cache)))
    assert [rows.start for rows in ranges] == list(range(0, len(cache), 300))
    whole = [(rows.start, block.copy()) for rows, block in cache.blocks()]
    parts = []
    for rows in ranges:
        opened = rows.open()
        assert len(opened) == len(rows)
        assert list(opened.keys) == cache.keys[rows.start : rows.start + len(rows)]
        inside = np.arange(0, len(rows), 7)
        np.testing.assert_array_equal(opened.take(inside), X[rows.start + inside])
        np.testing.assert_array_equal(opened.take_digests(inside), digests[rows.start + inside])
        parts += [(rows.start + inside.start, block.copy()) for inside, block in opened.blocks(check=True)]
    assert [start for start, _ in parts] == [start for start, _ in whole]
    for (_, part), (_, block) in zip(parts, whole, strict=True):
        np.testing.assert_array_equal(part, block)


def test_a_range_for_each_file(shards):
    cache, X, _ = shards
    ranges = file_ranges(cache)
    assert [(rows.start, len(rows)) for rows in ranges] == [(0, 700), (700, 5), (705, 900)]
    np.testing.assert_array_equal(np.concatenate([block.copy() for _, block in ranges[2].open().blocks()]), X[705:])


@settings(max_examples=15)
@given(row=st.integers(0, 1604))
def test_a_changed_row_is_noticed_in_the_range_where_its_checksum_begins(tmp_path_factory, row):
    folder = tmp_path_factory.mktemp("changed")
    X = np.random.default_rng(0).standard_normal((1605, D), np.float32)
    cache = write_cache(folder / "cache.h5", X)
    file = cache.files[0]
    bounds = [0, 300, 301, 700, 1605]
    ranges = [RowRange(start, (Piece(str(file.path), file.checksum, start, stop),)) for start, stop in pairwise(bounds)]
    with file.path.open("rb+") as stream:
        stream.seek(file._extents["embeddings"].row_offset(row) + 5)
        byte = stream.read(1)
        stream.seek(-1, 1)
        stream.write(bytes([byte[0] ^ 1]))
    damaged = []
    for rows in ranges:
        try:
            for _ in rows.open().blocks(check=True):
                pass
        except CacheError as error:
            assert str(error).startswith(f"{file.path} is damaged: embeddings are not as they were written")
            damaged.append(rows.start)
    begin = row // 256 * 256
    assert damaged == [max(start for start in bounds[:-1] if start <= begin)]


def test_a_file_that_vanished_or_was_replaced_is_named(shards):
    cache, _, _ = shards
    ranges = row_ranges(cache)
    path = cache.files[2].path
    write_cache(path, np.zeros((900, D), np.float32), [f"{row:05}" for row in range(900)])
    with pytest.raises(CacheError, match=rf"^{path} was replaced while it was read; run the command again$"):
        ranges[-1].open()
    path.unlink()
    with pytest.raises(CacheError, match=rf"^the cache file {path.name} vanished from the folder {path.parent} while"):
        ranges[-1].open()


def test_an_error_names_rows_and_file(shards):
    cache, _, _ = shards
    assert str(row_ranges(cache)[2]) == f"rows 600 to 899 ({cache.files[0].path} and 2 more)"
    with pytest.raises(CacheError, match=rf"^{cache.files[1].path} holds NaN or infinite embeddings \('00700'"):
        raise row_ranges(cache)[2].open().not_finite_error(np.array([100, 101, 200]))


@pytest.mark.parametrize("name", ["", "/b.h5"])
def test_another_machine_fetches_its_own_copy_from_the_url(shards, tmp_path, monkeypatch, name):
    monkeypatch.setenv("PUCACHE_WORK", str(tmp_path / "one"))
    cache = EmbeddingCache(f"file://{tmp_path}{name}")
    ranges = pickle.loads(pickle.dumps(row_ranges(cache)))
    for file in cache.files:
        file.path.unlink()
    monkeypatch.setenv("PUCACHE_WORK", str(tmp_path / "other"))
    assert [key for rows in ranges for key in rows.open().keys] == list(cache.keys)
    copies = sorted(path.name for path in (tmp_path / "other").rglob("*.h5"))
    assert copies == (["b.h5"] if name else ["a.h5", "b.h5", "c.h5"])


def test_another_machine_with_an_older_copy_fetches_the_new_one(shards, tmp_path, monkeypatch):
    monkeypatch.setenv("PUCACHE_WORK", str(tmp_path / "work"))
    url = f"file://{tmp_path}/b.h5"
    old = EmbeddingCache(url).files[0]
    old_bytes = old.path.read_bytes()
    path = tmp_path / "b.h5"
    write_cache(path, np.zeros((900, D), np.float32), [f"{row:05}" for row in range(900)])
    ranges = row_ranges(EmbeddingCache(url))
    pieces = [piece for rows in ranges for piece in rows.pieces]
    with replacing(old.path) as temporary:  # as on a machine that has read the earlier file
        temporary.write_bytes(old_bytes)
    assert not ranges[0].open().take(np.arange(3)).any()
    assert {piece.url for piece in pieces} == {url}
