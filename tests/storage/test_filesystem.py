"""Whole objects and ranges, on a real S3 server that fails where it is told to, and in memory."""

import errno
import os
from pathlib import Path

import fsspec
import pytest
from helpers.pictures import refusal

from pucache import open_source
from pucache.errors import CacheError, MissingExtraError, one_line
from pucache.storage import filesystem, retries
from pucache.storage.filesystem import DownloadLog, ObjectReplacedError, get_file, open_filesystem, put_file
from pucache.storage.retries import RetriesExhausted, error_text, is_permanent, with_retries
from pucache.storage.urls import path_or_url, without_secrets

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


# --- retries --------------------------------------------------------------------------------------


class HttpError(Exception):
    def __init__(self, status):
        super().__init__(f"status {status}")
        self.status = status


class NoCredentialsError(Exception):
    """Named as botocore's."""


def test_a_store_that_hangs_is_not_asked_for_longer_than_a_minute(monkeypatch):
    monkeypatch.setattr(retries, "RETRY_PAUSES", [0.0, 0.0, 0.0])
    clock = [0.0]
    monkeypatch.setattr(retries.time, "monotonic", lambda: clock[0])
    asked = []

    def hang():
        asked.append(clock[0])
        clock[0] += 40
        raise TimeoutError

    with pytest.raises(RetriesExhausted, match=r"TimeoutError \(tried 2 times\)"):
        with_retries(hang)
    assert asked == [0, 40]


@pytest.mark.parametrize(
    ("error", "permanent"),
    [
        (CacheError("no"), True),
        (NoCredentialsError(), True),
        (OSError(errno.ELOOP, "loop"), True),
        (HttpError(500), False),
        (HttpError(501), True),
        (HttpError(429), False),
        (HttpError(503), False),
        (ConnectionResetError(), False),
    ],
)
def test_what_another_attempt_may_overcome_is_told_from_what_it_cannot(error, permanent):
    assert is_permanent(error) == permanent


@pytest.mark.parametrize(("status", "calls"), [(404, 1), (410, 1), (503, 2), (None, 2)])
def test_a_server_that_fails_is_asked_again_though_fsspec_says_that_the_file_is_missing(monkeypatch, status, calls):
    monkeypatch.setattr(retries, "RETRY_PAUSES", [0.0])
    asked = []

    def fetch():
        asked.append(1)
        cause = OSError("refused")
        if status:
            cause.status = status
        raise FileNotFoundError("https://host/a.png") from cause

    with pytest.raises(FileNotFoundError if calls == 1 else RetriesExhausted):
        with_retries(fetch)
    assert len(asked) == calls


def test_texts_of_errors_hold_no_secret_and_say_that_a_file_is_missing():
    told = error_text(OSError("GET https://u:hunter2@h/x?sig=hunter2: 500, memory://u:hunter2@h/x?token=hunter2"))
    assert told == "GET https://h/x 500, memory://h/x"
    assert error_text(FileNotFoundError("bucket/a.png")) == "no such file: bucket/a.png"


# --- urls -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "path"),
    [
        ("file:///a/b c.h5", "/a/b c.h5"),
        ("file://localhost/a.h5", "/a.h5"),
        ("file://a/b.h5", "a/b.h5"),
        (Path("/a.h5"), "/a.h5"),
        ("s3://b/file://a", "s3://b/file://a"),
    ],
)
def test_the_url_of_a_file_is_its_path(where, path):
    assert path_or_url(where) == path


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sftp://u:hunt@er2@h/a@b.png", "sftp://h/a@b.png"),
        ("sftp://u:hunt/er2@h/a.png", "sftp://h/a.png"),
        ("HTTPS://hunter2@h/a.png?sig=hunter2", "HTTPS://h/a.png"),
        ("http://h:8080/a@b.png", "http://h:8080/a@b.png"),
        ("s3://bucket/a:b@c.png", "s3://bucket/a:b@c.png"),
        ("zip://a.png::memory://b@c.zip", "zip://a.png::memory://b@c.zip"),
        ("zip://a.png::sftp://u:hunter2@h/c.zip", "zip://a.png::sftp://h/c.zip"),
        ("s3:/k:hunter2@bucket/a.h5", "s3:/bucket/a.h5"),
        ("https:/hunter2@h/a.png?sig=hunter2", "https:/h/a.png"),
        ("no file 'a.h5?X-Amz-Signature=hunter2&x=1'", "no file 'a.h5?X-Amz-Signature=...&x=1'"),
        ("C:/photos/a@b.png", "C:/photos/a@b.png"),
        ("/data/a: b@c.png?x=1", "/data/a: b@c.png?x=1"),
    ],
)
def test_a_password_is_told_from_a_port_and_from_a_path(url, shown):
    assert without_secrets(url) == shown


def test_a_long_reason_ends_after_a_word():
    assert one_line(ValueError("a reason\nof two lines")) == "a reason of two lines"
    assert one_line(ValueError("repository not found " * 3), 30) == "repository not found..."
    assert one_line(ValueError("x" * 400)) == "x" * 297 + "..."
