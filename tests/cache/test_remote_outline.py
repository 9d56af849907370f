"""`info` of remote caches: a few ranges are read, and the answer is that of the whole file."""

import dataclasses
import json
import tempfile

import fsspec
import numpy as np
import pytest
from click.testing import CliRunner
from helpers.planted import planted, write_cache

import pucache
from pucache.cache import remote_outline
from pucache.cache.cache_info import info
from pucache.cache.embedding_cache import EmbeddingCache
from pucache.cli.main import main
from pucache.encoders.spec import EncoderSpec
from pucache.errors import CacheError, OutputError
from pucache.storage import retries

X, *_ = planted(300)
FAILURES = {f"{number:05}.png": "cannot be decoded: " + "x" * 90 for number in range(2000)}


@pytest.fixture
def store(s3_server, monkeypatch, tmp_path):
    monkeypatch.setattr(retries, "RETRY_PAUSES", [0.0, 0.0])
    monkeypatch.setenv("PUCACHE_WORK", str(tmp_path / "work"))
    return s3_server.connect(monkeypatch)


@pytest.fixture
def memory(monkeypatch, tmp_path):
    monkeypatch.setattr(retries, "RETRY_PAUSES", [])
    monkeypatch.setenv("PUCACHE_WORK", str(tmp_path / "work"))
    files = fsspec.filesystem("memory")
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A cache of 52 MB with 2,000 failures."""
    rows = np.tile(np.arange(640, dtype=np.float16), (40_000, 1))
    return write_cache(tmp_path_factory.mktemp("large") / "c.h5", rows, failures=FAILURES).files[0].path


def without_path(described):
    return [dataclasses.replace(file, path="") for file in described.files]


def test_of_a_cache_of_50_mb_less_than_one_mb_is_read(store, large, tmp_path):
    store.files.put_file(str(large), "bucket/caches/c.h5")
    here, there = info(large), info("s3://bucket/caches/c.h5")
    assert large.stat().st_size > 50e6 and store.relay.sent["caches/c.h5"] < 1e6
    assert (there.rows, there.encoder, there.failures) == (here.rows, here.encoder, FAILURES)
    assert without_path(there) == without_path(here) and there.files[0].path == "s3://bucket/caches/c.h5"
    assert not (tmp_path / "work").exists(), "nothing of it is kept"
    assert store.relay.asked["GET", "caches/c.h5"] <= 4


def test_shards_are_described_one_by_one(store, tmp_path):
    for number, rows in enumerate(np.array_split(X, 5)):
        keys = [f"{number}/{row}.png" for row in range(len(rows))]
        cache = write_cache(tmp_path / f"{number}.h5", rows, keys, failures={f"{number}/x.png": "gone"})
        store.put(f"shards/{number}.h5", cache.files[0].path.read_bytes())
    there = info(["s3://bucket/shards/", tmp_path / "0.h5"])
    assert there.rows == 360 and len(there.failures) == 5
    assert [file.path for file in there.files] == [f"s3://bucket/shards/{n}.h5" for n in range(5)] + [tmp_path / "0.h5"]
    assert pucache.info("s3://bucket/shards").rows == 300
    ended = CliRunner().invoke(main, ["info", "s3://bucket/shards", "--json"])
    assert ended.exit_code == 0, ended.output
    result = json.loads(ended.output)
    assert (result["rows"], result["failures"], result["files"][4]["path"]) == (300, 5, "s3://bucket/shards/4.h5")


def test_shards_of_two_encoders_are_refused_by_name(memory, tmp_path):
    for name, encoder in (
        ("a", EncoderSpec.imported("one", X.shape[1])),
        ("b", EncoderSpec.imported("two", X.shape[1])),
    ):
        memory.pipe_file(f"/s/{name}.h5", write_cache(tmp_path / "c.h5", X, encoder=encoder).files[0].path.read_bytes())
    with pytest.raises(CacheError, match=r"^memory://s/a.h5 holds .*; memory://s/b.h5 of .* encoders cannot be mixed$"):
        info("memory://s")


def test_every_damage_outside_of_the_columns_is_named_with_the_url(memory, tmp_path):
    path = write_cache(tmp_path / "c.h5", X, failures=FAILURES).files[0].path
    whole = path.read_bytes()
    columns = EmbeddingCache(path).files[0]._checksums.columns
    inside = np.zeros(len(whole), bool)
    for name in ("embeddings", "keys", "digests", "size_mtime"):
        inside[columns[name].offset : columns[name].offset + columns[name].size] = True
    for position in np.random.default_rng(1).choice(np.flatnonzero(~inside), 60, replace=False).tolist():
        damaged = bytearray(whole)
        damaged[position] ^= 1
        memory.pipe_file("/c.h5", bytes(damaged))
        with pytest.raises(CacheError) as error:
            info("memory://c.h5")
        assert "memory://c.h5 " in str(error.value) and tempfile.gettempdir() not in str(error.value)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "memory://c.h5 is empty"),
        (b"mine", r"memory://c.h5 is not a pucache cache \(not an HDF5 file\)"),
        (b"\x89HDF\r\n\x1a\n" + bytes(300_000), "memory://c.h5 ends without pucache's seal: it is truncated"),
    ],
)
def test_what_is_no_cache_is_one_line(memory, data, reason):
    memory.pipe_file("/c.h5", data)
    with pytest.raises(CacheError, match=reason):
        info("memory://c.h5")


def test_a_url_that_does_not_exist_or_cannot_be_read_is_one_line(store):
    with pytest.raises(CacheError, match=r"no such cache: s3://bucket/none.h5; check the URL"):
        info("s3://bucket/none.h5")
    store.put("c.h5", b"data")
    store.relay.fail("GET", "c.h5", "denied")
    with pytest.raises(CacheError, match=r"cannot read s3://bucket/c.h5: Access Denied; check the credentials"):
        info("s3://bucket/c.h5")
    store.relay.fail("GET", "c.h5", "busy")
    with pytest.raises(CacheError, match=r"cannot fetch s3://bucket/c.h5: .*run again when the store answers"):
        info("s3://bucket/c.h5")


def test_a_range_that_fails_is_read_again(store, tmp_path):
    store.put("c.h5", write_cache(tmp_path / "c.h5", X).files[0].path.read_bytes())
    store.relay.fail("GET", "c.h5", "cut", times=2)
    assert info("s3://bucket/c.h5").rows == 300


def test_a_store_without_ranges_gives_the_whole_file(memory, tmp_path, monkeypatch):
    rows = np.zeros((3000, 64), np.float32)
    memory.pipe_file("/c.h5", write_cache(tmp_path / "c.h5", rows).files[0].path.read_bytes())
    real = type(memory).cat_file
    monkeypatch.setattr(type(memory), "cat_file", lambda self, path, start=None, end=None: real(self, path))
    described = info("memory://c.h5")
    assert described.rows == 3000 and str(described.files[0].path).startswith(str(tmp_path / "work"))


def test_an_outline_that_is_large_is_fetched_as_a_whole(memory, tmp_path, monkeypatch):
    memory.pipe_file("/c.h5", write_cache(tmp_path / "c.h5", X, failures=FAILURES).files[0].path.read_bytes())
    monkeypatch.setattr(remote_outline, "_MAX_BYTES", 100_000)
    described = info("memory://c.h5")
    assert described.failures == FAILURES and (tmp_path / "work").exists()


def test_a_cache_that_is_replaced_while_it_is_read_is_read_again(memory, tmp_path, monkeypatch):
    monkeypatch.setattr(retries, "RETRY_PAUSES", [0.0])
    old, new = (write_cache(tmp_path / f"{n}.h5", X[:n]).files[0].path.read_bytes() for n in (200, 300))
    memory.pipe_file("/c.h5", old)
    real = remote_outline._fetch_outline

    def overtaken(copy, size):
        real(copy, size)
        if memory.cat_file("/c.h5") == old:
            memory.pipe_file("/c.h5", new)

    monkeypatch.setattr(remote_outline, "_fetch_outline", overtaken)
    assert info("memory://c.h5").rows == 300


def test_a_folder_for_temporary_files_that_cannot_be_made_is_one_line(memory, tmp_path, monkeypatch):
    memory.pipe_file("/c.h5", b"data")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(OutputError, match="no folder for temporary files: No such file or directory; name one in TMP"):
        info("memory://c.h5")
