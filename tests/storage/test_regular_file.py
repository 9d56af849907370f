import os

import pytest

from pucache.storage.regular_file import CACHE_FORMAT, format_of, open_regular


def test_a_regular_file_is_opened_also_through_a_link(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    with open_regular(tmp_path / "link") as stream:
        assert stream.read() == b"content"


@pytest.mark.parametrize(("name", "reason"), [("pipe", "is not a regular file"), ("folder", "is a directory")])
def test_a_pipe_and_a_folder_are_refused_at_once(tmp_path, name, reason):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError) as refused:
        open_regular(tmp_path / name)
    assert refused.value.strerror == reason


def test_a_device_is_refused():
    with pytest.raises(OSError, match="is not a regular file"):
        open_regular("/dev/zero")


def test_hdf5_is_the_format_of_a_cache(tmp_path):
    (tmp_path / "cache").write_bytes(b"\x89HDF\r\n\x1a\n")
    assert format_of(tmp_path / "cache") == CACHE_FORMAT
