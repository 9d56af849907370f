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


@pytest.mark.parametrize("source", SOURCES)
def test_a_source_lists_sorted_keys_and_reads_their_bytes_also_after_pickling(place, tmp_path_factory, source):
    where, put = place
    names = ["z.png", "B/é.png", "B/a b.png", "a/x.jpg", "🦊.webp"]
    content = {name: picture((i, 0, 0)) for i, name in enumerate(names)}
    if source in SOURCES[:3]:
        for name, data in content.items():
            put(name, data)
        put("list.txt", "\n".join(content).encode())
        put("list.csv", "\n".join(["path", *content]).encode())
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
        ("nowhere", "no such source: .*nowhere; expected a folder, a manifest"),
        ("nowhere.txt", "cannot read .*nowhere.txt: No such file or directory"),
        ("nowhere.tar", "cannot read .*nowhere.tar as tar: No such file or directory"),
        ("nowhere-*.tar", "no such source: no shard matches .*nowhere-"),
        ("a.png", "a.png is not a source; expected a folder"),
        ("pipe.txt", "pipe.txt is not a regular file; expected a folder, a manifest"),
        ("/dev/null", "/dev/null is not a regular file; expected a folder, a manifest"),
        ("notes.md", "notes.md is not a source; expected a folder"),
        ("x.tar.gz", "cannot read .*x.tar.gz as tar: Not a gzipped file"),
        ("x.zip", "cannot read .*x.zip as ZIP: File is not a zip file"),
        ("x.parquet", "cannot read .*x.parquet as Parquet: .*not a parquet file"),
        ("nowhere.parquet", "cannot read .*nowhere.parquet.*: No such file or directory"),
        ("pipe.parquet", "pipe.parquet is not a regular file; expected a folder"),
        ("wrong.tar", "cannot read .*wrong.tar as tar: .*header"),
        ("empty.tar", "cannot read .*empty.tar as tar: empty file"),
        ("memory://root/a.png", "memory://root/a.png is a file; expected a folder"),
        ("nosuch://user:hunter2@bucket/images", "cannot read nosuch://bucket/images: Protocol not known: nosuch"),
    ],
)
def test_what_is_no_source_is_refused_in_one_line(tmp_path, monkeypatch, memory, where, reason):
    for name in ("a.png", "notes.md", "x.tar.gz", "wrong.tar", "x.zip", "x.parquet"):
        write(tmp_path / name, b"no tar" * 200)
    (tmp_path / "empty.tar").touch()
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
