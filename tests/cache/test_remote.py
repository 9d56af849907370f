"""Copies of caches behind URLs, their headers, and what `cache_dir` removes; on a real S3 server and in memory."""

import dataclasses

import numpy as np
import pytest
from helpers.command_line import run, run_json
from helpers.planted import planted, write_cache

import pucache
from pucache import EmbeddingCache, cache_dir, info
from pucache.cache.destination import open_destination
from pucache.cache.embedding_cache import is_cache
from pucache.cache.local_copies import url_of_copy, working_folder
from pucache.cache.remote import file_name, local_copies, remote_headers
from pucache.errors import CacheError, SourceError
from pucache.reviewing.session_folder import session_folder

FAILURES = {f"{number:05}.png": "cannot be decoded: " + "x" * 90 for number in range(2000)}
VERSION = "0123456789abcdef"


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
    for gone in (url, "s3://missing/c.h5"):
        with pytest.raises(CacheError, match=r"no such cache: .*c.*h5; check the URL"):
            local_copies(gone)


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


def test_a_remote_cache_is_told_from_images_and_one_that_cannot_be_fetched_is_one_line(store):
    store.put("shards/a.h5", b"data")
    store.put("photos.1/a.png", b"data")
    answers = {"s3://bucket/c.h5": True, "s3://bucket/shards": True, "s3://bucket/photos.1/": False}
    assert {url: is_cache(url) for url in (*answers, "s3://bucket/a.tar")} == answers | {"s3://bucket/a.tar": False}
    store.relay.fail("GET", "", "denied")
    store.relay.fail("GET", "shards/a.h5", "denied")
    with pytest.raises(SourceError, match="cannot read s3://bucket/shards: Access Denied"):
        is_cache("s3://bucket/shards")
    with pytest.raises(CacheError, match=r"cannot fetch s3://bucket/shards/a.h5: Access Denied"):
        local_copies("s3://bucket/shards/a.h5")


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/", "s3://bucket/folder/", "s3://bucket/.."])
def test_a_url_without_a_file_is_no_cache(url):
    with pytest.raises(ValueError, match=r"names no file; expected a URL such as s3://bucket/folder/cache.h5"):
        file_name(url)


# --- headers -----------------------------------------------------------------------------------


def test_of_a_large_cache_less_than_a_sixth_is_read(store, tmp_path, work):
    rows = np.tile(np.arange(640, dtype=np.float16), (5_000, 1))
    large = write_cache(tmp_path / "c.h5", rows, failures=FAILURES).files[0].path
    store.files.put_file(str(large), "bucket/c.h5")
    ((header, failures),) = remote_headers("s3://bucket/c.h5")
    assert large.stat().st_size > 6e6 and store.relay.sent["c.h5"] < 1e6
    assert (header.rows, failures) == (5_000, FAILURES)
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


# --- what this machine keeps, and what `cache_dir` removes of it ---------------------------------


@pytest.fixture
def fetched(memory):
    """Copies for reading of a file, and of a folder."""
    for name in ("a.h5", "shards/b.h5", "shards/c.h5"):
        memory.pipe_file(f"/{name}", name.encode())
    return [*local_copies("memory://a.h5"), *local_copies("memory://shards")]


@pytest.fixture
def unfinished(work):
    """Part of a cache that is written for a URL."""
    part = open_destination("memory://made.h5").local.with_name("made.h5.parts") / "part-1.h5"
    part.parent.mkdir()
    part.write_bytes(b"x" * 3_000_000)
    return part


# --- folders -----------------------------------------------------------------------------------


def test_the_folder_to_work_in_is_told_or_found(work, monkeypatch, tmp_path):
    def parent():
        return working_folder("s3://b/c.h5").parent

    assert parent() == work
    monkeypatch.delenv("PUCACHE_WORK")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert parent() == tmp_path / "xdg/pucache"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert parent() == tmp_path / "home/.cache/pucache"


def test_two_urls_never_share_a_folder_but_for_a_password():
    url = "https://{}host.invalid/c.h5{}"
    places = [url.format(*parts) for parts in (("", ""), ("a:p@", ""), ("b:p@", ""), ("", "?run=1"), ("", "?run=2"))]
    assert len(set(map(working_folder, places))) == len(places)
    assert working_folder(url.format("a:p@", "")) == working_folder(url.format("a:changed@", ""))


def test_a_session_of_a_remote_cache_is_found_in_every_version_and_where_it_was_before(memory, tmp_path):
    for rows in (20, 40):
        memory.pipe_file("/s/c.h5", write_cache(tmp_path / "c.h5", X[:rows]).files[0].path.read_bytes())
        of_file, of_folder = EmbeddingCache("memory://s/c.h5"), EmbeddingCache("memory://s/")
        assert session_folder(of_file) == working_folder("memory://s/c.h5", "-read") / "c.h5.review"
        assert session_folder(of_folder) == working_folder("memory://s", "-read") / "s/c.h5.review"
    local = EmbeddingCache(tmp_path / "c.h5")
    assert session_folder(local) == tmp_path / "c.h5.review"


# --- listing and clearing ----------------------------------------------------------------------


def test_copies_are_listed_with_url_size_and_purpose_and_nothing_is_changed(work, fetched, unfinished):
    before = {path: path.lstat().st_mtime_ns for path in work.rglob("*")}
    listed = [(copy.url, copy.purpose, copy.bytes, copy.unfinished_parts) for copy in cache_dir().copies]
    made = ("memory://made.h5", "writing", 3_000_000, 1)
    assert listed == [("memory://a.h5", "reading", 4, 0), made, ("memory://shards", "reading", 22, 0)]
    lines = run("cache-dir").stdout.splitlines()
    assert lines[0] == f"{work}: 3 copies, 3.0 MB"
    assert "memory://made.h5: 3.0 MB, for writing, 1 unfinished parts" in lines
    result = run_json("cache-dir")
    assert (result["folder"], result["bytes"], result["removed"]) == (str(work), 3_000_026, [])
    assert {path: path.lstat().st_mtime_ns for path in work.rglob("*")} == before


def test_clearing_removes_copies_alone(work, fetched, unfinished, tmp_path):
    copy, outside = fetched[0], tmp_path / "outside"
    (copy.parent / ".a.h5.12345678.partial").write_bytes(b"of a killed download")
    others = [
        copy.parent.parent / "a.h5.review/decisions.sqlite",
        copy.parent.parent / "a.h5.neighbours",
        copy.with_name("a.h5.damaged"),
        work / f"notes-read/{VERSION}/mine.h5",
        outside / VERSION / "mine.h5",
    ]
    for other in others:
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_bytes(b"other")
    (work / f"{VERSION}-read").symlink_to(outside)
    (copy.parent.parent / "linked").symlink_to(outside)
    assert run("cache-dir --clear").stdout.startswith("removed 2 copies, 0.0 KB\n")
    assert not any(path.exists() for path in fetched) and all(other.exists() for other in [*others, unfinished])
    assert [copy.url for copy in cache_dir().copies] == ["memory://a.h5", "memory://made.h5"]
    assert local_copies("memory://a.h5") == [copy] and copy.read_bytes() == b"a.h5"
