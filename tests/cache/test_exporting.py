import dataclasses
import re
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from helpers.cache_files import SPEC, rows_of, write, write_rows
from helpers.files import damage
from helpers.imports import refusal, write_parquet
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pucache import EmbeddingCache, EncoderSpec, export, import_embeddings, pack

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=9)


pytestmark = pytest.mark.usefixtures("fixed_time")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_table_holds_what_the_cache_does(tmp_path, dtype, small_blocks):
    cache = EmbeddingCache(write(tmp_path / "c.h5", [f"é{number}" for number in range(30)], dtype=dtype))
    report = export(cache, tmp_path / "c.parquet")
    assert (report.rows, report.dtype, report.encoder) == (30, dtype, cache.encoder)
    table = pyarrow.parquet.read_table(tmp_path / "c.parquet")
    assert table["key"].to_pylist() == list(cache.keys)
    kind = table.schema.field("embedding").type
    assert (kind.list_size, str(kind.value_type)) == (8, {"float16": "halffloat", "float32": "float"}[dtype])
    np.testing.assert_array_equal(np.stack(table["embedding"].to_numpy()), cache.X)
    assert b"".join(table["digest"].to_pylist()) == cache.digests.tobytes()
    pairs = np.stack([table["size"].to_numpy(), table["mtime_ns"].to_numpy()], 1)
    np.testing.assert_array_equal(pairs, cache.files[0].size_mtime)


@settings(max_examples=10)
@given(
    keys=st.lists(TEXT, min_size=1, max_size=20, unique=True),
    failures=st.dictionaries(TEXT, TEXT, max_size=3),
    dtype=st.sampled_from(["f2", "f4"]),
    encoder=st.sampled_from([SPEC, EncoderSpec.imported("é", 3)]),
    source=st.sampled_from(["", "/photos/é"]),
    data=st.data(),
)
def test_export_and_import_give_the_same_file(keys, failures, dtype, encoder, source, data):
    numbers = st.floats(allow_nan=False, allow_infinity=False, width=16 if dtype == "f2" else 32)
    X = data.draw(arrays(dtype, (len(keys), encoder.dim), elements=numbers))
    failures = {key: failures[key] for key in sorted(failures.keys() - set(keys), key=str.encode)}
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1")
        folder = Path(name)
        rows = dataclasses.replace(rows_of(keys), X=X)
        write_rows(folder / "c.h5", rows, spec=encoder, failures=failures, source=source)
        export(folder / "c.h5", folder / "not UTF-8 \udcff.parquet")
        import_embeddings(folder / "not UTF-8 \udcff.parquet", folder / "again.h5")
        assert (folder / "again.h5").read_bytes() == (folder / "c.h5").read_bytes()


def test_shards_become_one_table_and_exports_of_shards_one_cache(tmp_path, small_blocks):
    keys = [f"{number * 7 % 40:02}" for number in range(40)]
    (tmp_path / "shards").mkdir()
    (tmp_path / "tables").mkdir()
    for number in range(3):
        failures = {keys[(number + 1) % 40]: "timeout", f"x{number}": "gone"}
        shard = write(tmp_path / "shards" / f"{number}.h5", keys[number::3], failures=failures)
        export(shard, tmp_path / "tables" / f"{number}.parquet")
    pack(tmp_path / "shards", tmp_path / "packed.h5")
    export(tmp_path / "shards", tmp_path / "all.parquet")
    for source in ("all.parquet", "tables"):
        import_embeddings(tmp_path / source, tmp_path / "again.h5")
        assert (tmp_path / "again.h5").read_bytes() == (tmp_path / "packed.h5").read_bytes()


def test_a_flipped_byte_of_an_export_is_noticed(tmp_path):
    cache = EmbeddingCache(write(tmp_path / "c.h5", [f"{number:03}" for number in range(500)], dtype="float32"))
    export(cache, tmp_path / "c.parquet")
    damage(tmp_path / "c.parquet", (tmp_path / "c.parquet").read_bytes().index(np.asarray(cache.X)[100].tobytes()))
    assert "cannot be read as Parquet" in refusal(tmp_path / "c.parquet", tmp_path / "d.h5")
    assert not (tmp_path / "d.h5").exists()


def test_exports_of_different_encoders_are_not_mixed(tmp_path):
    folder = tmp_path / "tables"
    folder.mkdir()
    export(write(tmp_path / "a.h5", ["a"]), folder / "1.parquet")
    export(write(tmp_path / "b.h5", ["b"], spec=EncoderSpec.imported("other", 8)), folder / "2.parquet")
    text = refusal(folder, tmp_path / "c.h5", name="mine")
    assert re.search(r"1.parquet and .*2.parquet are exports of different encoders", text)
    write_parquet(folder / "2.parquet", key=["b"], embedding=np.ones((1, 8), "f2"))
    assert "or one of them is no export" in refusal(folder, tmp_path / "c.h5")
