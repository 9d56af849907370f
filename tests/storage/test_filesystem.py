"""Whole objects and ranges, on a real S3 server that fails where it is told to, and in memory."""

import os

import fsspec
import pytest
from helpers.pictures import refusal

from pucache.errors import MissingExtraError
from pucache.images.source import open_source
from pucache.storage import filesystem, retries
from pucache.storage.filesystem import (
    DownloadLog,
    ObjectReplacedError,
    get_file,
    open_filesystem,
    open_object,
    put_file,
)
from pucache.storage.retries import RetriesExhausted

MB = 1 << 20


def fetch(fs, path, target):
    get_file(fs, path, fs.info(path), target, DownloadLog(path, fs.info(path)["size"]))


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    def missing(url, **_):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(MissingExtraError, match=r"s3://b/c.h5 needs s3fs; pip install .*\[s3\]"):
        open_filesystem("s3://b/c.h5")
    with pytest.raises(MissingExtraError, match=r"gs://b needs another package \(Install"):
        open_filesystem("gs://b")


def test_an_object_that_grows_while_it_is_read_is_refused(memory, monkeypatch):
    memory.pipe("/root/a.png", b"longer by now")
    monkeypatch.setattr(type(memory), "info", lambda self, path: {"size": 4, "type": "file"})
    assert refusal(open_source("memory://root").read, "a.png").startswith("changed while it was read: 4 bytes at first")


def test_an_object_is_read_in_blocks_each_once(store):
    data = os.urandom(10 * 1000 + 7)
    store.put("a", data)
    store.relay.fail("GET", "a", "cut", times=1)
    with open_object(*open_filesystem("s3://bucket/a"), block_bytes=1000) as stream:
        assert stream.read(30) == data[:30]
        stream.seek(-5, os.SEEK_END)
        assert stream.read() == data[-5:]
        stream.seek(900)
        assert stream.read(1200) == data[900:2100]
        stream.seek(0)
        assert store.relay.sent["a"] < 10 * 1000
        assert stream.read() == data
    assert store.relay.asked["GET", "a"] == 11 + 1, "one was cut"


# --- download ----------------------------------------------------------------------------------


def test_a_large_object_comes_in_pieces_each_of_which_is_tried_again(store, tmp_path, monkeypatch):
    monkeypatch.setattr(filesystem, "BLOCK_BYTES", MB)
    data = os.urandom(3 * MB + 5)
    store.put("c.h5", data)
    store.relay.fail("GET", "c.h5", times=3)
    fetch(*open_filesystem("s3://bucket/c.h5"), tmp_path / "c.h5")
    assert (tmp_path / "c.h5").read_bytes() == data
    assert store.relay.asked["GET", "c.h5"] == 4 + 3


def test_a_download_that_fails_leaves_what_was_here_and_nothing_half(store, tmp_path):
    store.put("c.h5", b"new")
    fs, path = open_filesystem("s3://bucket/c.h5")
    info = fs.info(path)
    (tmp_path / "c.h5").write_bytes(b"old")
    store.relay.fail("GET", "c.h5", times=4)
    with pytest.raises(RetriesExhausted):
        get_file(fs, path, info, tmp_path / "c.h5", DownloadLog("c.h5", 3))
    store.put("c.h5", b"NEW")
    with pytest.raises(ObjectReplacedError):
        get_file(fs, path, info, tmp_path / "c.h5", DownloadLog("c.h5", 3))
    assert [file.read_bytes() for file in tmp_path.iterdir() if file.is_file()] == [b"old"]


# --- upload ------------------------------------------------------------------------------------


def test_readers_never_see_a_part_of_an_upload(memory, tmp_path, monkeypatch):
    (tmp_path / "c.h5").write_bytes(b"new content")
    memory.pipe_file("/c.h5", b"old")

    def cut(self, local, path, **_):
        self.pipe_file(path, b"new")

    monkeypatch.setattr(type(memory), "put_file", cut)
    with pytest.raises(RetriesExhausted, match=r"3 bytes of 11 arrived \(tried 2 times\)"):
        put_file(memory, tmp_path / "c.h5", "/c.h5")
    assert memory.cat_file("/c.h5") == b"old"


@pytest.mark.parametrize("multipart", [False, True])
def test_an_upload_that_is_cut_is_made_again_or_leaves_the_old_object(store, tmp_path, monkeypatch, multipart):
    monkeypatch.setattr("s3fs.core.calculate_chunksize", lambda size, chunksize=None: 5 * MB)
    content = bytes((11 if multipart else 1) * MB)
    (tmp_path / "c.h5").write_bytes(content)
    fs, path = open_filesystem("s3://bucket/c.h5", retry_each_request=True)
    store.put("c.h5", b"old")
    monkeypatch.setattr(retries, "RETRY_PAUSES", [])
    store.relay.fail("PUT", "c.h5")
    with pytest.raises(RetriesExhausted, match=r"tried 1 time"):
        put_file(fs, tmp_path / "c.h5", path)
    assert store.get("c.h5") == b"old"
    monkeypatch.setattr(retries, "RETRY_PAUSES", [0.0, 0.0])
    store.relay.fail("PUT", "c.h5", times=2)
    put_file(fs, tmp_path / "c.h5", path)
    assert store.get("c.h5") == content
