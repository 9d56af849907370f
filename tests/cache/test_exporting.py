import re
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from helpers.cache_files import write_rows
from helpers.imports import refusal, write_parquet
from helpers.tiny import tiny_encoder
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pucache import EmbeddingCache, EncoderSpec, export, import_embeddings, pack
from pucache.cache.keys import encode_keys
from pucache.cache.writer import Rows

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=9)


pytestmark = pytest.mark.usefixtures("fixed_time")


def write(path, keys, *, dtype="f4", d=3, failures=None, source="/photos", encoder=None, X=None, seed=0):
    """Write a cache with digests, sizes and times, as `embed` does."""
    random = np.random.default_rng(seed)
    n = len(keys)
    X = random.normal(size=(n, d)).astype(dtype) if X is None else X
    digests = random.integers(0, 256, (n, 32)).astype("u1")
    digests[:, -2:] = 0  # what a conversion of fixed-width bytes would lose
    rows = Rows(np.sort(encode_keys(keys)), X, digests, random.integers(-1, 1 << 62, (n, 2)))
    return write_rows(path, rows, spec=encoder or EncoderSpec.imported("clip", d), source=source, failures=failures)


@pytest.mark.parametrize("dtype", ["f2", "f4"])
def test_the_table_holds_what_the_cache_does(tmp_path, dtype, small_blocks):
    cache = EmbeddingCache(write(tmp_path / "c.h5", [f"é{number}" for number in range(30)], dtype=dtype))
    report = export(cache, tmp_path / "c.parquet")
    assert (report.rows, report.dtype, report.encoder) == (30, str(np.dtype(dtype)), cache.encoder)
    table = pyarrow.parquet.read_table(tmp_path / "c.parquet")
    assert table["key"].to_pylist() == list(cache.keys)
    kind = table.schema.field("embedding").type
    assert (kind.list_size, str(kind.value_type)) == (3, {"f2": "halffloat", "f4": "float"}[dtype])
    np.testing.assert_array_equal(np.stack(table["embedding"].to_numpy()), cache.X)
    assert b"".join(table["digest"].to_pylist()) == cache.digests.tobytes()
    pairs = np.stack([table["size"].to_numpy(), table["mtime_ns"].to_numpy()], 1)
    np.testing.assert_array_equal(pairs, cache.files[0].size_mtime)


@settings(max_examples=10)
@given(
    keys=st.lists(TEXT, min_size=1, max_size=20, unique=True),
    failures=st.dictionaries(TEXT, TEXT, max_size=3),
    dtype=st.sampled_from(["f2", "f4"]),
    encoder=st.sampled_from([None, tiny_encoder().spec, EncoderSpec.imported("é", 8)]),
    source=st.sampled_from(["", "/photos/é"]),
    data=st.data(),
)
def test_export_and_import_give_the_same_file(keys, failures, dtype, encoder, source, data):
    numbers = st.floats(allow_nan=False, allow_infinity=False, width=16 if dtype == "f2" else 32)
    X = data.draw(arrays(dtype, (len(keys), encoder.dim if encoder else 3), elements=numbers))
    failures = {key: failures[key] for key in sorted(failures.keys() - set(keys), key=str.encode)}
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1")
        folder = Path(name)
        write(folder / "c.h5", keys, dtype=dtype, failures=failures, source=source, encoder=encoder, X=X)
        export(folder / "c.h5", folder / "c.parquet")
        import_embeddings(folder / "c.parquet", folder / "again.h5")
        assert (folder / "again.h5").read_bytes() == (folder / "c.h5").read_bytes()


def test_shards_become_one_table_and_exports_of_shards_one_cache(tmp_path, small_blocks):
    keys = [f"{number * 7 % 40:02}" for number in range(40)]
    (tmp_path / "shards").mkdir()
    (tmp_path / "tables").mkdir()
    for number in range(3):
        failures = {keys[(number + 1) % 40]: "timeout", f"x{number}": "gone"}
        shard = write(tmp_path / "shards" / f"{number}.h5", keys[number::3], failures=failures, seed=number)
        export(shard, tmp_path / "tables" / f"{number}.parquet")
    pack(tmp_path / "shards", tmp_path / "packed.h5")
    export(tmp_path / "shards", tmp_path / "all.parquet")
    for source in ("all.parquet", "tables"):
        import_embeddings(tmp_path / source, tmp_path / "again.h5")
        assert (tmp_path / "again.h5").read_bytes() == (tmp_path / "packed.h5").read_bytes()


def test_a_flipped_byte_of_an_export_is_noticed(tmp_path):
    keys = [f"{number:03}" for number in range(500)]
    export(write(tmp_path / "c.h5", keys, d=16), tmp_path / "c.parquet")
    whole = (tmp_path / "c.parquet").read_bytes()
    place = whole.index(np.asarray(EmbeddingCache(tmp_path / "c.h5").X)[100].tobytes())
    (tmp_path / "c.parquet").write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    assert "cannot be read as Parquet" in refusal(tmp_path / "c.parquet", tmp_path / "d.h5")
    assert not (tmp_path / "d.h5").exists()


def test_exports_of_different_encoders_are_not_mixed(tmp_path):
    folder = tmp_path / "tables"
    folder.mkdir()
    export(write(tmp_path / "a.h5", ["a"]), folder / "1.parquet")
    export(write(tmp_path / "b.h5", ["b"], encoder=EncoderSpec.imported("other", 3)), folder / "2.parquet")
    text = refusal(folder, tmp_path / "c.h5", name="mine")
    assert re.search(r"1.parquet and .*2.parquet are exports of different encoders", text)
    write_parquet(folder / "2.parquet", key=["b"], embedding=np.ones((1, 3), "f4"))
    assert "or one of them is no export" in refusal(folder, tmp_path / "c.h5")
