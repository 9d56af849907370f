import os
import re
import signal
import stat

import pytest
from helpers.pictures import refusal
from helpers.sources import picture, write

from pucache import open_source
from pucache.errors import SourceError
from pucache.images import listing as limits
from pucache.images.folder import read_local

ODD_NAMES = ["a b.jpg", "line\r\nbreak.jpg", "émoji 🦊.png", "quo\"te's.jpg", "back\\slash.gif", "UPPER.JPG", " .png"]
ODD_NAMES += ["%41*?[x].tif", "-rf.png", "n" * 251 + ".png", "é" * 125 + "x.png", "$(x);&|.png", "x\x7f\x1b[31m.png"]


def test_any_path_that_is_utf8_is_a_key(tmp_path):
    room = 4095 - len(f"{tmp_path}//x.png")
    longest = "/".join(["n" * 200] * (room // 201)) + "/x.png"
    keys = sorted([longest, *(f"a folder\n/{name}" for name in ODD_NAMES)], key=str.encode)
    for key in keys:
        write(tmp_path / key, key.encode())
    source = open_source(tmp_path)
    assert source.scan().keys == keys
    assert all(source.read(key) == key.encode() for key in keys)


def test_a_folder_tells_size_and_time_to_the_nanosecond(tmp_path):
    for name, size, time in (("b.png", 7, 1_700_000_000_123_456_789), ("a.png", 0, -5_000_000_000)):
        os.utime(write(tmp_path / name, b"x" * size), ns=(0, time))
    assert open_source(tmp_path).scan().size_mtime.tolist() == [[0, -5_000_000_000], [7, 1_700_000_000_123_456_789]]


def test_a_relative_folder_can_be_read_after_a_change_of_directory(tmp_path, monkeypatch):
    write(tmp_path / "here/a.png", b"data")
    monkeypatch.chdir(tmp_path)
    source = open_source("here/")
    monkeypatch.chdir("/")
    assert [source.read(key) for key in source.scan().keys] == [b"data"]


def test_a_name_that_is_not_utf8_is_a_failure_and_the_rest_is_listed(tmp_path):
    for name in (b"good.png", b"sub/caf\xe9.png"):
        write(tmp_path / os.fsdecode(name), picture())
    listing = open_source(tmp_path).scan()
    assert listing.keys == ["good.png"]
    assert listing.failures == {"sub/caf\\xe9.png": "file name is not UTF-8; rename the file"}


def test_symbolic_links_are_followed_and_loops_are_failures(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    write(outside / "a.png", b"data")
    write(inside / "sub/b.png", picture())
    (inside / "folder").symlink_to(outside)
    (inside / "gone.png").symlink_to("nowhere")
    (inside / "file.png").symlink_to(outside / "a.png")
    (inside / "self.png").symlink_to("self.png")
    (inside / "sub/up").symlink_to(inside)
    source = open_source(inside)
    listing = source.scan()
    assert listing.keys == ["file.png", "folder/a.png", "sub/b.png"]
    assert source.read("file.png") == source.read("folder/a.png") == b"data"
    assert listing.size_mtime[0].tolist() == [4, (outside / "a.png").stat().st_mtime_ns]
    assert listing.failures == {
        "gone.png": "cannot be read: No such file or directory",
        "self.png": "cannot be read: Too many levels of symbolic links",
        "sub/up/": "symbolic link back to a folder above it",
    }


def test_a_directory_without_permission_is_a_failure_and_the_root_an_error(tmp_path, monkeypatch):
    write(tmp_path / "root/closed/b.png", picture())

    def scandir(path, real=os.scandir):  # the tests may run as root, whom no permission stops
        if path.endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    listing = open_source(tmp_path / "root").scan()
    assert listing.failures == {"closed/": "directory cannot be listed: Permission denied"}
    with pytest.raises(SourceError, match=r"cannot list .*closed: Permission denied"):
        open_source(tmp_path / "root/closed").scan()


def test_special_files_are_refused_without_waiting_for_them(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    source = open_source(tmp_path)
    assert source.scan().keys == ["pipe.png", "zero.png"]
    previous = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("blocked on a named pipe"))
    signal.alarm(5)
    try:
        for name in ("pipe.png", "zero.png"):
            assert refusal(source.read, name) == "cannot be read: is not a regular file"
        assert refusal(source.read, "folder.png") == "cannot be read: is a directory"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


@pytest.mark.parametrize("told", [0, 9999, 20_000])
def test_a_file_is_read_up_to_the_limit_whatever_size_was_told(tmp_path, monkeypatch, told):
    data = bytes(range(250)) * 40
    path = write(tmp_path / "a.png", data)
    info = list(os.stat(path))
    info[stat.ST_SIZE] = told
    monkeypatch.setattr(os, "fstat", lambda file: os.stat_result(info))
    assert read_local(path) == data
    monkeypatch.setattr(limits, "MAX_BYTES", 1000)
    assert re.fullmatch(r"file of [\d,]+ bytes; at most 1,000 are read", refusal(read_local, path))
