"""Shards by ranges in braces, and the labels beside the images in them."""

import json

import pytest
from helpers.sources import archive, tar

from pucache import open_source
from pucache.errors import SourceError
from pucache.images.shards import expand_braces

SAMPLES = {"0001.jpg": b"i", "0001.cls": b"3\n", "0001.json": json.dumps({"label": "car", "a": {"b": [1]}}).encode()}
SAMPLES |= {
    "d/0002.left.png": b"i",
    "d/0002.cls": b"\xef\xbb\xbf4",
    "d/0002.json": b'{"label": null}',
    "0003.png": b"i",
}


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "zip"])
@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("cls", {"0001.jpg": "3", "d/0002.left.png": "4", "0003.png": ""}),
        (".cls", {"0001.jpg": "3", "d/0002.left.png": "4", "0003.png": ""}),
        ("json.label", {"0001.jpg": "car", "d/0002.left.png": "", "0003.png": ""}),
        ("json.a.b", {"0001.jpg": "[1]", "d/0002.left.png": "", "0003.png": ""}),
    ],
)
def test_labels_are_members_beside_the_image(place, tmp_path_factory, kind, column, expected):
    folder, put = place
    put(f"x.{kind}", archive(tmp_path_factory.mktemp("made") / f"x.{kind}", SAMPLES).read_bytes())
    source = open_source(f"{folder}/x.{kind}")
    assert dict(source.labels(column)) == expected


def test_a_shard_without_such_labels_or_with_damaged_ones_is_refused(tmp_path):
    (tmp_path / "x.tar").write_bytes(tar(("a.png", b"i"), ("a.json", b"{"), ("b.png", b"i")))
    source = open_source(tmp_path / "x.tar")
    with pytest.raises(SourceError, match=r"holds no \.cls beside an image, such as 'a\.png'"):
        list(source.labels("cls"))
    with pytest.raises(SourceError, match=r"cannot read the labels in .*x\.tar"):
        list(source.labels("json.label"))


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "zip"])
def test_ranges_in_braces_name_shards_and_those_that_are_missing(place, tmp_path_factory, kind):
    folder, put = place
    for number in (0, 1, 3, 4):
        put(f"sh/{number:03}.{kind}", archive(tmp_path_factory.mktemp("made") / f"x.{kind}", SAMPLES).read_bytes())
    source = open_source(f"{folder}/sh/{{000..003}}.{kind}")
    listing = source.scan()
    assert listing.keys == sorted(f"{n:03}.{kind}/{key}" for n in (0, 1, 3) for key in SAMPLES if key[-1] == "g")
    (missing,) = listing.failures.items()
    assert missing[0] == f"002.{kind}/" and "cannot be read: " in missing[1]
    assert source.read(f"003.{kind}/0003.png") == b"i"
    assert dict(source.labels("cls"))[f"001.{kind}/0001.jpg"] == "3"


def test_braces_and_wildcards_go_together_and_a_file_of_that_very_name_wins(place):
    folder, put = place
    for name in ("train/1.tar", "test/2.tar", "other/3.tar"):
        put(f"{name}", tar(("a.png", b"i")))
    assert open_source(f"{folder}/{{train,test}}/*.tar").scan().keys == ["test/2.tar/a.png", "train/1.tar/a.png"]
    put("{1..2}.tar", tar(("b.png", b"i")))
    assert open_source(f"{folder}/{{1..2}}.tar").scan().keys == ["b.png"]


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("a/{00..02}.tar", ["a/00.tar", "a/01.tar", "a/02.tar"]),
        ("{8..11}.tar", ["8.tar", "9.tar", "10.tar", "11.tar"]),
        ("{0..1}", ["0", "1"]),
        ("{08..10}", ["08", "09", "10"]),
        ("{2..0}", ["2", "1", "0"]),
        ("{train,test}/{0..1}.zip", ["train/0.zip", "train/1.zip", "test/0.zip", "test/1.zip"]),
        ("a{,-b}.tar", ["a.tar", "a-b.tar"]),
        *((text, [text]) for text in ("a.tar", "{a}.tar", "{}.tar", "{0..}.tar", "{a..c}.tar", "a{b/c,d}.tar")),
    ],
)
def test_braces_stand_for_paths(pattern, paths):
    assert expand_braces(pattern) == paths


@pytest.mark.parametrize("pattern", ["{0..99999999999999}.tar", "{0..9999}/{0..9999}.tar"])
def test_too_many_files_are_refused_before_they_are_listed(pattern):
    with pytest.raises(ValueError, match="stands for more than 1,000,000 files"):
        expand_braces(pattern)
