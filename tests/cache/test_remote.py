"""Copies of caches behind URLs, and their headers, on a real S3 server and in memory."""

import dataclasses
import re

import numpy as np
import pytest
from helpers.planted import planted, write_cache
from helpers.refusals import one_line

import pucache
from pucache import EmbeddingCache, info
from pucache.cache.embedding_cache import is_cache
from pucache.cache.local_copies import url_of_copy
from pucache.cache.remote import file_name, local_copies, remote_headers
from pucache.errors import CacheError, SourceError

FAILURES = {f"{number:05}.png": "cannot be decoded: " + "x" * 90 for number in range(2000)}


@pytest.fixture
def cache(tmp_path):
    """Bytes of a cache of so many rows, all of one value."""

    def make(rows, value=0):
        path = tmp_path / "made.h5"
        return write_cache(path, np.full((rows, 8), value, np.float16)).files[0].path.read_bytes()

    return make


# --- copies ------------------------------------------------------------------------------------


def test_a_cache_is_fetched_once_and_again_when_it_has_changed(store):
    store.put("some folder/cäche #1.h5", b"first")
    url = "s3://bucket/some folder/cäche #1.h5"
    (first,) = local_copies(url)
    assert (first.name, first.read_bytes(), local_copies(url)) == ("cäche #1.h5", b"first", [first])
    assert store.relay.asked["GET", "some folder/cäche #1.h5"] == 1
    store.put("some folder/cäche #1.h5", b"2nd..")
    (second,) = local_copies(url)
    assert second.read_bytes() == b"2nd.." and second != first and not first.exists()
    store.files.rm_file("bucket/some folder/cäche #1.h5")
    with pytest.raises(CacheError, match=r"no such cache: .*cäche #1.h5; check the URL"):
        local_copies(url)


def test_a_copy_that_is_open_is_read_to_the_end_when_a_new_version_comes(memory, cache):
    memory.pipe_file("/c.h5", cache(5000, 1))
    opened = EmbeddingCache("memory://c.h5")
    before = opened.matrix[:10]
    memory.pipe_file("/c.h5", cache(100, 2))
    assert len(EmbeddingCache("memory://c.h5")) == 100
    assert (opened.X == 1).all() and (before == 1).all() and (opened.take(np.array([4999])) == 1).all()
    assert sum(len(block) for _, block in opened.blocks(check=True)) == 5000


def test_a_folder_of_caches_is_fetched_and_follows_what_is_there(store):
    for key in ("a.h5", "b [1].h5", ".hidden.h5", "a.h5.parts/part-1.h5", "notes.md"):
        store.put(f"caches/{key}", key.encode())
    for url in ("s3://bucket/caches", "s3://bucket/caches/"):
        copies = local_copies(url)
        assert {path.name: path.read_bytes() for path in copies} == {"a.h5": b"a.h5", "b [1].h5": b"b [1].h5"}
        assert list(map(url_of_copy, copies)) == ["s3://bucket/caches/a.h5", "s3://bucket/caches/b [1].h5"]
    assert store.relay.asked["GET", "caches/a.h5"] == 1
    store.files.rm_file("bucket/caches/a.h5")
    assert local_copies("s3://bucket/caches") == copies[1:] and not copies[0].exists()
    store.files.rm_file("bucket/caches/b [1].h5")
    with pytest.raises(CacheError, match=r"no cache in folder s3://bucket/caches/; expected \*.h5 files"):
        local_copies("s3://bucket/caches/")


def test_a_cache_that_is_replaced_while_it_is_fetched_is_fetched_again(memory, monkeypatch):
    real, reads = type(memory).cat_file, []

    def cat_file(self, path, **options):
        read = real(self, path, **options)
        if not reads:
            self.pipe_file(path, b"newer")
        reads.append(path)
        return read

    memory.pipe_file("/c.h5", b"old")
    monkeypatch.setattr(type(memory), "cat_file", cat_file)
    assert local_copies("memory://c.h5")[0].read_bytes() == b"newer"


@pytest.mark.parametrize(
    ("url", "fault", "reason"),
    [
        ("s3://bucket/c.h5", "denied", r"cannot fetch s3://bucket/c.h5: Access Denied"),
        ("s3://missing/c.h5", None, r"no such cache: s3://missing/c.h5; check the URL"),
    ],
)
def test_a_cache_that_cannot_be_fetched_is_one_line(store, url, fault, reason):
    store.put("c.h5", b"data")
    store.relay.fail("GET", "c.h5", fault)
    assert re.search(reason, one_line(CacheError, local_copies, url))


def test_a_remote_cache_is_told_from_images(store):
    store.put("shards/a.h5", b"data")
    store.put("photos.1/a.png", b"data")
    answers = {"s3://bucket/c.h5": True, "s3://bucket/shards": True, "s3://bucket/photos.1/": False}
    assert {url: is_cache(url) for url in (*answers, "s3://bucket/a.tar")} == answers | {"s3://bucket/a.tar": False}
    store.relay.fail("GET", "", "denied")
    with pytest.raises(SourceError, match="cannot read s3://bucket/shards: Access Denied"):
        is_cache("s3://bucket/shards")


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/", "s3://bucket/folder/", "s3://bucket/.."])
def test_a_url_without_a_file_is_no_cache(url):
    with pytest.raises(ValueError, match=r"names no file; expected a URL such as s3://bucket/folder/cache.h5"):
        file_name(url)


# --- headers -----------------------------------------------------------------------------------


def test_of_a_cache_of_25_mb_less_than_one_mb_is_read(store, tmp_path, work):
    rows = np.tile(np.arange(640, dtype=np.float16), (20_000, 1))
    large = write_cache(tmp_path / "c.h5", rows, failures=FAILURES).files[0].path
    store.files.put_file(str(large), "bucket/c.h5")
    ((header, failures),) = remote_headers("s3://bucket/c.h5")
    assert large.stat().st_size > 25e6 and store.relay.sent["c.h5"] < 1e6
    assert (header.rows, failures) == (20_000, FAILURES)
    assert not work.exists()


def test_a_header_that_cannot_be_read_is_one_line_and_one_that_was_cut_is_read_again(store, cache):
    store.put("c.h5", cache(30))
    store.relay.fail("GET", "c.h5", "busy")
    with pytest.raises(CacheError, match=r"cannot read s3://bucket/c.h5: .*run again when the store answers"):
        remote_headers("s3://bucket/c.h5")
    store.relay.fail("GET", "c.h5", "cut", times=2)
    assert remote_headers("s3://bucket/c.h5")[0][0].rows == 30


# --- cache info -----------------------------------------------------------------------------------

X, *_ = planted(300)


@pytest.fixture
def shards(store, tmp_path):
    """Folder of five shards, here and in a store."""
    for number, rows in enumerate(np.array_split(X, 5)):
        keys = [f"{number}/{row}.png" for row in range(len(rows))]
        cache = write_cache(tmp_path / f"shards/{number}.h5", rows, keys, failures={f"{number}/x.png": "gone"})
        store.put(f"shards/{number}.h5", cache.files[0].path.read_bytes())
    return tmp_path / "shards"


def without_paths(content):
    return [dataclasses.replace(file, path="") for file in content.files]


def test_a_folder_in_a_store_is_described_as_one_on_a_disk(shards):
    here, there = info(shards), info("s3://bucket/shards/")
    assert without_paths(there) == without_paths(here)
    assert (there.rows, there.encoder, there.failures) == (300, here.encoder, here.failures)
    assert [file.path for file in there.files] == [f"s3://bucket/shards/{number}.h5" for number in range(5)]
    assert info(f"file://{shards}") == pucache.info(shards) == here
