import os

import pytest
from helpers.cache_files import FAILURES, SPEC, rows_of, write

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.cache.reader import CacheFile
from pucache.errors import OutputError

ODD_KEYS = ["", "a", "a b", "ab", "b/é.png", "b/🦊.png", "c\nd\r\n.png", "x" * 4000, "é", "\x01", "\U0010ffff"]
ODD_SOURCE = os.fsdecode(b"s3://\xff\xfe")  # not UTF-8


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("keys", [[], ["a"], ODD_KEYS], ids=["none", "one", "odd"])
def test_what_was_written_is_read_back(tmp_path, keys, dtype):
    path = write(tmp_path / "c.h5", keys[::-1], dtype=dtype, source=ODD_SOURCE, failures=FAILURES, shard="2/3")
    file, rows = CacheFile(path), rows_of(keys, dtype)
    EmbeddingCache(file).verify()
    columns = [file.X, file.raw_keys, file.digests, file.size_mtime]
    for got, expected in zip(columns, (rows.X, rows.keys, rows.digests, rows.size_mtime), strict=True):
        assert (got.dtype, got.shape, got.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())
    assert list(EmbeddingCache(path).keys) == sorted(keys)
    assert (file.encoder, file.source, file.shard, file.failures) == (SPEC, ODD_SOURCE, "2/3", FAILURES)


def test_the_time_of_creation_follows_source_date_epoch(tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    assert CacheFile(write(tmp_path / "c.h5", ["a"])).created == "1970-01-01T00:00:00Z"
    for odd in ("yesterday", "nan", "-1e300"):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", odd)
        with pytest.raises(ValueError, match=f"SOURCE_DATE_EPOCH is '{odd}'; expected seconds"):
            write(tmp_path / "c.h5", ["a"])


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.9, 0.97])
def test_a_full_disk_is_an_output_error_and_leaves_no_file(tmp_path, small_disk, share):
    keys = [f"{number:03}" for number in range(500)]
    path = write(tmp_path / "c.h5", keys)
    room = int(path.stat().st_size * share)
    path.unlink()
    with small_disk(room), pytest.raises(OutputError, match=r"cannot write .*c\.h5: File too large"):
        write(path, keys)
    assert os.listdir(tmp_path) == []
