"""Arrays and Parquet files as sources of an import: what is read from them, and what is refused."""

import os
import pickle
import re
import zipfile

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from helpers.files import visible
from helpers.imports import expect, refusal, rows, shuffled_keys, write_parquet
from safetensors.torch import save_file

from pucache import EmbeddingCache, EncoderSpec, import_embeddings

ARROW = int(pyarrow.__version__.split(".")[0])

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
    coarse = torch.tensor(X).to(torch.bfloat16)
    save_file({"a": coarse, "mean": coarse[0].clone(), "n": torch.ones(3, 3, dtype=torch.int32)}, path)
    import_embeddings(path, tmp_path / "c.h5", keys=shuffled_keys(9))
    expect(tmp_path / "c.h5", coarse.float().numpy(), shuffled_keys(9))
    save_file({"a": coarse, "b": torch.tensor(X)}, path)
    import_embeddings(path, tmp_path / "c.h5", embedding_column="b", row_numbers=True, force=True)
    expect(tmp_path / "c.h5", X, [f"{number:010}" for number in range(9)])


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
    assert "has no columns with lists of floats" in refusal(path, out)


NAN = float("nan")
ODD_ROWS = [
    ([[1.0, 2.0], [1.0]], {1: r"holds \[1.0\], expected a list of 2 numbers"}),
    ([[1.0], [3.0, 4.0], [1.0, 2.0]], {0: r"holds \[1.0\], expected a list of 2 numbers"}),
    ([[1.0, 2.0], None], {1: "holds None, expected a list of 2 numbers"}),
    ([None, [1.0, 2.0], [], None], {0: "holds None", 2: r"holds \[\]", 3: "holds None"}),
    ([[1.0, 2.0], [None, 1.0], [NAN, 1.0], [1e39, 1.0]], {1: "is NaN", 2: "is NaN", 3: "overflows"}),
    ([*[None] * 30, [1.0, 2.0]], dict.fromkeys(range(30), "holds None")),
    ([], None),
    ([[], None], None),
    ([None, None], None),
]


@pytest.mark.parametrize("lists", ["list", "fixed_size_list", "tensor"])
@pytest.mark.parametrize(("values", "odd"), ODD_ROWS)
def test_rows_that_are_no_embeddings_are_named_or_are_failures(tmp_path, small_blocks, values, odd, lists):
    if lists != "list" and None in values and ARROW < 26:
        pytest.skip("earlier versions of pyarrow read no missing lists of a fixed size")
    kind = pyarrow.list_(pyarrow.float32(), -1 if lists == "list" else 2)
    try:
        column = pyarrow.array(values, pyarrow.list_(pyarrow.float64())).cast(kind)
    except pyarrow.ArrowInvalid:
        pytest.skip("a type of fixed size holds no such list")
    if lists == "tensor":
        column = pyarrow.ExtensionArray.from_storage(pyarrow.fixed_shape_tensor(pyarrow.float32(), [2]), column)
    keys = [f"{row:04}" for row in range(len(values))]
    table = pyarrow.table({"key": pyarrow.array(keys, pyarrow.string()), "emb": column})
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    told = refusal(tmp_path / "x.parquet", tmp_path / "c.h5")
    assert visible(tmp_path) == ["x.parquet"]
    if odd is None:
        assert re.search("holds [02] embeddings of 0 numbers|no valid key|holds None", told)
        return
    first = min(odd)
    assert re.search(rf"row {first} of .*x.parquet.*{odd[first]}.*--skip-invalid", told), told
    odd = {keys[row]: why for row, why in odd.items()}
    if len(odd) == len(values):
        assert "no row can be stored (row 0 of" in refusal(tmp_path / "x.parquet", tmp_path / "c.h5", skip_invalid=True)
        return
    report = import_embeddings(tmp_path / "x.parquet", tmp_path / "c.h5", skip_invalid=True)
    cache = EmbeddingCache(tmp_path / "c.h5")
    assert cache.failures.keys() == odd.keys() and report.left_out == len(odd)
    assert all(re.search(why, cache.failures[key]) for key, why in odd.items())
    kept = [row for row, key in enumerate(keys) if key not in odd]
    assert list(cache.keys) == [keys[row] for row in kept]
    np.testing.assert_array_equal(cache.X, np.array([values[row] for row in kept], "f4"))


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
    "X",
    [
        np.array([[0, 1, 255]], "u1"),
        np.array([[0, 1], [1, 0]], bool),
        np.array([[-1, 1], [1, 2]], "i1"),
        np.array([[1.5, -2.25], [3, 0]], "f4").view("u2")[:, 1::2].view("V2"),  # as ml_dtypes saves bfloat16
        np.ones(3),
        np.ones((1, 2, 3)),
        np.ones((2, 3), complex),
    ],
    ids=lambda X: f"{X.dtype}-{X.ndim}",
)
def test_an_array_that_is_no_rows_of_floats_is_refused_with_a_remedy_that_works(tmp_path, monkeypatch, X):
    monkeypatch.chdir(tmp_path)
    np.save(tmp_path / "x.npy", X)
    for source in (X, tmp_path / "x.npy"):
        told = refusal(source, tmp_path / "c.h5", row_numbers=True)
        assert f"holds {X.dtype} {X.shape}; expected one array of floats with rows and columns" in told
        for remedy in re.findall(r"numpy.save\('embeddings.npy', (.*?)\)(?:, or| and|$)", told):
            made = eval(remedy, {"numpy": np, "X": X})
            assert import_embeddings(made, tmp_path / "c.h5", row_numbers=True, force=True).rows == len(X)
            assert made.sum() == (2.25 if X.dtype.kind == "V" else X.sum())
        assert ("numpy.save" in told) == (X.dtype.kind in "biuV")


def test_a_cache_is_no_array(tmp_path):
    import_embeddings(rows(2), tmp_path / "c.h5", row_numbers=True)
    assert "is a cache already" in refusal(tmp_path / "c.h5", tmp_path / "d.h5", row_numbers=True)


# --- types of Arrow ------------------------------------------------------------------------------

KEYS = list("gfbdaec")
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


@pytest.mark.parametrize("text", TEXTS, ids=str)
@pytest.mark.parametrize("lists", LISTS)
def test_embeddings_in_every_type_of_list_and_keys_in_every_type_of_text(tmp_path, small_blocks, lists, text):
    kind = FLOATS[TEXTS.index(text) % 3]
    X, keys = rows(7).astype(kind.to_pandas_dtype()), [each.encode() if "bin" in str(text) else each for each in KEYS]
    try:
        columns = {"v": pyarrow.array(list(X), LISTS[lists](kind)), "Image Path": pyarrow.array(keys, text)}
        pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "x.parquet")
    except pyarrow.ArrowNotImplementedError:
        pytest.skip("this version of pyarrow does not write it")
    assert import_embeddings(tmp_path / "x.parquet", tmp_path / "c.h5").keys == "column 'Image Path'"
    expect(tmp_path / "c.h5", X, KEYS, "f2" if kind == pyarrow.float16() else "f4")


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


def test_bytes_that_are_no_text_are_no_keys(tmp_path):
    write_parquet(tmp_path / "x.parquet", key=[b"\xff", b"b"], v=rows(2))
    reason = "has the column 'key' of binary, which is not UTF-8 text; name another with --key-column"
    assert reason in refusal(tmp_path / "x.parquet", tmp_path / "c.h5")
