"""`import_embeddings`: rows as they are stored, and imports that are interrupted."""

import os
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from helpers.files import visible
from helpers.imports import expect, refusal, rows, write_clip_folder

from pucache import EmbeddingCache, EncoderSpec, import_embeddings
from pucache.cache import importing
from pucache.cache.parts import part_files
from pucache.errors import OutputError, SourceError
from pucache.progress import Silent

pytestmark = pytest.mark.usefixtures("fixed_time")
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
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_row_that_cannot_be_stored_is_named_and_nothing_is_written(tmp_path, X, options, expected):
    text = refusal(np.array(X), tmp_path / "c.h5", keys=["b", "a"], **options)
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
    assert "holds a key that the new file lacks, such as 'c'" in refusal(
        rows(2), out, keys=["a", "b"], kind=OutputError
    )
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


class Interruption(Silent):
    """A progress that calls a function once the second part of an import is on disk."""

    def __init__(self, do):
        self._do = do

    def start(self, total, what):
        self._what, self._steps = what, 0

    def advance(self, steps):
        self._steps += self._what == "rows" and steps > 0
        if self._steps == 2:
            self._do()


class Stop(BaseException):
    """Stands for a kill: no `except Exception` sees it."""


def stop():
    raise Stop


def test_an_interrupted_import_leaves_nothing_and_begins_again(tmp_path, source, whole, small_parts):
    with pytest.raises(Stop):
        import_embeddings(source, tmp_path / "c.h5", progress=Interruption(stop))
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
        import_embeddings(source, tmp_path / "c.h5", force=True, progress=Interruption(alter))
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
    "Arrow": pa.array(list("cab")),
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
    "bad", [[None] * 3, [b"a"] * 3, [1.5, 2, 3], [True] * 3, np.array([["a"]] * 3), ["\ud800"] * 3]
)
def test_other_keys_are_refused_with_their_row(tmp_path, bad):
    assert "row 0 of the array has no valid key" in refusal(rows(3), tmp_path / "c.h5", keys=bad)


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
