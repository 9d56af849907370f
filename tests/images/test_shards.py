"""ZIP archives, compressed tars and Parquet files as the tools of users write them."""

import json
import os
import random
import re
import stat
import zipfile

import numpy as np
import pyarrow
import pytest
from helpers.embedding_runs import picture, run, work
from helpers.pictures import encode, refusal
from helpers.refusals import one_line
from helpers.sources import archive, tar, write
from PIL import Image
from pyarrow import parquet

from pucache import EmbeddingCache, open_source
from pucache.errors import SourceError
from pucache.images.listing import take_shard, take_shards
from pucache.images.shards import expand_braces
from pucache.pages.thumbnails import RowImages

ARROW = int(pyarrow.__version__.split(".")[0])

IMAGES = {f"{name}.ppm": picture(number) for number, name in enumerate(("b/é", "a", "b/c d", "🦊"))}
HF = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])


def table(path, images, *, rows=None, kind=HF, **columns):
    """A Parquet file of images by path, with row groups of `rows`."""
    structs = [{"bytes": data, "path": name} for name, data in images]
    column = pyarrow.array(structs if kind == HF else [data for _, data in images], kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table({"image": column, **columns}), path, row_group_size=rows or max(1, len(images)))
    return path


def content(where, **options):
    source = open_source(where, **options)
    return {key: source.read(key) for key in source.scan().keys}


def test_what_is_no_plain_member_of_an_archive_is_a_failure_and_names_that_climb_are_only_names(tmp_path):
    names = ["../up.png", "/etc/passwd.png", "a.png", "caf\xe9.png", "lzma.png", "dir.png/", "._a.png"]
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for name in names:
            archive.writestr(name, name.encode(), 14 if name == "lzma.png" else 8)
        archive.writestr("bomb.png", bytes(10**6), 8)
        link = zipfile.ZipInfo("link.png")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "a.png")
        archive.writestr("secret.png", b"x")
        archive.writestr("a.png", b"later")
    data = (tmp_path / "x.zip").read_bytes()
    at = data.rindex(b"secret.png") - 46 + 8
    data = data[:at] + b"\1\0" + data[at + 2 :]  # encrypted
    at = data.rindex(b"bomb.png") - 46 + 24
    data = data[:at] + (100).to_bytes(4, "little") + data[at + 4 :]  # less than it unpacks to
    source = open_source(write(tmp_path / "y.zip", data))
    listing = source.scan()
    assert listing.keys == ["../up.png", "/etc/passwd.png", "a.png", "bomb.png", "caf\xe9.png"]
    assert source.read("a.png") == b"later"
    assert refusal(source.read, "bomb.png") == "damaged ZIP member: expected 100 bytes, got more"
    assert {key: reason.split(";")[0] for key, reason in listing.failures.items()} == {
        "link.png": "a link or special file inside a ZIP archive",
        "lzma.png": "compressed by method 14",
        "secret.png": "encrypted",
    }
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["x.zip", "y.zip"]


def test_a_member_that_announces_far_too_much_is_not_unpacked(tmp_path):
    source = open_source(archive(tmp_path / "x.zip", {"bomb.png": bytes(10**8), "flat.bmp": bytes(10**7)}))
    source.scan()
    assert refusal(source.read, "bomb.png") == "unpacks to more than 100 times its size; it holds no image"
    assert source.read("flat.bmp") == bytes(10**7), "small images of one colour may shrink as much"


def test_a_tar_that_unpacks_to_far_too_much_is_refused(tmp_path, monkeypatch):
    from pucache.images import tar as room

    monkeypatch.setattr(room, "IMAGE_BYTES", 1000)
    archive(tmp_path / "x.tar.gz", {"a.png": bytes(10**7)})
    message = one_line(SourceError, lambda: open_source(tmp_path / "x.tar.gz").scan())
    assert message.endswith("x.tar.gz unpacks to more than 100 times its size; it holds no images")


# --- Parquet --------------------------------------------------------------------------------------

FOUR = list(IMAGES.values())


@pytest.mark.parametrize(
    ("paths", "keys"),
    [
        (["./d.png", "c.png", "b.png", "/a.png"], ["/a.png", "b.png", "c.png", "d.png"]),
        (["a.png", "a.png", "b.png", "c.png"], [f"{row:09}" for row in range(4)]),
        (["a.png", None, "b.png", "c.png"], [f"{row:09}" for row in range(4)]),
        ([None] * 4, [f"{row:09}" for row in range(4)]),
    ],
    ids=["paths", "repeated", "missing", "none"],
)
def test_keys_are_paths_or_numbers_of_rows(tmp_path, caplog, paths, keys):
    where = table(tmp_path / "x.parquet", list(zip(paths, FOUR, strict=True)), rows=3)
    assert list(content(where)) == keys
    assert set(content(where).values()) == set(FOUR)
    assert ("paths are missing or repeated" in caplog.text) == (keys[0] == "0" * 9 and any(paths))


@pytest.mark.parametrize("kind", [HF, pyarrow.binary(), pyarrow.large_binary(), pyarrow.binary_view()])
def test_a_column_of_keys_and_a_folder_of_files(tmp_path, kind):
    if kind == pyarrow.binary_view() and ARROW < 24:
        pytest.skip("earlier versions of pyarrow take no part of such values")
    for number in range(2):
        rows = list(IMAGES.items())[2 * number : 2 * number + 2]
        table(tmp_path / f"in/{number}.parquet", rows, kind=kind, id=[10 * number, 10 * number + 1])
    write(tmp_path / "in/README.md", b"")
    expected = dict(zip(["0", "1", "10", "11"], FOUR, strict=True))
    assert content(tmp_path / "in", key_column="id") == content(f"{tmp_path}/in#key=id") == expected
    source = open_source(tmp_path / "in", key_column="id")
    assert content(source.name) == expected and sorted(source.labels("id")) == [(key, key) for key in expected]


def test_a_folder_of_the_hub_names_the_glob_that_reads_it(tmp_path):
    table(tmp_path / "hub/data/train.parquet", list(IMAGES.items()))
    write(tmp_path / "hub/README.md", b"")
    write(tmp_path / "hub/data.tar.gz", b"")
    parquet.write_table(pyarrow.table({"key": ["a.png"]}), tmp_path / "hub/names.parquet")
    message = one_line(SourceError, lambda: run(open_source(tmp_path / "hub"), tmp_path / "c.h5"))
    assert message.endswith("pass the shards as 'FOLDER/**/*.parquet'; pass the shards as 'FOLDER/**/*.tar.gz'")
    expected = {f"data/train.parquet/{key}": data for key, data in IMAGES.items()}
    assert content(f"{tmp_path}/hub/**/*.parquet") == expected
    assert content(f"{tmp_path}/hub/data/**/*.parquet") == content(tmp_path / "hub/data")


def test_a_dataset_of_hugging_face_with_its_classes(tmp_path):
    kinds = {"image": {"_type": "Image"}, "label": {"names": ["cat", "dress"], "_type": "ClassLabel"}}
    images = [Image.new("RGB", (4, 3), (shade, 0, 0)) for shade in (10, 200)]
    rows = [{"bytes": encode(image, "PNG"), "path": None} for image in images]
    made = pyarrow.table({"image": pyarrow.array(rows, HF), "label": [1, 0]})
    made = made.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": kinds}})})
    parquet.write_table(made, tmp_path / "x.parquet")
    source = open_source(tmp_path / "x.parquet")
    assert len(source.scan().keys) == 2 and source.read("000000001").startswith(b"\x89PNG")
    assert list(source.labels("label")) == [("000000000", "dress"), ("000000001", "cat")]


@pytest.mark.parametrize(
    ("columns", "option", "reason"),
    [
        ({"text": ["a"]}, "", "has no column of image bytes .*its columns are text"),
        ({"a": [b"1"], "b": [b"2"]}, "", "has several columns of bytes, a, b; name one: 'FILE#image=a'"),
        ({"a": [b"1"]}, "#image=b", "has no column 'b' of image bytes; its columns are a .binary"),
        ({"a": [b"1"]}, "#key=b", "has no column 'b' of text or numbers; it has a"),
        ({"a": [b"\xff"]}, "#key=a", "has bytes in the column 'a'; expected text or numbers"),
        ({"a": [b"1"], "k": [None]}, "#key=k", "no value in the column 'k', row 0"),
        ({"a": [b"1"] * 3, "k": [7, 7, 7]}, "#key=k", "'7' too in the column 'k', row 2; name a column of unique"),
    ],
)
def test_columns_that_do_not_fit_are_refused_alone(tmp_path, columns, option, reason):
    parquet.write_table(pyarrow.table(columns), tmp_path / "x.parquet")
    assert re.search(reason, one_line(SourceError, lambda: open_source(f"{tmp_path}/x.parquet{option}").scan()))


def test_rows_without_a_key_of_their_own_are_failures(tmp_path):
    columns = {"a": [b"1", b"2", b"3", b"4", None], "k": ["x", None, "x", "y", "z"]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "x.parquet")
    source = open_source(f"{tmp_path}/x.parquet#key=k")
    listing = source.scan()
    assert listing.keys == ["x", "y", "z"] and [source.read(key) for key in "xy"] == [b"1", b"4"]
    assert listing.failures == {
        f"row 1 of {tmp_path}/x.parquet": "no value in the column 'k'",
        f"row 2 of {tmp_path}/x.parquet": "another row has the value 'x' too in the column 'k'",
    }


def test_a_file_of_other_columns_or_cut_off_is_a_failure_beside_others(tmp_path):
    whole = table(tmp_path / "a.parquet", list(IMAGES.items())).read_bytes()
    write(tmp_path / "b.parquet", whole[:-100])
    parquet.write_table(pyarrow.table({"image": ["path.png"]}), tmp_path / "c.parquet")
    listing = open_source(tmp_path).scan()
    assert {key.split("/")[0] for key in listing.keys} == {"a.parquet"}
    assert "damaged or truncated" in listing.failures["b.parquet"]
    assert "has no column of image bytes" in listing.failures["c.parquet"]


def test_nulls_and_what_is_no_picture_are_recorded_and_changed_files_are_noticed(tmp_path):
    images = [("a.ppm", picture(1)), ("b.ppm", None), ("c.ppm", b"no image"), ("d.ppm", b"")]
    where = table(tmp_path / "x.parquet", images)
    report = run(open_source(where), tmp_path / "c.h5")
    assert report.rows == 1 and report.failures == {
        "b.ppm": "the row holds no bytes of an image (null); a path alone is not followed",
        "c.ppm": "not an image in a known format",
        "d.ppm": "empty file (0 bytes)",
    }
    source = open_source(where)
    source.scan()
    table(where, [("a.ppm", picture(2))])
    assert refusal(source.read, "a.ppm") == "the Parquet file has changed since it was listed; embed again"
    os.utime(where, ns=(1, 1))
    assert work(run(open_source(where), tmp_path / "c.h5")) == (1, 0, 0)
    os.utime(where, ns=(2, 2))
    assert work(run(open_source(where), tmp_path / "c.h5")) == (0, 1, 0), "the same bytes are not embedded again"
    assert work(run(open_source(where), tmp_path / "c.h5")) == (0, 0, 1)


@pytest.mark.parametrize(("name", "workers"), [("x.parquet", 0), ("x.parquet", 2), ("x.tar.gz", 2), ("x.zip", 0)])
def test_embedding_from_any_source_gives_the_rows_of_a_folder(tmp_path, name, workers):
    count = 120
    shuffled = random.Random(0).sample(range(count), count)  # paths in no order
    members = [(f"{number:04}.ppm", picture(number) if number != 7 else b"no image") for number in shuffled]
    for key, data in members:
        write(tmp_path / "folder" / key, data)
    table(tmp_path / "x.parquet", members, rows=40)
    for packed in ("x.tar.gz", "x.zip"):
        archive(tmp_path / packed, dict(members))
    run(open_source(tmp_path / "folder"), tmp_path / "folder.h5")
    report = run(open_source(tmp_path / name), tmp_path / "c.h5", workers=workers)
    one, other = EmbeddingCache(tmp_path / "folder.h5"), EmbeddingCache(tmp_path / "c.h5")
    assert list(other.keys) == list(one.keys) and report.failures == {"0007.ppm": "not an image in a known format"}
    np.testing.assert_array_equal(other.X, one.X)
    np.testing.assert_array_equal(other.digests, one.digests)
    pictures = RowImages(other)
    assert [pictures.read(row, 64).problem for row in random.sample(range(119), 40)] == [""] * 40


@pytest.mark.parametrize("name", ["tar.gz", "zip", "parquet"])
def test_archives_are_divided_into_shares(tmp_path, name):
    for number in range(6):
        archive(tmp_path / f"{number}.{name}", {f"{row:02}.ppm": b"data" for row in range(20)})
    whole = open_source(f"{tmp_path}/*.{name}").scan()
    shares = [share.keys for share in take_shards(whole, 3)]
    assert shares == [take_shard(whole, (number, 3)).keys for number in (1, 2, 3)]
    assert sorted(key for share in shares for key in share) == whole.keys and len(whole.keys) == 120
    tars = [{key.split("/")[0] for key in share} for share in shares]
    assert name != "tar.gz" or sum(map(len, tars)) == 6, "a compressed tar is unpacked by one share"


def test_avif_and_heic_in_a_folder(tmp_path, monkeypatch):
    from pucache.images import decoding

    sample = Image.new("RGB", (32, 16), (200, 30, 30))
    write(tmp_path / "in/a.avif", encode(sample, "AVIF"))
    heif = pytest.importorskip("pillow_heif")
    heif.from_pillow(sample).save(tmp_path / "in/b.heic")
    monkeypatch.setattr(decoding, "FORMATS", list(decoding.FORMATS))
    with monkeypatch.context() as without:
        without.setitem(__import__("sys").modules, "pillow_heif", None)
        report = run(open_source(tmp_path / "in"), tmp_path / "c.h5")
        assert report.rows == 1
        assert report.failures == {"b.heic": "HEIC needs pillow-heif; pip install -e '.[heif]'"}
    assert run(open_source(tmp_path / "in"), tmp_path / "c.h5").rows == 2
    read = decoding.decode((tmp_path / "in/b.heic").read_bytes())
    assert read.size == (32, 16) and abs(read.getpixel((5, 5))[0] - 200) < 8


# --- ranges in braces, and labels beside the images ---------------------------------------------

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
