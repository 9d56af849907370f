import json
import os
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import safetensors.numpy
from helpers.parts import write_clip_folder, write_parquet
from hypothesis import given
from hypothesis import strategies as st

from pucache.cache import reader, writer
from pucache.cache.embedding_cache import EmbeddingCache
from pucache.cache.interchange import key_order, parquet_files, resumable_file, row_blocks
from pucache.cache.interchange.importing import import_embeddings
from pucache.cache.interchange.layouts import natural_key
from pucache.cache.interchange.row_blocks import rows_not_finite
from pucache.encoders.spec import EncoderSpec
from pucache.errors import CacheError, LabelError, MissingExtraError, ModelError
from pucache.pu.classifier import PULinearClassifier


@pytest.fixture(autouse=True)
def same_time(monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")


@pytest.fixture
def small_blocks(monkeypatch):
    """Everything that is done in blocks is done in blocks of a few rows."""
    shrink_blocks(monkeypatch)


def shrink_blocks(monkeypatch):
    monkeypatch.setattr(reader, "BLOCK_BYTES", 40)
    monkeypatch.setattr(row_blocks, "BLOCK_BYTES", 40)
    monkeypatch.setattr(row_blocks, "_SPILL_BYTES", 60)
    monkeypatch.setattr(resumable_file, "SEGMENT_BYTES", 1)
    monkeypatch.setattr(key_order, "_RUN_BYTES", 64)
    monkeypatch.setattr(key_order, "_FAN_IN", 3)
    monkeypatch.setattr(key_order, "MERGE_BYTES", 200)
    monkeypatch.setattr(parquet_files, "_BATCH_BYTES", 50)
    monkeypatch.setattr(parquet_files, "_BATCH_KEYS", 7)


def rows(n, d=5, dtype="f4", seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)).astype(dtype)


def shuffled_keys(n, seed=0):
    return [f"photos/{number}.jpg" for number in np.random.default_rng(seed).permutation(n)]


def expect(path, X, keys, dtype=None):
    """The cache is whole, and holds these rows under these keys."""
    cache = EmbeddingCache(path)
    cache.verify()
    assert sorted(keys, key=str.encode) == list(cache.keys)
    np.testing.assert_array_equal(np.asarray(cache.X)[cache.keys.rows(list(keys))], X)
    assert cache.X.dtype == (dtype or X.dtype)
    return cache


def refusal(*arguments, kind=CacheError, **options):
    with pytest.raises(kind) as refused:
        import_embeddings(*arguments, **options)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def others(folder):
    """Files of a folder but locks."""
    return sorted(name for name in os.listdir(folder) if not name.endswith(".lock"))


# --- one array -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "wanted", "stored"),
    [("f2", None, "f2"), ("f4", None, "f4"), (">f8", None, "f4"), ("f4", "float16", "f2")],
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_rows_follow_their_keys(tmp_path, dtype, wanted, stored, order, small_blocks):
    X = np.asarray(np.arange(21).reshape(7, 3).astype(dtype), order=order)
    keys = ["g", "é", "c", "a", "bb", "f\n", "d"]
    np.save(tmp_path / "clip.npy", X)
    report = import_embeddings(tmp_path / "clip.npy", tmp_path / "c.h5", keys=keys, dtype=wanted)
    cache = expect(tmp_path / "c.h5", X, keys, stored)
    assert (report.rows, report.encoder) == (7, cache.encoder)
    assert cache.encoder == EncoderSpec.imported("clip", 3)
    assert cache.encoder.origin == str(tmp_path / "clip.npy")


def test_the_bytes_are_those_of_a_file_that_is_written_at_once(tmp_path, small_blocks):
    X, keys = rows(700), shuffled_keys(700)
    np.save(tmp_path / "x.npy", X)
    import_embeddings(tmp_path / "x.npy", tmp_path / "c.h5", keys=keys)
    cache = EmbeddingCache(tmp_path / "c.h5")
    (file,) = cache.files
    whole = writer.Rows(file.raw_keys, file.X, file.digests, file.size_mtime)
    shape = (700, file.raw_key_bytes, file.dtype)
    writer.write_file(tmp_path / "whole.h5", file.encoder, "", [whole], shape=shape, failures={})
    assert (tmp_path / "whole.h5").read_bytes() == (tmp_path / "c.h5").read_bytes()


def test_without_keys_the_numbers_of_the_rows_are_the_keys(tmp_path, small_blocks):
    X = rows(30)
    np.save(tmp_path / "x.npy", X)
    report = import_embeddings(tmp_path / "x.npy", tmp_path / "c.h5")
    expect(tmp_path / "c.h5", X, [f"{number:010}" for number in range(30)])
    assert report.keys == "row numbers (there is no metadata)"


@pytest.mark.parametrize(
    ("name", "text"), [("k.txt", "\ufeffb\n\na\n\u2028c\n"), ("k.csv", 'x,key\n1,b\n,\n2,a\n3,"\u2028c"\n')]
)
def test_keys_from_a_file_of_text(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    X = rows(3)
    import_embeddings(X, tmp_path / "c.h5", keys=tmp_path / name)
    expect(tmp_path / "c.h5", X, ["b", "a", "\u2028c"])


@pytest.mark.parametrize(
    ("X", "keys", "expected"),
    [
        (np.ones((2, 3)), ["a"], "has 2 rows, and the sequence of keys 1 key; expected one key for each row"),
        (np.ones((2, 3)), ["a", "a"], r"key 'a' is given twice \(row 0 of .*x.npy and row 1 of .*x.npy\)"),
        (np.ones((2, 3)), ["a", ""], "key 1 of the sequence of keys has 0 bytes; expected 1 to 4096"),
        (np.ones((2, 3)), ["a", "b" * 4097], "has 4097 bytes"),
        (np.ones((2, 3)), ["a", "b\0"], "NUL"),
        (np.array([[1.0], [np.nan]]), ["b", "a"], r"row 1 of .*x\.npy \('a'\) is NaN"),
        (np.array([[1.0], [1e39]]), ["b", "a"], "overflows float32"),
        (np.array([[1.0], [np.inf]], "f2"), ["b", "a"], "is NaN, infinite or overflows float16.* or leave it out"),
        (np.ones(2), ["a", "b"], r"holds float64 \(2,\); expected one array of floats"),
        (np.ones((2, 3), int), ["a", "b"], r"holds int64 \(2, 3\); expected one array of floats"),
        (np.array([[{}], [{}]]), ["a", "b"], "is not a .npy array of numbers"),
    ],
)
def test_what_cannot_be_imported_is_refused_and_nothing_is_written(tmp_path, X, keys, expected):
    np.save(tmp_path / "x.npy", X)
    text = refusal(tmp_path / "x.npy", tmp_path / "c.h5", keys=keys)
    assert re.search(expected, text), text
    assert others(tmp_path) == ["x.npy"]
    assert "no such file" in refusal(tmp_path / "gone.npy", tmp_path / "c.h5")


def test_arguments_that_exclude_each_other(tmp_path):
    for options in ({"keys": ["a"], "row_numbers": True}, {"key_column": "a", "row_numbers": True}, {"dtype": "int8"}):
        refusal(np.ones((1, 2)), tmp_path / "c.h5", kind=ValueError, **options)
    np.save(tmp_path / "x.npy", np.ones((1, 2)))
    assert "leave --embedding-column out" in refusal(tmp_path / "x.npy", tmp_path / "c.h5", embedding_column="a")
    assert "is a URL" in refusal("s3://bucket/x.npy", tmp_path / "c.h5")
    assert "also an input" in refusal(tmp_path / "x.npy", tmp_path / "x.npy", kind=Exception)
    (tmp_path / "k.csv").write_text("name\nb\n")
    assert "expected one called 'key'" in refusal(
        tmp_path / "x.npy", tmp_path / "c.h5", keys=tmp_path / "k.csv", kind=LabelError
    )
    (tmp_path / "k.txt").write_bytes(b"\xff")
    assert "not UTF-8" in refusal(tmp_path / "x.npy", tmp_path / "c.h5", keys=tmp_path / "k.txt", kind=LabelError)
    assert "no such file" in refusal(tmp_path / "x.npy", tmp_path / "c.h5", keys=tmp_path / "no", kind=LabelError)
    assert others(tmp_path) == ["k.csv", "k.txt", "x.npy"]


# --- safetensors ---------------------------------------------------------------------------------


def test_safetensors(tmp_path, small_blocks):
    X = rows(9)
    safetensors.numpy.save_file({"a": X, "mean": X[0], "n": np.ones((3, 3), int)}, tmp_path / "x.safetensors")
    import_embeddings(tmp_path / "x.safetensors", tmp_path / "c.h5", keys=shuffled_keys(9))
    expect(tmp_path / "c.h5", X, shuffled_keys(9))
    safetensors.numpy.save_file({"a": X, "b": X * 2}, tmp_path / "x.safetensors")
    import_embeddings(tmp_path / "x.safetensors", tmp_path / "c.h5", embedding_column="b", row_numbers=True)
    expect(tmp_path / "c.h5", X * 2, [f"{number:010}" for number in range(9)])
    text = refusal(tmp_path / "x.safetensors", tmp_path / "c.h5")
    assert re.search(r"holds 2 tensors .*a \(F32 \[9, 5\]\), b .*--embedding-column", text)
    assert "has no tensor 'c'; it has a" in refusal(tmp_path / "x.safetensors", tmp_path / "c.h5", embedding_column="c")
    (tmp_path / "x.safetensors").write_bytes(b"\1" * 100)
    assert "cannot be read as safetensors" in refusal(tmp_path / "x.safetensors", tmp_path / "c.h5")


def test_bfloat16_is_stored_as_float32(tmp_path):
    import torch
    from safetensors.torch import save_file

    X = torch.tensor([[1.5, -2.25], [3e38, 1e-30]]).to(torch.bfloat16)
    save_file({"X": X}, tmp_path / "x.safetensors")
    import_embeddings(tmp_path / "x.safetensors", tmp_path / "c.h5", keys=["b", "a"])
    expect(tmp_path / "c.h5", X.float().numpy(), ["b", "a"])


# --- folders -------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", ["", "img_emb"])
@pytest.mark.parametrize("order", ["row order", "shuffled"])
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
    names = [Path(name) for name in ("b1_10.npy", "b1_2.npy", "a_11.npy", "b.npy", "b01_2.npy", "10.npy", "9.npy")]
    assert [path.stem for path in sorted(names, key=natural_key)] == "9 10 a_11 b b01_2 b1_2 b1_10".split()


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


def test_text_columns_of_any_kind_are_keys(tmp_path):
    keys = ["é", "b" * 50, "c", "a"]
    for kind in (pyarrow.string(), pyarrow.large_string(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())):
        table = pyarrow.table({"key": pyarrow.array(keys).cast(kind), "embedding": list(rows(4))})
        pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
        import_embeddings(tmp_path / "x.parquet", tmp_path / "c.h5")
        expect(tmp_path / "c.h5", rows(4), keys)


def make_clip(tmp_path, n=12, sizes=(4, 3, 5), keys=None, dtype="f4"):
    X = rows(n, dtype=dtype)
    return write_clip_folder(tmp_path / "clip", X, keys or shuffled_keys(n), sizes), X


def spoil(name):
    """Return how to spoil a folder, and what the refusal says."""
    emb, meta = "img_emb/img_emb_{}.npy", "metadata/metadata_{}.parquet"
    return {
        "dimension": (
            lambda f: np.save(f / emb.format(1), rows(3, d=6)),
            "img_emb_1.npy holds rows of 6 numbers, .*img_emb_0.npy of 5; .*correct the part",
        ),
        "type": (
            lambda f: np.save(f / emb.format(2), rows(5, dtype="f2")),
            "img_emb_2.npy holds float16, .*img_emb_0.npy float32",
        ),
        "rows": (
            lambda f: np.save(f / emb.format(1), rows(2)),
            "img_emb_1.npy has 2 rows, its metadata .*metadata_1.parquet 3",
        ),
        "NaN": (
            lambda f: np.save(f / emb.format(2), np.where(np.arange(25).reshape(5, 5) == 17, np.nan, 1).astype("f4")),
            "row 3 of .*img_emb_2.npy .* is NaN, infinite",
        ),
        "duplicate": (
            lambda f: write_parquet(f / meta.format(2), image_path=["x", "y", shuffled_keys(12)[5], "z", "u"]),
            r"is given twice \(row 1 of .*img_emb_1.npy and row 2 of .*img_emb_2.npy\).*--key-column.*--row-numbers",
        ),
        "no metadata": (lambda f: (f / meta.format(1)).unlink(), "img_emb_1.npy has no metadata in .*metadata"),
        "no embeddings": (lambda f: (f / emb.format(1)).unlink(), "metadata_1.parquet has no embeddings in .*img_emb"),
        "no column": (
            lambda f: write_parquet(f / meta.format(1), text=["x", "y", "z"], n=[1, 2, 3]),
            "metadata_1.parquet has no column 'image_path'; it has text, n",
        ),
        "another column": (
            lambda f: write_parquet(f / meta.format(1), image_path=[0.5, 1.5, 2.5]),
            "column 'image_path' of .*metadata_1.parquet holds double; expected text or integers",
        ),
        "null": (
            lambda f: write_parquet(f / meta.format(1), image_path=["x", None, "z"]),
            "row 1 of .*metadata_1.parquet has no 'image_path'",
        ),
        "not Parquet": (
            lambda f: (f / meta.format(1)).write_bytes(b"PAR1 and more"),
            "metadata_1.parquet cannot be read as Parquet",
        ),
        "not an array": (lambda f: (f / emb.format(1)).write_bytes(b"x"), "img_emb_1.npy is not a .npy array"),
        "cut short": (
            lambda f: os.truncate(f / emb.format(1), (f / emb.format(1)).stat().st_size - 1),
            "img_emb_1.npy is not a .npy array",
        ),
        "nothing": (
            lambda f: [path.unlink() for path in (f / "img_emb").iterdir()],
            "no embeddings in folder .*img_emb",
        ),
    }[name]


@pytest.mark.parametrize(
    "name",
    "dimension,type,rows,NaN,duplicate,no metadata,no embeddings,no column,another column,null,not Parquet,"
    "not an array,cut short,nothing".split(","),
)
def test_a_bad_part_is_named_and_nothing_is_written(tmp_path, name, small_blocks):
    folder, _ = make_clip(tmp_path)
    (tmp_path / "c.h5").write_text("precious")
    damage, expected = spoil(name)
    damage(folder)
    text = refusal(folder, tmp_path / "c.h5")
    assert re.search(expected, text), text
    assert others(tmp_path) == ["c.h5", "clip"] and (tmp_path / "c.h5").read_text() == "precious"


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


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    folder, _ = make_clip(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'pucache[parquet]'" in refusal(folder, tmp_path / "c.h5", kind=MissingExtraError)
    np.save(tmp_path / "x.npy", rows(2))
    assert import_embeddings(tmp_path / "x.npy", tmp_path / "c.h5").rows == 2


# --- Parquet with embeddings ---------------------------------------------------------------------


def lists(X, kind):
    """An Arrow array of lists."""
    values = pyarrow.array(X.reshape(-1))
    if kind == "fixed":
        return pyarrow.FixedSizeListArray.from_arrays(values, X.shape[1])
    offsets = np.arange(0, X.size + 1, X.shape[1])
    large = kind == "large"
    make = pyarrow.LargeListArray if large else pyarrow.ListArray
    return make.from_arrays(pyarrow.array(offsets, pyarrow.int64() if large else pyarrow.int32()), values)


@pytest.mark.parametrize("kind", ["list", "large", "fixed"])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("order", ["row order", "shuffled"])
def test_list_columns(tmp_path, kind, dtype, order, small_blocks):
    X = rows(60, dtype=dtype)
    keys = shuffled_keys(60) if order == "shuffled" else [f"{number:03}" for number in range(60)]
    (tmp_path / "parts").mkdir()
    for number, part in enumerate([slice(0, 25), slice(25, 60)]):
        table = pyarrow.table({"text": keys[part], "emb": lists(X[part], kind), "key": keys[part]})
        pyarrow.parquet.write_table(table, tmp_path / "parts" / f"{number}.parquet", row_group_size=9)
    report = import_embeddings(tmp_path / "parts", tmp_path / "c.h5")
    stored = "f2" if dtype == "f2" else "f4"
    expect(tmp_path / "c.h5", X.astype(stored), keys, stored)
    assert (report.keys, report.encoder) == ("column 'key'", EncoderSpec.imported("parts", 5))


def test_the_column_of_embeddings(tmp_path):
    X = rows(3)
    path = write_parquet(tmp_path / "x.parquet", a=X, b=2 * X, ids=[[1], [2], [3]], key=list("abc"))
    assert re.search(
        r"has 2 columns with lists of floats .*a \(list.*--embedding-column", refusal(path, tmp_path / "c.h5")
    )
    import_embeddings(path, tmp_path / "c.h5", embedding_column="b")
    expect(tmp_path / "c.h5", 2 * X, list("abc"))
    text = refusal(path, tmp_path / "c.h5", embedding_column="vec")
    assert re.search(r"has no column 'vec'; it has a \(list", text)
    assert "'key' of" in refusal(path, tmp_path / "c.h5", embedding_column="key")
    assert "leave the metadata" in refusal(path, tmp_path / "c.h5", metadata=path)
    text = refusal(write_parquet(path, key=list("abc")), tmp_path / "c.h5")
    assert "has 0 columns with lists of floats" in text


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[1.0, 2.0], [1.0]], "row 1 of .*x.parquet has 1 numbers; expected 2 numbers"),
        ([[1.0, 2.0], None], "row 1 of .*x.parquet is missing; expected 2 numbers"),
        ([[1.0, 2.0], [None, 1.0]], "row 1 of .*x.parquet has missing numbers"),
        ([[1.0, 2.0], [1.0, float("nan")]], r"row 1 of .*x.parquet \('b'\) is NaN"),
        ([], "holds 0 embeddings"),
        ([None, [1.0, 2.0]], "holds 2 embeddings of 0 numbers"),
    ],
)
@pytest.mark.parametrize("kind", ["list", "fixed"])
def test_lists_that_are_no_embeddings(tmp_path, values, expected, kind):
    column = pyarrow.array(values, pyarrow.list_(pyarrow.float32()))
    if kind == "fixed":
        if values[:1] != [[1.0, 2.0]] or len(values[1] or [0, 0]) == 1:
            pytest.skip("cannot be a list of fixed size")
        column = pyarrow.array(values, pyarrow.list_(pyarrow.float32(), 2))
    pyarrow.parquet.write_table(
        pyarrow.table({"key": list("ab")[: len(values)], "emb": column}), tmp_path / "x.parquet"
    )
    text = refusal(tmp_path / "x.parquet", tmp_path / "c.h5")
    assert re.search(expected, text), text
    assert others(tmp_path) == ["x.parquet"]


# --- normalisation and provenance ----------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_normalized_rows_have_length_one(tmp_path, dtype):
    X = rows(50, dtype=dtype) * 50
    report = import_embeddings(X, tmp_path / "c.h5", row_numbers=True, normalize=True)
    stored = np.asarray(EmbeddingCache(tmp_path / "c.h5").X, float)
    expected = X.astype(float) / np.linalg.norm(X.astype(float), axis=1, keepdims=True)
    np.testing.assert_allclose(stored, expected, atol=1e-3 if dtype == "f2" else 1e-6)
    assert report.encoder.normalization == "l2"
    assert json.loads(report.encoder.to_json())["normalization"] == "l2"
    X[7] = 0
    assert "row 7 of the array ('0000000007') is all zeros" in refusal(X, tmp_path / "c.h5", normalize=True)


@pytest.mark.parametrize(("dtype", "value"), [("f4", 3e38), ("f8", 1e200)])
@pytest.mark.filterwarnings("error")
def test_a_row_too_long_to_be_normalized_is_refused_and_not_stored_as_zeros(tmp_path, dtype, value):
    X = rows(5).astype(dtype)
    X[3] = value
    text = refusal(X, tmp_path / "c.h5", row_numbers=True, normalize=True)
    assert "row 3 of the array ('0000000003') is NaN, infinite or overflows float32" in text
    assert others(tmp_path) == []


def test_float32_is_the_remedy_only_for_values_that_fit_it(tmp_path):
    overflowing, missing = np.array([[1.0], [1e6]]), np.array([[1.0], [np.nan]])
    assert "or pass --dtype float32" in refusal(overflowing, tmp_path / "c.h5", row_numbers=True, dtype="float16")
    assert "or leave it out" in refusal(missing, tmp_path / "c.h5", row_numbers=True, dtype="float16")


def test_a_model_of_normalized_rows_refuses_others(tmp_path):
    X = rows(60)
    np.save(tmp_path / "clip.npy", X)
    import_embeddings(tmp_path / "clip.npy", tmp_path / "plain.h5")
    import_embeddings(tmp_path / "clip.npy", tmp_path / "unit.h5", normalize=True)
    model = PULinearClassifier(prior=0.3, method="linear", device="cpu")
    unit = EmbeddingCache(tmp_path / "unit.h5")
    s = np.zeros(60, np.int8)
    s[:20] = 1
    model.fit(np.asarray(unit.X), s)
    model.encoder_ = unit.encoder
    model.check_fits(unit)
    with pytest.raises(ModelError, match=r"l2-normalized.*normalization"):
        model.check_fits(EmbeddingCache(tmp_path / "plain.h5"))


@given(
    X=st.lists(st.lists(st.floats(width=16), min_size=3, max_size=3), min_size=1, max_size=20).map(
        lambda values: np.array(values, np.float16)
    )
)
def test_fast_search_for_rows_that_are_not_finite(X):
    np.testing.assert_array_equal(rows_not_finite(X), ~np.isfinite(X).all(1))
    np.testing.assert_array_equal(rows_not_finite(X.astype("f4")), ~np.isfinite(X).all(1))


# --- the order of keys ---------------------------------------------------------------------------


@given(
    keys=st.lists(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=12),
        unique=True,
        min_size=1,
        max_size=60,
    ),
    data=st.data(),
)
def test_keys_are_sorted_in_any_number_of_runs(keys, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(keys)), max_size=6)))
    encoded = [key.encode() for key in keys]
    blocks = [encoded[a:b] for a, b in zip([0, *cuts], [*cuts, len(keys)], strict=True) if a < b]
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        shrink_blocks(patch)
        order = key_order.sort_keys((np.array(block, "S") for block in blocks), Path(folder))
        read, numbers = order.read(0, len(order))
        assert os.listdir(folder) == [order.path.name]
    assert read.tolist() == sorted(encoded)
    assert [encoded[row] for row in numbers] == sorted(encoded)
    assert order.width == max(map(len, encoded))
    assert order.is_row_order == (encoded == sorted(encoded))


@given(n=st.integers(1, 50), pair=st.tuples(st.integers(0, 50), st.integers(0, 50)))
def test_a_duplicate_in_any_two_runs_is_found(n, pair):
    first, second = sorted({min(pair[0], n), min(pair[1], n)} | {0, n})[:2]
    keys = [f"{number * 7 % 53:02}" for number in range(n + 1)]
    keys[second] = keys[first]
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        shrink_blocks(patch)
        with pytest.raises(key_order.DuplicateKeyError) as found:
            key_order.sort_keys([np.array(keys, "S")], Path(folder))
    assert (found.value.key.decode(), found.value.rows) == (keys[first], (first, second))
