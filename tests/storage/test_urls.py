from pathlib import Path

import pytest

from pucache.storage.urls import path_or_url, without_secrets


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
