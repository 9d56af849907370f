import os
import tarfile
from collections import Counter

import pytest
from helpers.pictures import refusal
from helpers.sources import tar, write

from pucache import open_source
from pucache.images.listing import UNKNOWN

WHOLE = tar(*((f"{i}.png", bytes([65 + i]) * 600) for i in range(3)))  # members at 0, 1536 and 3072


def test_of_tar_members_with_one_name_the_last_counts(tmp_path):
    link = tarfile.SYMTYPE
    first = [("a.png", b"old"), ("b.png", link), ("c.png", b"old")]
    later = [("./a.png", b"new"), ("b.png", b"new"), ("c.png", link)]
    source = open_source(write(tmp_path / "x.tar", tar(*first, *later)))
    listing = source.scan()
    assert {key: source.read(key) for key in listing.keys} == {"a.png": b"new", "b.png": b"new"}
    assert list(listing.failures) == ["c.png"]


def test_what_is_no_plain_member_with_a_name_in_utf8_is_a_failure(tmp_path):
    special = {"soft.png": tarfile.SYMTYPE, "hard.png": tarfile.LNKTYPE, "pipe.png": tarfile.FIFOTYPE}
    members = [("a.png", b"data"), ("caf\udce9.png", b"data"), ("folder.png", tarfile.DIRTYPE), *special.items()]
    listing = open_source(write(tmp_path / "x.tar", tar(*members, ("link.md", tarfile.SYMTYPE)))).scan()
    assert (listing.keys, listing.ignored) == (["a.png"], Counter({".md": 1}))
    assert listing.failures == {
        "caf\\xe9.png": "file name is not UTF-8; rename the file",
        **dict.fromkeys(special, "a link or special file inside a tar; only plain members are read"),
    }


def test_hidden_members_are_left_out_and_names_that_climb_are_only_names(tmp_path):
    names = ["./a.png", "../up.png", "/etc/passwd.png", "._a.png", ".git/b.png", "sub/.c.png", "sub/../d.png"]
    source = open_source(write(tmp_path / "in/x.tar", tar(*((name, name.encode()) for name in names))))
    assert {key: source.read(key) for key in source.scan().keys} == {
        name.removeprefix("./"): name.encode() for name in ("./a.png", "../up.png", "/etc/passwd.png", "sub/../d.png")
    }
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "in", tmp_path / "in/x.tar"]


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
def test_a_damaged_shard_is_a_failure_beside_its_whole_members_and_other_shards(tmp_path, damaged, whole):
    write(tmp_path / "damaged.tar", damaged)
    alone = open_source(tmp_path / "damaged.tar").scan()
    assert len(alone.failures) == 1 and [key for key in alone.keys if key != "2.png"] == whole
    write(tmp_path / "good.tar", WHOLE)
    write(tmp_path / "zero.tar", b"")
    os.mkfifo(tmp_path / "pipe.tar")
    source = open_source(tmp_path / "*.tar")
    listing = source.scan()
    cut = {"damaged.tar/2.png"} & set(listing.keys)
    assert [key for key in listing.keys if key not in cut] == [
        *(f"damaged.tar/{key}" for key in whole),
        *(f"good.tar/{number}.png" for number in range(3)),
    ]
    assert all(set(source.read(key)) == {65 + int(key[-5])} for key in set(listing.keys) - cut)
    assert all(refusal(source.read, key).startswith("truncated tar member: expected 600 bytes, got") for key in cut)
    assert listing.failures.pop("pipe.tar/") == "tar shard cannot be read: not a regular file"
    assert set(listing.failures) == {"damaged.tar", "zero.tar"}
    assert all(reason.startswith("tar shard is damaged or truncated: ") for reason in listing.failures.values())
