import os

import pytest

from pucache.storage.regular_file import open_regular


def test_a_regular_file_is_opened_also_through_a_link(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    with open_regular(tmp_path / "link") as stream:
        assert stream.read() == b"content"


@pytest.mark.parametrize(
    ("name", "reason"),
    [("pipe", "is not a regular file"), ("folder", "is a directory"), ("/dev/zero", "is not a regular file")],
)
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, name, reason):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError) as refused:
        open_regular(tmp_path / name)
    assert refused.value.strerror == reason
