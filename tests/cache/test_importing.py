"""`import_embeddings`: what is read from arrays, files and folders, what is refused, and what is interrupted."""

import os
import pickle
import re

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest
import safetensors.numpy
import torch
from helpers.cache_files import write as write_cache_file
from helpers.embedding_runs import During, ctrl_c
from helpers.files import visible
from helpers.imports import expect, refusal, rows, shuffled_keys, write_clip_folder, write_parquet
from safetensors.torch import save_file

from pucache import EmbeddingCache, EncoderSpec, import_embeddings
from pucache.cache import importing
from pucache.cache.parts import part_files
from pucache.errors import OutputError, SourceError

pytestmark = pytest.mark.usefixtures("fixed_time")
ARROW = int(pyarrow.__version__.split(".")[0])
N = 6_000


# --- rows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("X", "options", "expected"),
    [
        ([[1.0], [np.nan]], {}, r"row 1 of the array \('a'\) is NaN"),
        ([[1.0], [1e39]], {}, "overflows float32; correct it, or record such rows as failures: --skip-invalid"),
        ([[1.0], [1e6]], {"dtype": "float16"}, "overflows float16; pass dtype='float32', or record"),
        ([[1.0], [np.nan]], {"dtype": "float16"}, "overflows float16; correct it"),
        ([[1.0], [0.0]], {"normalize": True}, r"row 1 of the array \('a'\) is all zeros"),
        ([[1.0], [1e200]], {"normalize": True}, "is NaN, infinite or overflows float32"),
        ([[1.0], [2.0]], {"keys": ["a"]}, "has 2 rows, and the sequence of keys 1 key; expected one key for each row"),
        ([[1.0], [2.0]], {"keys": ["a", "a"]}, r"key 'a' is given twice \(row 0 of the array and row 1 of the array\)"),
        ([[1.0], [2.0]], {"keys": ["a", ""]}, "row 1 of the array has no valid key in .*; expected 1 to 4096 bytes"),
        ([[1.0], [2.0]], {"keys": ["a", "b" * 4097]}, "row 1 of the array has no valid key"),
        ([[1.0], [2.0]], {"keys": ["a", "b\0"]}, "row 1 of the array has no valid key.*NUL"),
        *(
            ([[1.0]], {"keys": [bad]}, "row 0 of the array has no valid key")
            for bad in (None, b"a", 1.5, True, ["a"], "\ud800")
        ),
    ],
)
@pytest.mark.filterwarnings("error")
def test_rows_and_keys_that_cannot_be_stored_are_named_and_nothing_is_written(tmp_path, X, options, expected):
    text = refusal(np.array(X), tmp_path / "c.h5", **{"keys": ["b", "a"], **options})
    assert re.search(expected, text), text
    assert visible(tmp_path) == []


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_normalized_rows_have_length_one(tmp_path, dtype):
    X = rows(50, dtype=dtype) * 50
    report = import_embeddings(X, tmp_path / "c.h5", row_numbers=True, normalize=True)
    stored = np.asarray(EmbeddingCache(tmp_path / "c.h5").X, float)
    expected = X.astype(float) / np.linalg.norm(X.astype(float), axis=1, keepdims=True)
    np.testing.assert_allclose(stored, expected, atol=1e-3 if dtype == "f2" else 1e-6)
    assert report.encoder.differences(EncoderSpec.imported("array", 5)) == ["normalization"]


# --- what is at OUT ------------------------------------------------------------------------------


def test_a_cache_is_replaced_by_one_with_all_of_its_keys_and_by_others_only_if_forced(tmp_path):
    out = tmp_path / "c.h5"
    import_embeddings(rows(2), out, keys=["a", "b"])
    import_embeddings(rows(3), out, keys=["c", "b", "a"])
    before = out.read_bytes()
    told = refusal(rows(2), out, keys=["a", "b"], kind=OutputError)
    assert "holds a key that the new file lacks, such as 'c'" in told
    assert out.read_bytes() == before and visible(tmp_path) == ["c.h5"]
    import_embeddings(rows(1), out, keys=["a"], force=True)
    expect(out, rows(1), ["a"])


# --- interruption --------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path):
    """Parts with keys in another order than the rows."""
    keys = [f"{number:06}.jpg" for number in np.random.default_rng(1).permutation(N)]
    return write_clip_folder(tmp_path / "clip", rows(N, d=16), keys, [N // 12] * 12)


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(importing, "BLOCK_BYTES", 1 << 14)  # 256 rows


@pytest.fixture
def whole(source, tmp_path):
    """Bytes of an undisturbed import."""
    import_embeddings(source, tmp_path / "whole.h5")
    return (tmp_path / "whole.h5").read_bytes()


def test_an_interrupted_import_leaves_nothing_and_begins_again(tmp_path, source, whole, small_parts):
    with pytest.raises(KeyboardInterrupt):
        import_embeddings(source, tmp_path / "c.h5", progress=During("rows", 256, ctrl_c))
    assert not (tmp_path / "c.h5.parts").exists()
    import_embeddings(source, tmp_path / "c.h5")
    assert (tmp_path / "c.h5").read_bytes() == whole


@pytest.mark.parametrize("name", ["part-import-000000000001.h5", "part-0123456789abcdef-000000000256.h5"])
def test_parts_of_a_killed_import_are_removed_and_it_begins_again(tmp_path, source, whole, small_parts, name):
    import_embeddings(rows(2, d=16), tmp_path / "c.h5.parts" / name, keys=["of another", "import"])
    import_embeddings(source, tmp_path / "c.h5")
    assert (tmp_path / "c.h5").read_bytes() == whole
    assert not (tmp_path / "c.h5.parts").exists()


@pytest.mark.parametrize("change", ["vanishes", "cut short"])
def test_a_file_that_changes_or_vanishes_is_named_and_the_output_stays(tmp_path, source, small_parts, change):
    (tmp_path / "c.h5").write_text("precious")
    part = source / "img_emb" / "img_emb_3.npy"

    def alter():
        if change == "vanishes":
            part.unlink()
        else:
            os.truncate(part, part.stat().st_size // 2)

    problem = r"img_emb_3.npy: No such file.*; restore" if change == "vanishes" else r"img_emb_3.npy changed during"
    with pytest.raises(SourceError, match=rf"{problem}.* run the same command"):
        import_embeddings(source, tmp_path / "c.h5", force=True, progress=During("rows", 256, alter))
    assert (tmp_path / "c.h5").read_text() == "precious"


def test_unfinished_work_of_embed_is_not_touched(tmp_path):
    import_embeddings(rows(2), tmp_path / "other.h5", keys=["a", "b"])
    (tmp_path / "c.h5.parts").mkdir()
    (tmp_path / "other.h5").rename(tmp_path / "c.h5.parts" / "part-0.h5")
    assert "holds unfinished work of embed; finish it" in refusal(rows(2), tmp_path / "c.h5", kind=OutputError)
    assert len(part_files(tmp_path / "c.h5")) == 1


KEYS_IN_MEMORY = {
    "Series": pd.Series(list("cab")),
    "Index": pd.Index(list("cab")),
    "Arrow": pyarrow.array(list("cab")),
    "iterator": iter("cab"),
    "numbers": np.array([30, 1, 2]),
    "tuple": (30, 1, 2),
}


@pytest.mark.parametrize("form", KEYS_IN_MEMORY)
def test_keys_are_taken_from_what_holds_them(tmp_path, form):
    import_embeddings(rows(3), tmp_path / "c.h5", keys=KEYS_IN_MEMORY[form])
    names = ["30", "1", "2"] if form in ("numbers", "tuple") else list("cab")
    expect(tmp_path / "c.h5", rows(3), names)


@pytest.mark.parametrize(
    "bad", [{"a", "b", "c"}, 5, pd.Series(list("abc"), index=[2, 1, 0])], ids=["set", "number", "Series"]
)
def test_keys_without_the_order_of_the_rows_are_refused(tmp_path, bad):
    assert "order" in refusal(rows(3), tmp_path / "c.h5", kind=ValueError, keys=bad)


def test_rows_come_from_what_numpy_makes_an_array_of(tmp_path):
    frame = pd.DataFrame(rows(3), index=list("cab"))
    sources = {"frame": frame, "plain": pd.DataFrame(rows(3)), "tensor": torch.tensor(rows(3))}
    for name, source in {**sources, "long": rows(3).astype(np.longdouble)}.items():
        import_embeddings(source, tmp_path / f"{name}.h5", normalize=True)
        keys = list("cab") if name == "frame" else [f"{row:010}" for row in range(3)]
        scaled = rows(3) / np.linalg.norm(rows(3), axis=1, keepdims=True)
        assert np.allclose(EmbeddingCache(tmp_path / f"{name}.h5").X, scaled[np.argsort(keys)])
    assert "cannot be read as an array" in refusal([[1.0], [1.0, 2.0]], tmp_path / "bad.h5")


# --- folders -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("inside", "order"), [("", "shuffled"), ("img_emb", "row order")])
def test_the_folder_of_clip_retrieval(tmp_path, inside, order, small_blocks):
    X, keys = rows(40, dtype="f2"), [f"{number:05}" for number in range(40)]
    if order == "shuffled":
        keys = shuffled_keys(40)
    parts = [3, 1, 21, 2, 4, 1, 1, 2, 1, 1, 1, 2]  # more than ten: they come in the order of their numbers
    folder = write_clip_folder(tmp_path / "laion", X, keys, parts, caption=["a cat"] * 40)
    report = import_embeddings(folder / inside, tmp_path / "c.h5")
    expect(tmp_path / "c.h5", X, keys)
    assert (report.parts, report.keys) == (12, "column 'image_path'")
    assert report.encoder.name == f"imported:{inside or 'laion'}"


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


def metadata(number, **columns):
    return lambda folder: write_parquet(folder / META.format(number), **columns)


SPOILED = {
    "dimension": (
        lambda f: np.save(f / EMB.format(1), rows(3, d=6)),
        "emb_1.npy holds rows of 6 float32, .*emb_0.npy of 5",
    ),
    "type": (lambda f: np.save(f / EMB.format(2), rows(5, dtype="f2")), "emb_2.npy holds rows of 5 float16"),
    "rows": (lambda f: np.save(f / EMB.format(1), rows(2)), "img_emb_1.npy has 2 rows, .*metadata_1.parquet 3"),
    "NaN": (lambda f: np.save(f / EMB.format(2), ONE_NAN), "row 3 of .*img_emb_2.npy .* is NaN, infinite"),
    "duplicate": (
        metadata(2, image_path=["x", "y", shuffled_keys(12)[5], "z", "u"]),
        r"twice \(row 1 of .*1.npy and row 2",
    ),
    "no metadata": (lambda f: (f / META.format(1)).unlink(), "img_emb_1.npy has no metadata in .*metadata"),
    "no embeddings": (lambda f: (f / EMB.format(1)).unlink(), "metadata_1.parquet has no embeddings in .*img_emb"),
    "no column": (
        metadata(1, text=["x", "y", "z"]),
        r"_1.parquet has no 'image_path' among .*; it has text \(string\)",
    ),
    "null": (metadata(1, image_path=["x", None, "z"]), "row 1 of .*emb_1.npy has no valid key in column 'image_path'"),
    "not Parquet": (
        lambda f: (f / META.format(1)).write_bytes(b"PAR1 and more"),
        "1.parquet cannot be read as Parquet",
    ),
    "cut short": (lambda f: os.truncate(f / EMB.format(1), 187), "img_emb_1.npy is not a .npy array"),
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
    "npz": (lambda path: np.savez(path.open("wb"), emb=np.ones((2, 3), "f4")), "is a ZIP archive.*numpy.save"),
    "pickle": (lambda path: path.write_bytes(pickle.dumps([1.0])), "is a pickle.*numpy.save"),
    "text": (lambda path: path.write_text("0.1,0.2\n"), "is a text file.*numpy.save"),
    "cache": (lambda path: write_cache_file(path, ["a"]), "is an HDF5 file.*a cache is named where"),
    "picture": (lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(99)), "is a PNG picture.*pucache embed"),
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


@pytest.mark.parametrize("X", [np.ones((2, 3), "u1"), np.ones(3), np.ones((1, 2, 3)), np.ones((2, 3), complex)])
def test_an_array_that_is_no_rows_of_floats_is_refused(tmp_path, X):
    np.save(tmp_path / "x.npy", X)
    for source in (X, tmp_path / "x.npy"):
        told = refusal(source, tmp_path / "c.h5", row_numbers=True)
        assert f"holds {X.dtype} {X.shape}; expected one array of floats with rows and columns: convert it" in told


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


@pytest.mark.parametrize("number", range(15))
def test_embeddings_in_every_type_of_list_and_keys_in_every_type_of_text(tmp_path, small_blocks, number):
    lists, kind, text = [*LISTS][number % 5], FLOATS[number % 3], TEXTS[number % 8]
    X, keys = rows(7).astype(kind.to_pandas_dtype()), [each.encode() if "bin" in str(text) else each for each in KEYS]
    try:
        columns = {"v": pyarrow.array(list(X), LISTS[lists](kind)), "Image Path": pyarrow.array(keys, text)}
        pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "x.parquet")
    except pyarrow.ArrowNotImplementedError:
        pytest.skip("this version of pyarrow does not write it")
    assert import_embeddings(tmp_path / "x.parquet", tmp_path / "c.h5").keys == "column 'Image Path'"
    expect(tmp_path / "c.h5", X, KEYS, "f2" if kind == pyarrow.float16() else "f4")


def test_bytes_that_are_no_text_are_no_keys(tmp_path):
    write_parquet(tmp_path / "x.parquet", key=[b"\xff", b"b"], v=rows(2))
    reason = "has the column 'key' of binary, which is not UTF-8 text; name another with --key-column"
    assert reason in refusal(tmp_path / "x.parquet", tmp_path / "c.h5")
