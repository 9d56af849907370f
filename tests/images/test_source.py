import gzip
import os
import pickle
import re
from collections import Counter

import fsspec
import numpy as np
import pytest
from helpers.pictures import refusal
from helpers.refusals import one_line
from helpers.sources import archive, picture, tar, write

from pucache import open_source
from pucache.errors import SourceError
from pucache.images import listing as limits

SOURCES = ["", "list.txt", "list.csv"]
SOURCES += [f"{many}{end}" for end in ("tar", "tar.gz", "tgz", "tar.bz2", "tar.xz", "tar.zst", "zip", "parquet")
            for many in ("one.", "shard-*.")]  # fmt: skip


NAMES = ["z.png", "B/é.png", "B/a b.png", "a/x.jpg", "🦊.webp", "quo\"te's.jpg", "UPPER.JPG", " .png", "%41*?[x].tif"]
NAMES += ["-rf.png", "$(x);&|.png", "x#y.png", "p%20q.png", "w?x=1.png", "p+q.png", "[1].png", "n" * 251 + ".png"]
NAMES += ["x\x7f\x1b[31m.png", "line\r\nbreak.jpg", "next\u2028line.png", "form\x0cfeed.png", "back\\slash.gif"]
PLACES = [(place, source) for place in ("local", "memory") for source in SOURCES]
PLACES += [("s3", source) for source in ("", "list.csv", "one.tar")]


@pytest.mark.parametrize(("place", "source"), PLACES, indirect=["place"])
def test_a_source_lists_sorted_keys_and_reads_their_bytes_also_after_pickling(place, tmp_path_factory, source):
    where, put = place
    names = [*filter(str.isprintable, NAMES), "d//e.png"] if where.startswith("s3") else NAMES
    if source == "list.txt" or source.endswith("zip"):
        names = [name for name in names if not set("\n\\") & set(name)]
    content = {name: picture((i, 0, 0)) for i, name in enumerate(names)} | {"empty.png": b""}
    if source in SOURCES[:3]:
        content |= {"no ending": b"data"} if source else {}
        for name, data in content.items():
            put(name, data)
        put("list.txt", "\n".join(content).encode())
        put("list.csv", "\n".join(["path", *('"' + name.replace('"', '""') + '"' for name in content)]).encode())
    else:
        made = tmp_path_factory.mktemp("made") / source.replace("*", "1")
        archive(made, content)
        put(made.name, made.read_bytes())
        put(f"2-{made.name}", made.read_bytes())
    if "*" in source:
        source = f"*{source}"
        content = {f"{shard}/{name}": data for shard in (made.name, f"2-{made.name}") for name, data in content.items()}
    opened = open_source(f"{where}/{source}".rstrip("/"))
    listing = opened.scan()
    assert (listing.keys, listing.failures) == (sorted(content, key=str.encode), {})
    assert listing.size_mtime.dtype == np.int64
    if ("tar" not in source and "parquet" not in source) or source.endswith(".tar"):
        assert listing.size_mtime[:, 0].tolist() == [len(content[key]) for key in listing.keys]
    for one in (opened, pickle.loads(pickle.dumps(opened)), open_source(opened.name)):
        assert {key: one.read(key) for key in listing.keys} == content


@pytest.mark.parametrize("source", ["", "list.txt", "one.tar"])
def test_an_image_that_vanishes_or_shrinks_after_the_listing_is_refused(place, source):
    where, put = place
    put("a.png", picture())
    put("list.txt", b"a.png\n")
    put("one.tar", tar(("a.png", picture())))
    opened = open_source(f"{where}/{source}")
    opened.scan()
    put("one.tar", b"short")
    filesystem, root = fsspec.core.url_to_fs(where)
    filesystem.rm(f"{root}/a.png")
    assert re.match("cannot be read|truncated tar member", refusal(opened.read, "a.png"))


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("nowhere.txt", "cannot read .*nowhere.txt: No such file or directory"),
        ("nowhere.tar", "cannot read .*nowhere.tar as tar: No such file or directory"),
        ("nowhere-*.tar", "no such source: no shard matches .*nowhere-"),
        ("a.png", "a.png is not a source; expected a folder"),
        ("pipe.txt", "pipe.txt is not a regular file; expected a folder, a manifest"),
        ("/dev/null", "/dev/null is not a regular file; expected a folder, a manifest"),
        ("notes.md", "notes.md is not a source; expected a folder"),
        ("x.tar.gz", "cannot read .*x.tar.gz as tar: .*header"),
        ("page.tar", "cannot read .*page.tar as tar: .*header; it is an HTML page$"),
        ("packed.tar", r"packed.tar is a compressed tar; rename it so that it ends in \.tar\.gz"),
        ("x.zip", "cannot read .*x.zip as ZIP: File is not a zip file"),
        ("x.parquet", "cannot read .*x.parquet as Parquet: .*not a parquet file"),
        ("nowhere.parquet", "cannot read .*nowhere.parquet.*: No such file or directory"),
        ("pipe.parquet", "pipe.parquet is not a regular file; expected a folder"),
        ("wrong.tar", "cannot read .*wrong.tar as tar: .*header"),
        ("empty.tar", "cannot read .*empty.tar as tar: empty file"),
        ("memory://root/a.png", "memory://root/a.png is a file; expected a folder"),
        ("nosuch://user:hunter2@bucket/images", "cannot read nosuch://bucket/images: Protocol not known: nosuch"),
        ("s3://missing/root", "cannot read s3://missing/root: The specified bucket does not exist"),
        ("s3://bucket/empty", r"no such source: s3://bucket/empty \(nothing is there\)"),
        ("s3://bucket/no.csv", "cannot read s3://bucket/no.csv: no such file: bucket/no.csv"),
        ("s3://bucket/no.tar", "cannot read s3://bucket/no.tar as tar: no such file: bucket/no.tar"),
        ("s3://bucket/*.tar", r"no such source: no shard matches s3://bucket/\*.tar"),
    ],
)
def test_what_is_no_source_is_refused_in_one_line(tmp_path, monkeypatch, memory, store, where, reason):
    for name in ("a.png", "notes.md", "x.tar.gz", "wrong.tar", "x.zip", "x.parquet"):
        write(tmp_path / name, b"no tar" * 200)
    (tmp_path / "empty.tar").touch()
    write(tmp_path / "page.tar", b"<!DOCTYPE html>" * 90)
    write(tmp_path / "packed.tar", gzip.compress(b"no tar"))
    os.mkfifo(tmp_path / "pipe.txt")
    os.mkfifo(tmp_path / "pipe.parquet")
    memory.pipe("/root/a.png", picture())
    monkeypatch.chdir(tmp_path)
    assert re.search(reason, one_line(SourceError, lambda: open_source(where).scan()))


@pytest.mark.parametrize("name", ["x.tar", "x.csv", "x y [1].é"])
def test_a_folder_is_a_folder_whatever_its_name_ends_in(tmp_path, name):
    write(tmp_path / name / "a.png", picture())
    assert open_source(tmp_path / name).scan().keys == ["a.png"]


def test_a_folder_leaves_out_hidden_files_and_counts_other_endings(place):
    where, put = place
    for name in ("a.png", "sub/deep/b.JPEG", ".hidden.png", ".git/c.png", "sub/.d/e.png", "x.md", "sub/y.MD", "README"):
        put(name, picture())
    listing = open_source(where).scan()
    assert listing.keys == ["a.png", "sub/deep/b.JPEG"]
    assert listing.ignored == Counter({".md": 2, "(none)": 1})
    assert listing.failures == {}


@pytest.mark.parametrize("source", ["", "list.txt", "one.tar"])
def test_a_huge_file_is_refused_by_its_size_alone(place, monkeypatch, source):
    where, put = place
    put("a.png", bytes(1234))
    put("list.txt", b"a.png")
    put("one.tar", tar(("a.png", bytes(1234))))
    monkeypatch.setattr(limits, "MAX_BYTES", 1000)
    assert refusal(open_source(f"{where}/{source}").read, "a.png") == "file of 1,234 bytes; at most 1,000 are read"


# --- folders ------------------------------------------------------------------------------------


def test_the_longest_path_is_a_key(tmp_path):
    key = "/".join(["n" * 200] * ((4095 - len(f"{tmp_path}//x.png")) // 201)) + "/x.png"
    write(tmp_path / key, b"data")
    source = open_source(tmp_path)
    assert source.scan().keys == [key] and source.read(key) == b"data"


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


def test_links_are_followed_and_loops_and_names_that_are_not_utf8_are_failures(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    write(outside / "a.png", b"data")
    write(inside / "sub/b.png", picture())
    write(inside / os.fsdecode(b"sub/caf\xe9.png"), picture())
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
        "sub/caf\\xe9.png": "file name is not UTF-8; rename the file",
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
    for name in ("pipe.png", "zero.png"):
        assert refusal(source.read, name) == "cannot be read: is not a regular file"
    assert refusal(source.read, "folder.png") == "cannot be read: is a directory"
