import gzip
import os
import struct
import tarfile
import zlib
from collections import Counter

import pytest
from helpers.pictures import refusal
from helpers.refusals import one_line
from helpers.sources import tar, write

from pucache import open_source
from pucache.errors import SourceError
from pucache.images.listing import UNKNOWN

WHOLE = tar(*((f"{i}.png", bytes([65 + i]) * 600) for i in range(3)))  # members at 0, 1536 and 3072


def test_of_tar_members_with_one_name_the_last_counts_and_a_line_says_so(tmp_path, caplog):
    link = tarfile.SYMTYPE
    first = [("a.png", b"old"), ("b.png", link), ("c.png", b"old")]
    later = [("./a.png", b"new"), ("b.png", b"new"), ("c.png", link)]
    source = open_source(write(tmp_path / "x.tar", tar(*first, *later)))
    listing = source.scan()
    assert {key: source.read(key) for key in listing.keys} == {"a.png": b"new", "b.png": b"new"}
    assert list(listing.failures) == ["c.png"]
    assert "x.tar: names of several images: 3, such as 'a.png'" in caplog.text


def test_what_is_no_plain_member_with_a_name_in_utf8_is_a_failure(tmp_path):
    special = {"soft.png": tarfile.SYMTYPE, "hard.png": tarfile.LNKTYPE, "pipe.png": tarfile.FIFOTYPE}
    members = [("a.png", b"data"), ("caf\udce9.png", b"data"), ("folder.png", tarfile.DIRTYPE), *special.items()]
    listing = open_source(write(tmp_path / "x.tar", tar(*members, ("link.md", tarfile.SYMTYPE)))).scan()
    assert (listing.keys, listing.ignored) == (["a.png"], Counter({".md": 1}))
    assert listing.failures == {
        "caf\\xe9.png": "file name is not UTF-8; rename the file",
        **dict.fromkeys(special, "a link or special file inside a tar; only plain members are read"),
    }


def test_a_tar_named_as_compressed_is_read_as_what_it_is(tmp_path):
    for name, data in (("x.tar.gz", WHOLE), ("x.tar.bz2", gzip.compress(WHOLE))):
        source = open_source(write(tmp_path / name, data))
        assert source.scan().keys == ["0.png", "1.png", "2.png"] and source.read("1.png") == b"B" * 600


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


DAMAGED = {  # shards, and the members of each that are whole
    "cut.tar": (WHOLE[:3300], ["0.png", "1.png"]),
    "cut-in-data.tar": (WHOLE[:3600], ["0.png", "1.png"]),
    "flipped.tar": (WHOLE[:1546] + b"x" + WHOLE[1547:], ["0.png"]),
    "overwritten.tar": (WHOLE[:3072] + b"x" * 512 + WHOLE[3584:], ["0.png", "1.png"]),
    "zero.tar": (b"", []),
}


def test_a_damaged_shard_is_a_failure_beside_its_whole_members_and_other_shards(tmp_path):
    os.mkfifo(tmp_path / "pipe.tar")
    for name, (data, _) in {**DAMAGED, "good.tar": (WHOLE, [])}.items():
        write(tmp_path / name, data)
    source = open_source(tmp_path / "*.tar")
    listing = source.scan()
    read = {key for key in listing.keys if key != "cut-in-data.tar/2.png"}
    expected = {f"{name}/{key}" for name, (_, whole) in DAMAGED.items() for key in whole}
    assert read == expected | {f"good.tar/{number}.png" for number in range(3)}
    assert all(set(source.read(key)) == {65 + int(key[-5])} for key in read)
    for key in set(listing.keys) - read:
        assert refusal(source.read, key).startswith("truncated tar member: expected 600 bytes, got")
    assert listing.failures.pop("pipe.tar/") == "tar shard cannot be read: not a regular file"
    assert listing.failures.keys() == DAMAGED.keys()
    assert all(reason.startswith("tar shard is damaged or truncated: ") for reason in listing.failures.values())


# --- zip names ------------------------------------------------------------------------------------

FAT, UNIX, NTFS = 0, 3, 10


def member(name, *, system=FAT, utf8=False, extra=b""):
    """Bytes of a local entry and of its entry in the directory, without the offset; `name` is bytes."""
    flags, data = utf8 << 11, b"data of " + name
    common = struct.pack("<HHHHHLLL", 20, flags, 0, 0, 33, zlib.crc32(data), len(data), len(data))
    local = b"PK\3\4" + common + struct.pack("<HH", len(name), 0) + name + data
    central = b"PK\1\2" + bytes([20, system]) + common
    central += struct.pack("<HHHHHL", len(name), len(extra), 0, 0, 0, 0)
    return local, central, name + extra


def archive(path, *members):
    """A ZIP as any program may have written it."""
    content, directory = b"", b""
    for local, central, tail in members:
        directory += central + struct.pack("<L", len(content)) + tail
        content += local
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, len(members), len(members), len(directory), len(content), 0)
    return write(path, content + directory + end)


def keys(where):
    source = open_source(where)
    listing = source.scan()
    assert all(source.read(key).startswith(b"data of ") for key in listing.keys)
    return listing.keys, listing.failures


def unicode_path(raw, text):
    """The extra field of Info-ZIP for the name of these bytes."""
    field = struct.pack("<BL", 1, zlib.crc32(raw)) + text.encode()
    return struct.pack("<HHL", 0x5455, 4, 0) + struct.pack("<HH", 0x7075, len(field)) + field


def of(system, *names):
    return [member(name, system=system) for name in names]


ZIPS = {  # members, and the keys of them
    "folders of DOS": (of(FAT, b"p\\", b"p\\car\\1.png", b"p\\car/2.png"), ["p/car/1.png", "p/car/2.png"]),
    "folders of Windows": (of(NTFS, b"p\\car\\1.png", b"2.png"), ["2.png", "p/car/1.png"]),
    "a backslash of Unix": (of(UNIX, b"a\\b.png", b"c/d.png"), ["a\\b.png", "c/d.png"]),
    "one in every name": (of(UNIX, b"p\\car\\1.png", b"p\\2.png"), ["p/2.png", "p/car/1.png"]),
    "marked as UTF-8": ([member("写真.png".encode(), utf8=True)], ["写真.png"]),
    "Info-ZIP's field, of this name and of another": (
        [
            member(b"\x8e\xca.png", extra=unicode_path(b"\x8e\xca.png", "写.png")),
            member(b"caf\x82.png", extra=unicode_path(b"other", "wrong.png")),
        ],
        ["caf\xe9.png", "写.png"],
    ),
    "files of a Mac": (
        of(UNIX, b"a/1.png", b"__MACOSX/a/._1.png", b"a/.DS_Store", b"../3.png"),
        ["../3.png", "a/1.png"],
    ),
}


@pytest.mark.parametrize(("members", "expected"), ZIPS.values(), ids=ZIPS)
def test_names_in_a_zip_are_those_that_its_program_meant(tmp_path, members, expected):
    assert keys(archive(tmp_path / "x.zip", *members)) == (expected, {})


@pytest.mark.parametrize(("encoding", "is_said"), [("cp437", True), ("utf-8", False)])
def test_names_that_do_not_tell_their_encoding_have_that_of_the_standard_and_a_line_says_so(
    tmp_path, caplog, encoding, is_said
):
    where = archive(tmp_path / "x.zip", member("caf\xe9/\xfcber.png".encode(encoding)), member(b"plain.png"))
    assert keys(where)[0] == ["caf\xe9/\xfcber.png", "plain.png"]
    assert ("read as cp437" in caplog.text and f"{where}#encoding=NAME" in caplog.text) == is_said


def test_names_that_are_wrongly_marked_are_refused(tmp_path):
    where = archive(tmp_path / "x.zip", member(b"caf\x82.png", utf8=True))
    assert (
        one_line(SourceError, keys, where) == f"{where} has names that are marked as UTF-8 and are not; pack it again"
    )


def test_a_named_encoding_is_part_of_the_name_of_the_source(tmp_path):
    where = archive(tmp_path / "x.zip", member("照片.png".encode("gbk")), member(b"\xff\xff.png"))
    source = open_source(f"{where}#encoding=GBK")
    assert source.name == f"{where}#encoding=gbk"
    found, failures = keys(source.name)
    assert found == ["照片.png"] and list(failures.values()) == ["file name is not UTF-8; rename the file"]
    with pytest.raises(ValueError, match="unknown encoding 'nonsense'"):
        open_source(f"{where}#encoding=nonsense")


def test_latin_names_in_a_tar_are_read_by_their_encoding(tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as shard:
        shard.addfile(tarfile.TarInfo("caf\xe9.png"))
    assert list(open_source(tmp_path / "x.tar").scan().failures) == ["caf\\xe9.png"]
    assert open_source(f"{tmp_path}/x.tar#encoding=latin-1").scan().keys == ["caf\xe9.png"]
