"""Which files a source consists of, in which order, and where their keys come from."""

import os
import re

import numpy as np
import pytest
import safetensors.numpy
from helpers.files import visible
from helpers.imports import expect, refusal, rows, shuffled_keys, write_clip_folder, write_parquet

from pucache import import_embeddings
from pucache.errors import OutputError

# --- folders -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("inside", "order"), [("", "shuffled"), ("img_emb", "row order")])
def test_the_folder_of_clip_retrieval(tmp_path, inside, order, small_blocks):
    X, keys = rows(40, dtype="f2"), [f"{number:05}" for number in range(40)]
    if order == "shuffled":
        keys = shuffled_keys(40)
    folder = write_clip_folder(tmp_path / "laion", X, keys, [3, 1, 30, 2, 4], caption=["a cat"] * 40)
    report = import_embeddings(folder / inside, tmp_path / "c.h5")
    expect(tmp_path / "c.h5", X, keys)
    assert (report.parts, report.keys) == (5, "column 'image_path'")
    assert report.encoder.name == f"imported:{inside or 'laion'}"


def test_parts_come_in_the_order_of_their_numbers(tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    X = rows(24)
    for number in range(12):
        np.save(folder / f"part{number}.npy", X[2 * number : 2 * number + 2])
    import_embeddings(folder, tmp_path / "c.h5")
    expect(tmp_path / "c.h5", X, [f"{number:010}" for number in range(24)])


@pytest.mark.parametrize("place", ["here", "within", "beside", "elsewhere", "one file"])
def test_places_of_metadata(tmp_path, place):
    folder = tmp_path / "data" / "embeddings"
    at = {"here": folder, "within": folder / "metadata", "beside": tmp_path / "data" / "metadata"}.get(place)
    folder.mkdir(parents=True)
    X, keys = rows(6), list("fbdaec")
    if place == "one file":
        np.save(folder / "one.npy", X)
        metadata = write_parquet(tmp_path / "other.parquet", key=keys)
    else:
        metadata = at or tmp_path / "elsewhere"
        for number, part in enumerate([slice(0, 2), slice(2, 6)]):
            np.save(folder / f"x-{number}.npy", X[part])
            write_parquet(metadata / f"{number}.parquet", key=keys[part])
    import_embeddings(folder, tmp_path / "c.h5", metadata=None if at else metadata)
    expect(tmp_path / "c.h5", X, keys)


EMB, META = "img_emb/img_emb_{}.npy", "metadata/metadata_{}.parquet"
ONE_NAN = np.where(np.arange(25).reshape(5, 5) == 17, np.nan, 1).astype("f4")
SPOILED = {
    "dimension": (
        lambda f: np.save(f / EMB.format(1), rows(3, d=6)),
        "img_emb_1.npy holds rows of 6 float32, .*img_emb_0.npy of 5 float32; .*correct the part",
    ),
    "type": (
        lambda f: np.save(f / EMB.format(2), rows(5, dtype="f2")),
        "img_emb_2.npy holds rows of 5 float16, .*img_emb_0.npy of 5 float32",
    ),
    "rows": (lambda f: np.save(f / EMB.format(1), rows(2)), "img_emb_1.npy has 2 rows, .*metadata_1.parquet 3"),
    "NaN": (lambda f: np.save(f / EMB.format(2), ONE_NAN), "row 3 of .*img_emb_2.npy .* is NaN, infinite"),
    "duplicate": (
        lambda f: write_parquet(f / META.format(2), image_path=["x", "y", shuffled_keys(12)[5], "z", "u"]),
        r"is given twice \(row 1 of .*img_emb_1.npy and row 2 of .*img_emb_2.npy\).*--key-column.*row_numbers=True",
    ),
    "no metadata": (lambda f: (f / META.format(1)).unlink(), "img_emb_1.npy has no metadata in .*metadata"),
    "no embeddings": (lambda f: (f / EMB.format(1)).unlink(), "metadata_1.parquet has no embeddings in .*img_emb"),
    "no column": (
        lambda f: write_parquet(f / META.format(1), text=["x", "y", "z"], n=[1, 2, 3]),
        r"metadata_1.parquet has no 'image_path' among its columns of text or integers; it has text \(string\), n",
    ),
    "null": (
        lambda f: write_parquet(f / META.format(1), image_path=["x", None, "z"]),
        "row 1 of .*img_emb_1.npy has no valid key in column 'image_path'",
    ),
    "not Parquet": (
        lambda f: (f / META.format(1)).write_bytes(b"PAR1 and more"),
        "metadata_1.parquet cannot be read as Parquet",
    ),
    "cut short": (
        lambda f: os.truncate(f / EMB.format(1), (f / EMB.format(1)).stat().st_size - 1),
        "img_emb_1.npy is not a .npy array",
    ),
    "nothing": (lambda f: [path.unlink() for path in (f / "img_emb").iterdir()], "no embeddings in folder .*img_emb"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_bad_part_is_named_and_nothing_is_written(tmp_path, name, small_blocks):
    folder = write_clip_folder(tmp_path / "clip", rows(12), shuffled_keys(12), [4, 3, 5])
    (tmp_path / "c.h5").write_text("precious")
    damage, expected = SPOILED[name]
    damage(folder)
    text = refusal(folder, tmp_path / "c.h5", force=True)
    assert re.search(expected, text), text
    assert visible(tmp_path) == ["c.h5", "clip"] and (tmp_path / "c.h5").read_text() == "precious"


# --- keys ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "options", "taken"),
    [
        ({"url": list("cba"), "key": list("abc")}, {}, "key"),
        ({"url": list("cba"), "image_path": list("bca")}, {}, "image_path"),
        ({"id": [30, 4, 5]}, {}, "id"),
        ({"caption": list("cba"), "url": list("xyz")}, {"key_column": "caption"}, "caption"),
        ({"caption": list("cba")}, {}, None),
        ({"url": list("aaa")}, {"row_numbers": True}, None),
        ({"key": [1.5, 2.5, 3.5]}, {}, None),
    ],
)
def test_the_column_of_keys(tmp_path, columns, options, taken):
    X = rows(3)
    np.save(tmp_path / "x.npy", X)
    write_parquet(tmp_path / "m.parquet", **columns)
    report = import_embeddings(tmp_path / "x.npy", tmp_path / "c.h5", metadata=tmp_path / "m.parquet", **options)
    keys = [f"{number:010}" for number in range(3)] if taken is None else list(map(str, columns[taken]))
    expect(tmp_path / "c.h5", X, keys)
    assert report.keys.startswith("row numbers" if taken is None else f"column {taken!r}")
    if taken is None and not options:
        assert f"it has {', '.join(columns)}" in report.keys


@pytest.mark.parametrize(
    ("name", "text"), [("k.txt", "\ufeffb\n\na\n\u2028c\n"), ("k.csv", 'x,key\n1,b\n,\n2,a\n3,"\u2028c"\n')]
)
def test_keys_from_a_file_of_text(tmp_path, write, name, text):
    import_embeddings(rows(3), tmp_path / "c.h5", keys=write(name, text))
    expect(tmp_path / "c.h5", rows(3), ["b", "a", "\u2028c"])


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["a"], "has 2 rows, and the sequence of keys 1 keys; expected one key for each row"),
        (["a", "a"], r"key 'a' is given twice \(row 0 of the array and row 1 of the array\)"),
        (["a", ""], "row 1 of the array has no valid key in the sequence of keys; expected 1 to 4096 bytes"),
        (["a", "b" * 4097], "row 1 of the array has no valid key"),
        (["a", "b\0"], "row 1 of the array has no valid key.*NUL"),
    ],
)
def test_keys_that_cannot_be_are_refused_and_nothing_is_written(tmp_path, keys, expected):
    text = refusal(rows(2), tmp_path / "c.h5", keys=keys)
    assert re.search(expected, text), text
    assert visible(tmp_path) == []


def test_folders_without_parts_or_with_two_kinds(tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    assert "no embeddings in folder" in refusal(folder, tmp_path / "c.h5")
    np.save(folder / "a.npy", rows(2))
    safetensors.numpy.save_file({"a": rows(2)}, folder / "b.safetensors")
    assert "holds both a.npy and b.safetensors" in refusal(folder, tmp_path / "c.h5")
    (folder / "b.safetensors").unlink()
    assert "no metadata at" in refusal(folder, tmp_path / "c.h5", metadata=tmp_path / "none")
    assert "there is no metadata with a column 'x'" in refusal(folder, tmp_path / "c.h5", key_column="x")


def test_sources_and_options_that_do_not_go_together(tmp_path):
    np.save(tmp_path / "x.npy", rows(1))
    for options in ({"keys": ["a"], "row_numbers": True}, {"key_column": "a", "row_numbers": True}, {"dtype": "int8"}):
        refusal(tmp_path / "x.npy", tmp_path / "c.h5", kind=ValueError, **options)
    assert "leave --embedding-column out" in refusal(tmp_path / "x.npy", tmp_path / "c.h5", embedding_column="a")
    assert "is a URL" in refusal("s3://bucket/x.npy", tmp_path / "c.h5")
    assert "no such file" in refusal(tmp_path / "gone.npy", tmp_path / "c.h5")
    for options in ({}, {"keys": ["a"]}):
        assert "also an input" in refusal(tmp_path / "x.npy", tmp_path / "x.npy", kind=OutputError, **options)
    assert visible(tmp_path) == ["x.npy"]
