import io
import os
import pickle
import re
import signal
import stat
import subprocess
import tarfile
from collections import Counter
from pathlib import Path

import fsspec
import numpy as np
import pytest
from helpers.pictures import encode, mutations, refusal
from helpers.slow import slow
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from pucache.errors import ImageError, SourceError
from pucache.images import listing as limits
from pucache.images.source import MAX_KEY_BYTES, UNKNOWN, open_source, read_local
from pucache.storage import retries

BREAK = "line\r\nbreak.jpg"
ODD_NAMES = ["a b.jpg", BREAK, "émoji 🦊.png", "quo\"te's.jpg", "back\\slash.gif", "UPPER.JPG", "%41*?[x].tif"]


def picture(colour=(10, 20, 30), form="PNG"):
    return encode(Image.new("RGB", (4, 3), colour), form)


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def tar(*members):
    """Bytes of a tar; a member is (name, bytes), or (name, type of a special member)."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.mtime = 1_700_000_000
            if content in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE):
                info.type, info.linkname = content, "a.png"
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    """What fails behind a URL is tried again without a pause."""
    monkeypatch.setattr(retries, "RETRY_PAUSES", [0.0] * len(retries.RETRY_PAUSES))


@pytest.fixture
def memory():
    files = fsspec.filesystem("memory")
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]


@pytest.fixture(params=["local", "memory"])
def place(request, tmp_path, memory):
    """A folder as a source would be named, and a function that puts a file there."""
    if request.param == "local":
        return str(tmp_path), lambda name, data: write(tmp_path / name, data)
    return "memory://root", lambda name, data: memory.pipe(f"/root/{name}", data)


# --- every kind of source ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "source", ["", "list.txt", "list.csv", "one.tar", "shard-*.tar"], ids=["folder", "text", "table", "tar", "shards"]
)
def test_a_source_lists_sorted_keys_and_reads_their_bytes_also_after_pickling(place, source):
    where, put = place
    names = ["z.png", "B/é.png", "B/a b.png", "a/x.jpg", "🦊.webp"]
    content = {name: picture((i, 0, 0)) for i, name in enumerate(names)}
    for name, data in content.items():
        put(name, data)
    put("list.txt", "\n".join(content).encode())
    put("list.csv", "\n".join(["path", *content]).encode())
    put("one.tar", tar(*content.items()))
    put("shard-1.tar", tar(*list(content.items())[:2]))
    put("shard-2.tar", tar(*list(content.items())[2:]))
    if source == "shard-*.tar":
        content = {f"shard-{1 if name in names[:2] else 2}.tar/{name}": data for name, data in content.items()}
    opened = open_source(f"{where}/{source}".rstrip("/"))
    listing = opened.scan()
    assert listing.keys == sorted(content, key=str.encode)
    assert listing.failures == {}
    assert listing.size_mtime.dtype == np.int64 and listing.size_mtime.shape == (5, 2)
    assert listing.size_mtime[:, 0].tolist() == [len(content[key]) for key in listing.keys]
    assert (listing.size_mtime[:, 1] > 1e18).all(), "nanoseconds since 1970"
    for one in (opened, pickle.loads(pickle.dumps(opened)), open_source(opened.name)):
        assert {key: one.read(key) for key in listing.keys} == content


@pytest.mark.parametrize("source", ["", "list.txt", "one.tar"], ids=["folder", "manifest", "tar"])
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
        ("nowhere.csv", "cannot read .*nowhere.csv: No such file or directory"),
        ("nowhere.tar", "cannot read .*nowhere.tar as tar: No such file or directory"),
        ("nowhere-*.tar", "no such source: no shard matches .*nowhere-"),
        ("a.png", "a.png is not a source; expected a folder"),
        ("notes.md", "notes.md is not a source; expected a folder"),
        ("x.tar.gz", "x.tar.gz is a compressed tar.*; decompress it to .tar"),
        ("x.TGZ", "x.TGZ is a compressed tar.*; decompress it to .tar"),
        ("wrong.tar", "cannot read .*wrong.tar as tar: .*header"),
        ("empty.tar", "cannot read .*empty.tar as tar: empty file"),
        ("empty.txt", "empty.txt names no image"),
        ("memory://nowhere", "no such source: memory://nowhere"),
        ("memory://nowhere/x.txt", "cannot read memory://nowhere/x.txt"),
        ("memory://nowhere/x.tar", "cannot read memory://nowhere/x.tar"),
        ("memory://nowhere/*.tar", "no shard matches memory://nowhere"),
        ("memory://root/a.png", "memory://root/a.png is a file; expected a folder"),
        ("nosuch://bucket/images", "cannot read nosuch://bucket/images: Protocol not known: nosuch"),
        ("nosuch://bucket/x.tar", "cannot read nosuch://bucket/x.tar: Protocol not known: nosuch"),
        ("nosuch://bucket/x.csv", "cannot read nosuch://bucket/x.csv: Protocol not known: nosuch"),
    ],
)
def test_what_is_no_source_is_refused_in_one_line(tmp_path, monkeypatch, memory, where, reason):
    for name in ("a.png", "notes.md", "x.tar.gz", "x.TGZ", "wrong.tar"):
        write(tmp_path / name, b"no tar" * 200)
    for name in ("empty.tar", "empty.txt"):
        write(tmp_path / name, b"")
    memory.pipe("/root/a.png", picture())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError, match=reason) as caught:
        open_source(where).scan()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz", "x.csv", "x.txt", "x y [1].é"])
def test_a_folder_is_a_folder_whatever_its_name_ends_in(tmp_path, name):
    write(tmp_path / name / "a.png", picture())
    assert open_source(tmp_path / name).scan().keys == ["a.png"]


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"size": 5, "mtime": 1.5}, [5, 1_500_000_000]),
        ({"size": 5, "mtime": 1e20}, [5, UNKNOWN]),
        ({"size": None}, [UNKNOWN, UNKNOWN]),
        ({}, [UNKNOWN, UNKNOWN]),
    ],
)
def test_a_remote_time_is_in_nanoseconds_and_unknown_when_the_store_tells_none(memory, monkeypatch, info, expected):
    memory.pipe("/root/a.png", picture())
    monkeypatch.setattr(type(memory), "find", lambda self, path, detail: {f"{path}/a.png": info})
    assert open_source("memory://root").scan().size_mtime.tolist() == [expected]


@pytest.mark.parametrize("name", ["ETag", "Last-Modified"])
def test_a_remote_tag_stands_in_for_the_time_and_differs_with_the_content(memory, monkeypatch, name):
    tagged = {f"/root/{i}.png": {"size": 5, name: tag} for i, tag in enumerate("aabcdefgh")}
    monkeypatch.setattr(type(memory), "find", lambda self, path, detail: tagged)
    first, *others = open_source("memory://root").scan().size_mtime[:, 1]
    assert first == others[0] and len(set(others)) == 8 and min(others) >= 0


# --- folders -----------------------------------------------------------------------------------


def test_a_folder_leaves_out_hidden_files_and_counts_other_endings(place):
    where, put = place
    for name in ("a.png", "sub/deep/b.JPEG", ".hidden.png", ".git/c.png", "sub/.d/e.png", "x.md", "sub/y.MD", "README"):
        put(name, picture())
    listing = open_source(where).scan()
    assert listing.keys == ["a.png", "sub/deep/b.JPEG"]
    assert listing.ignored == Counter({".md": 2, "(none)": 1})
    assert listing.failures == {}


def test_an_empty_folder_lists_nothing(tmp_path):
    listing = open_source(tmp_path).scan()
    assert listing.keys == [] and listing.size_mtime.shape == (0, 2)


def test_a_folder_tells_size_and_time_to_the_nanosecond(tmp_path):
    for name, size, time in (("b.png", 7, 1_700_000_000_123_456_789), ("a.png", 0, -5_000_000_000)):
        os.utime(write(tmp_path / name, b"x" * size), ns=(0, time))
    assert open_source(tmp_path).scan().size_mtime.tolist() == [[0, -5_000_000_000], [7, 1_700_000_000_123_456_789]]


def test_any_name_that_is_utf8_is_a_key(tmp_path):
    for name in ODD_NAMES:
        write(tmp_path / "a folder\n" / name, name.encode())
    source = open_source(tmp_path)
    assert source.scan().keys == sorted((f"a folder\n/{name}" for name in ODD_NAMES), key=str.encode)
    assert all(source.read(f"a folder\n/{name}") == name.encode() for name in ODD_NAMES)


def test_a_relative_folder_can_be_read_after_a_change_of_directory(tmp_path, monkeypatch):
    write(tmp_path / "here/a.png", b"data")
    monkeypatch.chdir(tmp_path)
    source = open_source("here/")
    monkeypatch.chdir("/")
    assert [source.read(key) for key in source.scan().keys] == [b"data"]


def test_a_name_that_is_not_utf8_is_a_failure_and_the_rest_is_listed(tmp_path):
    write(tmp_path / "good.png", picture())
    write(Path(os.fsdecode(bytes(tmp_path) + b"/sub/caf\xe9.png")), picture())
    listing = open_source(tmp_path).scan()
    assert listing.keys == ["good.png"]
    assert listing.failures == {"sub/caf\\xe9.png": "file name is not UTF-8; rename the file"}


def test_symbolic_links_are_followed_and_loops_are_failures(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    write(outside / "a.png", b"data")
    write(inside / "sub/b.png", picture())
    for name in ("folder", "again"):
        (inside / name).symlink_to(outside)
    for name in ("gone.png", "gone.md"):
        (inside / name).symlink_to("nowhere")
    (inside / "file.png").symlink_to(outside / "a.png")
    (inside / "self.png").symlink_to("self.png")
    (inside / "sub/up").symlink_to(inside)
    source = open_source(inside)
    listing = source.scan()
    assert listing.keys == ["again/a.png", "file.png", "folder/a.png", "sub/b.png"]
    assert source.read("file.png") == source.read("folder/a.png") == b"data"
    assert listing.size_mtime[1].tolist() == [4, (outside / "a.png").stat().st_mtime_ns]
    assert listing.failures == {
        "gone.png": "cannot be read: No such file or directory",
        "self.png": "cannot be read: Too many levels of symbolic links",
        "sub/up/": "symbolic link back to a folder above it",
    }


def test_a_directory_without_permission_is_a_failure_and_the_root_an_error(tmp_path, monkeypatch):
    write(tmp_path / "a.png", picture())
    write(tmp_path / "closed/b.png", picture())
    forbidden = {str(tmp_path / "closed")}

    def scandir(path, real=os.scandir):  # the tests may run as root, whom no permission stops
        if path in forbidden:
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    listing = open_source(tmp_path).scan()
    assert listing.keys == ["a.png"]
    assert listing.failures == {"closed/": "directory cannot be listed: Permission denied"}
    forbidden.add(str(tmp_path))
    with pytest.raises(SourceError, match=f"cannot list {re.escape(str(tmp_path))}: Permission denied"):
        open_source(tmp_path).scan()


def test_special_files_are_refused_without_waiting_for_them(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    source = open_source(tmp_path)
    assert source.scan().keys == ["pipe.png", "zero.png"]
    previous = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("blocked on a named pipe"))
    signal.alarm(5)
    try:
        assert [refusal(source.read, name) for name in ("pipe.png", "folder.png", "zero.png")] == [
            "not a regular file"
        ] * 3
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


@pytest.mark.parametrize("source", ["", "list.txt", "one.tar"], ids=["folder", "manifest", "tar"])
def test_a_huge_file_is_refused_by_its_size_alone(place, monkeypatch, source):
    where, put = place
    put("a.png", bytes(1234))
    put("list.txt", b"a.png")
    put("one.tar", tar(("a.png", bytes(1234))))
    monkeypatch.setattr(limits, "MAX_BYTES", 1000)
    assert refusal(open_source(f"{where}/{source}").read, "a.png") == "file of 1,234 bytes; at most 1,000 are read"


# --- manifests ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("m.txt", "b.png\na.png\n"),
        ("m.LST", "\ufeffb.png\r\n\r\n  \r\na.png"),
        ("m.csv", "path\nb.png\na.png\n"),
        ("m.csv", '\ufefflabel,image\r\n1,"b.png"\r\n,,\r\n0,a.png\r\n'),
        ("m.tsv", "filename\tnote\nb.png\tx,y\na.png\t\n"),
        ("m.csv", "key\nb.png\na.png\n"),
        ("m.csv", "key,path\n,b.png\na.png,a.png\n"),
    ],
)
def test_a_manifest_names_images_by_a_line_or_a_column(tmp_path, name, text):
    for image in ("a.png", "b.png", "unnamed.png"):
        write(tmp_path / image, image.encode())
    source = open_source(write(tmp_path / name, text.encode()))
    assert source.scan().keys == ["a.png", "b.png"]
    assert [source.read(key) for key in ("a.png", "b.png")] == [b"a.png", b"b.png"]


def test_paths_are_relative_to_the_manifest_absolute_or_urls(tmp_path, memory):
    memory.pipe("/far/c.png", b"far")
    absolute = write(tmp_path / "elsewhere/b.png", b"absolute")
    write(tmp_path / "lists/sub/a.png", b"below")
    write(tmp_path / "up.png", b"above")
    lines = {"sub/a.png": b"below", "../up.png": b"above", str(absolute): b"absolute", "memory://far/c.png": b"far"}
    source = open_source(write(tmp_path / "lists/m.txt", "\n".join(lines).encode()))
    assert {key: source.read(key) for key in source.scan().keys} == lines


def test_a_key_column_names_the_images(tmp_path):
    write(tmp_path / "a.png", b"data")
    source = open_source(write(tmp_path / "m.csv", b'key,path\n"two, words",a.png\nlion,a.png\n'))
    assert source.scan().keys == ["lion", "two, words"]
    assert source.read("two, words") == b"data"


def test_a_url_with_a_password_may_stand_beside_a_key(tmp_path):
    manifest = write(tmp_path / "m.csv", b"key,path\na.png,nosuch://user:hunter2@host/a.png\n")
    listing = open_source(manifest).scan()
    assert listing.failures == {"a.png": "cannot be read: Protocol not known: nosuch"}


@pytest.mark.parametrize("ending", ["txt", "csv"])
def test_a_manifest_can_name_any_path(tmp_path, ending):
    names = [*ODD_NAMES, "next\u2028line.png", "form\x0cfeed.png", "no ending"]
    if ending == "txt":
        names.remove(BREAK)
    for name in names:
        write(tmp_path / name, name.encode())
    lines = names if ending == "txt" else ["path", *('"' + name.replace('"', '""') + '"' for name in names)]
    source = open_source(write(tmp_path / f"m.{ending}", "\n".join(lines).encode()))
    listing = source.scan()
    assert listing.failures == {}
    assert listing.keys == sorted(names, key=str.encode)
    assert all(source.read(key) == key.encode() for key in listing.keys)


def test_missing_images_of_a_manifest_are_failures(tmp_path, memory):
    write(tmp_path / "a.png", picture())
    text = "a.png\nb.png\nc\0.png\nmemory://no/d.png\nnosuch://e.png\n" + "f" * 5000 + "\n"
    listing = open_source(write(tmp_path / "m.txt", text.encode())).scan()
    assert listing.keys == ["a.png"]
    assert listing.failures.pop("b.png") == "cannot be read: No such file or directory"
    assert listing.failures.pop("f" * MAX_KEY_BYTES) == "cannot be read: File name too long"
    assert set(listing.failures) == {"c\\x00.png", "memory://no/d.png", "nosuch://e.png"}
    assert all(reason.startswith("cannot be read: ") for reason in listing.failures.values())


def test_a_key_that_a_cache_cannot_keep_is_a_failure(tmp_path):
    write(tmp_path / "a.png", picture())
    text = f"key,path\n{'é' * 2048},a.png\n{'é' * 2048}x,a.png\nnul\0,a.png\n"
    listing = open_source(write(tmp_path / "m.csv", text.encode())).scan()
    assert listing.keys == ["é" * 2048]
    assert listing.failures == {
        "nul\\x00": "key contains a NUL character",
        "é" * 2048: "key of 4097 bytes; at most 4096 are kept",
    }


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("m.txt", b"a.png\nb.png\na.png\n", "names 'a.png' twice; keys must be unique"),
        ("m.csv", b"key,path\nk,a.png\nk,b.png\n", "names 'k' twice; keys must be unique"),
        ("m.txt", b"sftp://u:pw@h/a.png\n", "names sftp://h/a.png with its password, which .*; add a 'key' column"),
        (
            "m.csv",
            b"key,path\n,ftp://u:pw@h/a.png\n",
            "names ftp://h/a.png with its password, which a key must not hold",
        ),
        ("m.csv", b"picture,label\na.png,1\n", "has columns picture, label; expected one called 'path'"),
        ("m.tsv", b"path,label\na.png,1\n", "has columns path,label; expected one called 'path'"),
        ("m.csv", b"", r"has columns \(none\); expected one called 'path'"),
        ("m.csv", b"path\n", "names no image"),
        ("m.txt", b"\n  \n", "names no image"),
        ("m.txt", "é.png".encode("latin-1"), r"is not UTF-8 text \(byte 0\); save it as UTF-8"),
        ("m.csv", "path\na.png".encode("utf-16"), r"is not UTF-8 text \(byte 0\); save it as UTF-8"),
        ("m.csv", b'path\n"a.png', "line 2: unexpected end of data"),
        ("m.csv", b'"path\na.png', "line 2: unexpected end of data"),
        ("m.csv", b'path\n"a"b.png\n', "line 2: ',' expected after '\"'"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(place, name, data, reason):
    where, put = place
    put(name, data)
    with pytest.raises(SourceError, match=f"{name} {reason}"):
        open_source(f"{where}/{name}").scan()


# --- tar shards --------------------------------------------------------------------------------


def test_of_tar_members_with_one_name_the_last_counts(tmp_path):
    link = tarfile.SYMTYPE
    first = [("a.png", b"old"), ("b.png", link), ("c.png", b"old")]
    later = [("./a.png", b"new"), ("b.png", b"new"), ("c.png", link)]
    source = open_source(write(tmp_path / "x.tar", tar(*first, *later)))
    listing = source.scan()
    assert {key: source.read(key) for key in listing.keys} == {"a.png": b"new", "b.png": b"new"}
    assert list(listing.failures) == ["c.png"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_and_special_members_are_failures(tmp_path, kind):
    members = [("a.png", b"data"), ("folder.png", tarfile.DIRTYPE), ("link.png", kind), ("link.md", kind)]
    listing = open_source(write(tmp_path / "x.tar", tar(*members))).scan()
    assert listing.keys == ["a.png"]
    assert listing.failures == {"link.png": "a link or special file inside a tar; only plain members are read"}
    assert listing.ignored == Counter({".md": 1})


def test_hidden_members_are_left_out_and_names_that_climb_are_only_names(tmp_path):
    names = ["./a.png", "../up.png", "/etc/passwd.png", "._a.png", ".git/b.png", "sub/.c.png", "sub/../d.png"]
    source = open_source(write(tmp_path / "in/x.tar", tar(*((name, name.encode()) for name in names))))
    assert {key: source.read(key) for key in source.scan().keys} == {
        name.removeprefix("./"): name.encode() for name in ("./a.png", "../up.png", "/etc/passwd.png", "sub/../d.png")
    }
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "in", tmp_path / "in/x.tar"]


def test_long_and_odd_member_names_are_keys(tmp_path):
    names = sorted([*ODD_NAMES, "deep/" * 60 + "a.png"], key=str.encode)
    source = open_source(write(tmp_path / "x [1].tar", tar(*((name, name.encode()) for name in names))))
    assert source.scan().keys == names
    assert [source.read(name) for name in names] == [name.encode() for name in names]


def test_a_member_name_that_is_not_utf8_is_a_failure(tmp_path):
    data = tar(("caf\udce9.png", b"data"))
    listing = open_source(write(tmp_path / "x.tar", data)).scan()
    assert (listing.keys, list(listing.failures)) == ([], ["caf\\xe9.png"])


@pytest.mark.parametrize(("mtime", "expected"), [("1.5", 1_500_000_000), ("1" + "0" * 30, UNKNOWN)])
def test_a_member_tells_its_time_in_nanoseconds_where_that_fits(tmp_path, mtime, expected):
    info = tarfile.TarInfo("a.png")
    info.pax_headers = {"mtime": mtime}
    data = info.tobuf(tarfile.PAX_FORMAT) + bytes(1024)
    assert open_source(write(tmp_path / "x.tar", data)).scan().size_mtime.tolist() == [[0, expected]]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("shards/*/[12].tar", ["a/1.tar", "a/2.tar", "b/1.tar"]),
        ("shards/[ab]/1.tar", ["a/1.tar", "b/1.tar"]),
        ("shards/a/?.tar", ["1.tar", "2.tar"]),
    ],
)
def test_shards_are_keyed_by_their_place_below_the_fixed_part_of_the_glob(place, pattern, names):
    where, put = place
    for name in ("a/1.tar", "a/2.tar", "b/1.tar", "b/skip.txt"):
        put(f"shards/{name}", tar(("x.png", name.encode())))
    source = open_source(f"{where}/{pattern}")
    read = {key: source.read(key).decode() for key in source.scan().keys}
    assert list(read) == [f"{name}/x.png" for name in names]
    assert all(content.endswith(name) for content, name in zip(read.values(), names, strict=True))


WHOLE = tar(*((f"{i}.png", bytes([65 + i]) * 600) for i in range(3)))  # members at 0, 1536 and 3072


@pytest.mark.parametrize("source", ["damaged.tar", "*.tar"])
@pytest.mark.parametrize(
    ("damaged", "whole"),
    [
        (WHOLE[:3600], ["0.png", "1.png"]),
        (WHOLE[:3300], ["0.png", "1.png"]),
        (WHOLE[:3072] + b"x" * 512 + WHOLE[3584:], ["0.png", "1.png"]),
        (WHOLE[:1546] + b"x" + WHOLE[1547:], ["0.png"]),
    ],
    ids=["cut in data", "cut in header", "header overwritten", "header flipped"],
)
def test_a_damaged_shard_is_a_failure_beside_its_whole_members(tmp_path, source, damaged, whole):
    write(tmp_path / "damaged.tar", damaged)
    if source == "*.tar":
        write(tmp_path / "good.tar", WHOLE)
        write(tmp_path / "zero.tar", b"")
    opened = open_source(tmp_path / source)
    listing = opened.scan()
    prefix = "damaged.tar/" if source == "*.tar" else ""
    readable = [key for key in listing.keys if not key.startswith(("good", prefix + "2"))]
    assert readable == [prefix + key for key in whole]
    assert all(set(opened.read(key)) == {65 + int(key[-5])} for key in readable)
    for key in set(listing.keys) & {prefix + "2.png"}:
        assert re.match("truncated tar member: expected 600 bytes, got", refusal(opened.read, key))
    assert {os.path.basename(key) for key in listing.failures} == {"damaged.tar"} | ({"zero.tar"} if prefix else set())
    assert all(reason.startswith("tar shard is damaged or truncated: ") for reason in listing.failures.values())


@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("m.tar", WHOLE),
        ("m.txt", b"a.png\r\nb.png\nsub/c.png"),
        ("m.csv", b'key,path,label\r\n1,"a.png",x\n"",b.png,y\n'),
        ("m.tsv", b"label\tpath\nx\ta.png\ny\tb.png\n"),
    ],
)
def test_a_mutated_source_is_listed_or_refused_and_nothing_else(tmp_path, name, whole, data):
    source = open_source(write(tmp_path / name, data.draw(mutations(whole))))
    try:
        listing = source.scan()
    except SourceError:
        return
    for key in listing.keys:
        try:
            assert isinstance(source.read(key), bytes)
        except ImageError as error:
            assert str(error)


# --- as deep and as long as a file system allows ------------------------------------------------


@pytest.fixture
def nested(tmp_path, monkeypatch):
    """Make folders one in the other in steps, as a path may be too long to name; gives the outermost."""
    root = tmp_path / "nested"
    root.mkdir()

    def make(names, images):
        monkeypatch.chdir(root)
        for depth, name in enumerate([*names, None]):
            if depth in images:
                Path("x.png").write_bytes(b"%d" % depth)
            if name is not None:
                os.mkdir(name)
                os.chdir(name)
        os.chdir(root)
        return root

    yield make
    subprocess.run(["rm", "-rf", root], check=True)  # Python's own removal recurses


@pytest.mark.parametrize("levels", [1300, slow(2300)])
@pytest.mark.slow
def test_the_depth_of_a_folder_has_no_limit_but_that_of_a_path(nested, levels):
    depths = range(0, levels + 1, 100)
    source = open_source(nested(["d"] * levels, depths))
    listing = source.scan()
    within = [depth for depth in depths if len(f"{source.name}/{'d/' * depth}x.png") < 4096]
    assert sorted(listing.keys) == sorted("d/" * depth + "x.png" for depth in within)
    assert [source.read("d/" * depth + "x.png") for depth in within] == [b"%d" % depth for depth in within]
    assert all("File name too long" in reason for reason in listing.failures.values())
    assert len(listing.failures) == (len(within) < len(depths))
    assert not listing.ignored


def test_a_key_may_be_as_long_as_a_path(nested, tmp_path):
    room = 4095 - len(f"{tmp_path}/nested/") - len("x.png")
    names = ["n" * 255] * (room // 256)
    names += ["m" * (room % 256 - 1)] if room % 256 > 1 else []
    source = open_source(nested(names, {len(names)}))
    key = "/".join([*names, "x.png"])
    listing = source.scan()
    assert (listing.keys, listing.failures) == ([key], {})
    assert len(key) > 3800 and source.read(key) == b"%d" % len(names)


def test_names_of_any_kind_and_of_255_bytes_are_keys(tmp_path):
    names = ["a b.png", "new\nline.png", "tab\t.png", "'\"`.png", "-rf.png", " .png", "n" * 251 + ".png"]
    names += ["é" * 125 + "x.png", "$(x);&|.png", "x\x7f\x1b[31m.png"]
    for name in names:
        write(tmp_path / name, name.encode())
    source = open_source(tmp_path)
    listing = source.scan()
    assert (listing.keys, listing.failures) == (sorted(names, key=str.encode), {})
    assert all(source.read(name) == name.encode() for name in names)


@pytest.mark.parametrize("told", [0, 1, 5, 9999, 10_000, 20_000])
def test_all_bytes_of_a_file_are_read_whatever_size_was_told(tmp_path, monkeypatch, told):
    data = bytes(range(250)) * 40
    path = write(tmp_path / "a.png", data)
    real = os.fstat

    def fstat(file):
        info = list(real(file))
        info[stat.ST_SIZE] = told
        return os.stat_result(info)

    monkeypatch.setattr(os, "fstat", fstat)
    assert read_local(path) == data


def test_a_file_that_grows_beyond_the_limit_while_it_is_read_is_refused(tmp_path, monkeypatch):
    path = write(tmp_path / "a.png", bytes(5000))
    info = list(os.stat(path))
    info[stat.ST_SIZE] = 10
    monkeypatch.setattr(os, "fstat", lambda file: os.stat_result(info))
    monkeypatch.setattr(limits, "MAX_BYTES", 1000)
    assert re.fullmatch(r"file of [\d,]+ bytes; at most 1,000 are read", refusal(read_local, path))
