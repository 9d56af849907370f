"""Arrays and Parquet files as sources of an import: what is read from them, and what is refused."""

import os
import pickle
import re
import zipfile

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import safetensors.numpy
import torch
from helpers.files import visible
from helpers.imports import expect, refusal, rows, shuffled_keys, write_parquet
from safetensors.torch import save_file

from pucache.cache.importing import import_embeddings
from pucache.encoders.spec import EncoderSpec

# --- arrays --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "dtype", "wanted", "stored"),
    [("F", "f2", None, "f2"), ("C", "f4", None, "f4"), ("F", ">f8", None, "f4"), ("C", "f4", "float16", "f2")],
)
def test_rows_follow_their_keys(tmp_path, small_blocks, order, dtype, wanted, stored):
    X = np.asarray(np.arange(21).reshape(7, 3).astype(dtype), order=order)
    keys = ["g", "é", "c", "a", "bb", "f\n", "d"]
    np.save(tmp_path / "clip.npy", X)
    report = import_embeddings(tmp_path / "clip.npy", tmp_path / "c.h5", keys=keys, dtype=wanted)
    cache = expect(tmp_path / "c.h5", X, keys, stored)
    assert (report.rows, report.encoder) == (7, cache.encoder)
    assert cache.encoder == EncoderSpec.imported("clip", 3)
    assert cache.encoder.origin == str(tmp_path / "clip.npy")


def test_safetensors(tmp_path, small_blocks):
    X, path = rows(9), tmp_path / "x.safetensors"
    safetensors.numpy.save_file({"a": X, "mean": X[0], "n": np.ones((3, 3), int)}, path)
    import_embeddings(path, tmp_path / "c.h5", keys=shuffled_keys(9))
    expect(tmp_path / "c.h5", X, shuffled_keys(9))
    safetensors.numpy.save_file({"a": X, "b": X * 2}, path)
    import_embeddings(path, tmp_path / "c.h5", embedding_column="b", row_numbers=True, force=True)
    expect(tmp_path / "c.h5", X * 2, [f"{number:010}" for number in range(9)])


def test_bfloat16_is_stored_as_float32(tmp_path):
    X = torch.tensor([[1.5, -2.25], [3e38, 1e-30]]).to(torch.bfloat16)
    save_file({"X": X}, tmp_path / "x.safetensors")
    import_embeddings(tmp_path / "x.safetensors", tmp_path / "c.h5", keys=["b", "a"])
    expect(tmp_path / "c.h5", X.float().numpy(), ["b", "a"])


@pytest.mark.parametrize("kind", ["source", "keys", "metadata"])
@pytest.mark.parametrize("suffix", [".npy", ".safetensors", ".parquet", ".txt", ".csv"])
def test_a_fifo_is_refused_and_never_waited_for(tmp_path, kind, suffix):
    fifo, given = tmp_path / f"fifo{suffix}", {}
    os.mkfifo(fifo)
    np.save(tmp_path / "x.npy", rows(2))
    source = fifo if kind == "source" else tmp_path / "x.npy"
    if kind != "source":
        given = {kind: fifo}
    assert f"{fifo} is not a regular file" in refusal(source, tmp_path / "c.h5", **given)


# --- Parquet -------------------------------------------------------------------------------------


def test_the_column_of_embeddings(tmp_path):
    X, out = rows(3), tmp_path / "c.h5"
    path = write_parquet(tmp_path / "x.parquet", a=X, b=2 * X, ids=[[1], [2], [3]], key=list("abc"))
    import_embeddings(path, out, embedding_column="b")
    expect(out, 2 * X, list("abc"))
    assert re.search(r"has 2 columns with lists of floats .*a \(list.*--embedding-column", refusal(path, out))
    assert re.search(r"has no 'vec' among its columns .* it has a \(list", refusal(path, out, embedding_column="vec"))
    assert "has no 'key' among its columns" in refusal(path, out, embedding_column="key")
    assert "leave the metadata" in refusal(path, out, metadata=path)
    write_parquet(path, key=list("abc"))
    assert "has 0 columns with lists of floats" in refusal(path, out)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[1.0, 2.0], [1.0]], r"row 1 of .*x.parquet holds \[1.0\]; expected a list of 2 numbers"),
        ([[1.0, 2.0], None], "row 1 of .*x.parquet holds None; expected a list of 2 numbers"),
        ([[1.0, 2.0], [None, 1.0]], r"row 1 of .*x.parquet \('b'\) is NaN"),
        ([[1.0, 2.0], [1.0, float("nan")]], r"row 1 of .*x.parquet \('b'\) is NaN"),
        ([], "holds 0 embeddings"),
        ([None, [1.0, 2.0]], "holds 2 embeddings of 0 numbers"),
    ],
)
def test_lists_that_are_no_embeddings(tmp_path, values, expected):
    column = pyarrow.array(values, pyarrow.list_(pyarrow.float32()))
    table = pyarrow.table({"key": list("ab")[: len(values)], "emb": column})
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    text = refusal(tmp_path / "x.parquet", tmp_path / "c.h5")
    assert re.search(expected, text), text
    assert visible(tmp_path) == ["x.parquet"]


# --- files of another kind -----------------------------------------------------------------------

FOREIGN = {
    "npz": (lambda path: np.savez(path.open("wb"), emb=np.ones((2, 3), "f4")), r"archive of arrays.*\['emb'\]"),
    "torch": (lambda path: torch.save(torch.ones(2, 3), path), r"torch.save.*torch.load\('x[.a-z]+'\).numpy\(\)"),
    "zip": (lambda path: zipfile.ZipFile(path, "w").writestr("a.txt", "a"), "is a ZIP archive.*numpy.save"),
    "pickle": (lambda path: path.write_bytes(pickle.dumps([1.0])), "is a pickle.*pickle.load.*trust its source"),
    "faiss": (lambda path: path.write_bytes(b"IxF2" + bytes(99)), r"index of faiss.*reconstruct_n\(\)"),
    "Arrow": (lambda path: path.write_bytes(b"ARROW1\0\0" + bytes(99)), "is an Arrow file.*feather.read_table"),
    "text": (lambda path: path.write_text("0.1,0.2\n"), "is a text file.*numpy.loadtxt"),
    "picture": (lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(99)), "is a PNG picture.*pucache embed"),
    "HDF5": (lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(99)), r"is an HDF5 file.*h5py.File\("),
    "nothing": (lambda path: path.touch(), "is an empty file"),
    "array": (lambda path: np.save(path.open("wb"), np.ones((2, 3))), r"is a NumPy array; rename it .*\.npy"),
    "safetensors": (lambda path: save_file({"a": torch.ones(2, 3)}, path), r"is a safetensors file; rename it"),
    "Parquet": (lambda path: write_parquet(path, embedding=np.ones((2, 3))), r"Parquet file; rename it .*\.parquet"),
}
READ = {("array", ".npy"), ("array", ".bin"), ("safetensors", ".safetensors"), ("Parquet", ".parquet")}


@pytest.mark.parametrize("ending", [".npy", ".safetensors", ".parquet", ".bin"])
@pytest.mark.parametrize("kind", FOREIGN)
def test_a_file_of_another_kind_is_called_what_it_is_whatever_its_ending(tmp_path, kind, ending):
    make, expected = FOREIGN[kind]
    path = tmp_path / f"x{ending}"
    make(path)
    if (kind, ending) in READ:
        assert import_embeddings(path, tmp_path / "c.h5", row_numbers=True).rows == 2
        return
    told = refusal(path, tmp_path / "c.h5", row_numbers=True)
    assert re.search(expected, told) and told.startswith(f"{path} is "), told
    assert visible(tmp_path) == [path.name]


@pytest.mark.parametrize(
    ("dtype", "order"), [("f2", "C"), (">f4", "C"), ("f4", "F"), ("longdouble", "C"), (">f8", "F"), ("longdouble", "F")]
)
def test_an_array_of_any_floats_and_order_gives_its_rows(tmp_path, dtype, order):
    X = np.array(rows(6), dtype=dtype, order=order)
    for source in (X, tmp_path / "x.npy"):
        np.save(tmp_path / "x.npy", X)
        import_embeddings(source, tmp_path / "c.h5", row_numbers=True, name="x", force=True)
        expect(tmp_path / "c.h5", X.astype("f2" if dtype == "f2" else "f4"), [f"{row:010}" for row in range(6)])


@pytest.mark.parametrize(
    "X", [np.ones((2, 3), "i1"), np.ones((2, 3), bool), np.ones(3), np.ones((1, 2, 3)), np.ones((2, 3), complex)]
)
def test_an_array_that_is_no_rows_of_floats_is_refused_by_type_and_shape(tmp_path, X):
    np.save(tmp_path / "x.npy", X)
    for source in (X, tmp_path / "x.npy"):
        told = refusal(source, tmp_path / "c.h5", row_numbers=True)
        assert f"holds {X.dtype} {X.shape}; expected one array of floats with rows and columns" in told


# --- types of Arrow ------------------------------------------------------------------------------

FLOATS = (pyarrow.float16(), pyarrow.float32(), pyarrow.float64())
LISTS = {
    "list": pyarrow.list_,
    "large_list": pyarrow.large_list,
    "fixed_size_list": lambda kind: pyarrow.list_(kind, 5),
    "list_view": pyarrow.list_view,
    "large_list_view": pyarrow.large_list_view,
}
TEXTS = [pyarrow.string(), pyarrow.large_string(), pyarrow.string_view(), pyarrow.binary(), pyarrow.large_binary()]
TEXTS += [pyarrow.binary_view(), pyarrow.binary(1), pyarrow.dictionary(pyarrow.int8(), pyarrow.large_string())]


@pytest.mark.parametrize("kind", FLOATS, ids=str)
@pytest.mark.parametrize("lists", LISTS)
def test_embeddings_in_every_type_of_list(tmp_path, small_blocks, lists, kind):
    X = rows(7).astype(kind.to_pandas_dtype())
    try:
        column = pyarrow.array(list(X), LISTS[lists](kind))
        pyarrow.parquet.write_table(pyarrow.table({"v": column, "key": list("gfbdaec")}), tmp_path / "x.parquet")
    except pyarrow.ArrowNotImplementedError:
        pytest.skip("this version of pyarrow does not write it")
    import_embeddings(tmp_path / "x.parquet", tmp_path / "c.h5")
    expect(tmp_path / "c.h5", X, list("gfbdaec"), "f2" if kind == pyarrow.float16() else "f4")


@pytest.mark.parametrize("order", ["shuffled", "row order"])
def test_a_folder_of_files_with_several_groups_of_rows(tmp_path, order, small_blocks):
    X, keys = rows(30), shuffled_keys(30) if order == "shuffled" else [f"{number:03}" for number in range(30)]
    (tmp_path / "parts").mkdir()
    for number, part in enumerate([slice(0, 12), slice(12, 30)]):
        table = pyarrow.table({"text": keys[part], "emb": list(X[part]), "key": keys[part]})
        pyarrow.parquet.write_table(table, tmp_path / "parts" / f"{number}.parquet", row_group_size=9)
    report = import_embeddings(tmp_path / "parts", tmp_path / "c.h5")
    expect(tmp_path / "c.h5", X, keys)
    assert (report.keys, report.encoder) == ("column 'key'", EncoderSpec.imported("parts", 5))


@pytest.mark.parametrize("name", ["key", "Image Path", "filename"])
@pytest.mark.parametrize("kind", TEXTS, ids=str)
def test_keys_in_every_type_of_text(tmp_path, kind, name):
    values = [letter.encode() if "binary" in str(kind) else letter for letter in "gfbdaec"]
    table = {name: pyarrow.array(values, kind), "v": pyarrow.array(list(rows(7)), pyarrow.list_(pyarrow.float32()))}
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "x.parquet")
    report = import_embeddings(tmp_path / "x.parquet", tmp_path / "c.h5")
    assert report.keys == f"column {name!r}"
    expect(tmp_path / "c.h5", rows(7), list("gfbdaec"))


def test_bytes_that_are_no_text_are_no_keys(tmp_path):
    write_parquet(tmp_path / "x.parquet", key=[b"\xff", b"b"], v=rows(2))
    reason = "has the column 'key' of binary, which is not UTF-8 text; name another with --key-column"
    assert reason in refusal(tmp_path / "x.parquet", tmp_path / "c.h5")
