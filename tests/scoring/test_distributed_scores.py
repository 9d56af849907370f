"""Scores by workers that read ranges of a cache; tests/distributed has the same with processes of Ray."""

import contextlib

import fsspec
import numpy as np
import pytest
from helpers.planted import planted, write_cache
from helpers.range_workers import InProcess

from pucache.cache.embedding_cache import EmbeddingCache, is_cache
from pucache.cache.row_range import Piece, RowRange
from pucache.errors import CacheError, ModelError, OutputError
from pucache.scoring import distributed_scores
from pucache.scoring.distributed_scores import FileTable
from pucache.scoring.score import score
from pucache.scoring.score_tables import read_scores
from pucache.training.sklearn_classifier import PULinearClassifier

N, D = 1300, 4
X, S, _ = planted(N, d=D, labelled=40)


@pytest.fixture(scope="module")
def model():
    return PULinearClassifier(prior=0.3, method="linear", device="cpu").fit(X, S)


@pytest.fixture
def shards(tmp_path, monkeypatch):
    """Shards of 700, 0, 1 and 599 rows, which workers read in ranges of 3 blocks of 50 rows."""
    monkeypatch.setattr("pucache.cache.reader.BLOCK_BYTES", 50 * D * 4)
    monkeypatch.setattr("pucache.cache.row_range._BLOCKS_PER_RANGE", 3)
    monkeypatch.setattr("pucache.scoring.score_tables._ROW_GROUP", 64)
    (tmp_path / "shards").mkdir()
    for name, rows in {"a": slice(0, 700), "b": slice(0, 0), "c": slice(700, 701), "d": slice(701, N)}.items():
        keys = [f'{row:04},"é".png' for row in range(N)[rows]]
        failures = {f"bad-{name}.png": "truncated"}
        write_cache(tmp_path / "shards" / f"{name}.h5", X[rows], keys, failures=failures)
    return tmp_path / "shards"


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_workers_write_the_bytes_of_one_process(shards, model, tmp_path, suffix):
    local = score(model, shards, tmp_path / f"local.{suffix}")
    report = score(model, shards, tmp_path / f"workers.{suffix}", engine=InProcess())
    assert (tmp_path / f"workers.{suffix}").read_bytes() == (tmp_path / f"local.{suffix}").read_bytes()
    assert (report.rows, report.positives, report.failures) == (local.rows, local.positives, local.failures)
    assert report.rows == N and report.failures == 4 and report.positives > 0


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_parts_are_the_table_cut_at_the_files(shards, model, tmp_path, monkeypatch, suffix, seen):
    if not seen:
        monkeypatch.setattr(distributed_scores, "_probe", lambda out: contextlib.nullcontext("/nowhere/at/all"))
    whole = score(model, shards, tmp_path / f"whole.{suffix}")
    local = score(model, shards, tmp_path / "local", parts=suffix)
    report = score(model, shards, f"{tmp_path}/workers/", parts=suffix, engine=InProcess())
    names = [f"{name}.{suffix}" for name in "abcd"]
    assert local.parts == report.parts == 4 and report.positives == local.positives == whole.positives
    for folder in ("local", "workers"):
        assert sorted(path.name for path in (tmp_path / folder).iterdir()) == names
    for name in names:
        assert (tmp_path / "workers" / name).read_bytes() == (tmp_path / "local" / name).read_bytes()
    tables = [read_scores(tmp_path / "local" / name) for name in names]
    for column, values in read_scores(tmp_path / f"whole.{suffix}").items():
        assert np.concatenate([table[column] for table in tables]).tolist() == values.tolist()


def test_a_parquet_table_does_not_depend_on_how_rows_are_divided(shards, model, tmp_path, monkeypatch):
    score(model, shards, tmp_path / "small.parquet")
    monkeypatch.setattr("pucache.cache.reader.BLOCK_BYTES", 1 << 23)
    score(model, shards, tmp_path / "large.parquet")
    assert (tmp_path / "small.parquet").read_bytes() == (tmp_path / "large.parquet").read_bytes()


@pytest.mark.parametrize("parts", [None, "csv"])
def test_a_shard_that_vanishes_or_is_damaged_is_named_and_leaves_no_output(shards, model, tmp_path, parts):
    out = tmp_path / ("out" if parts else "out.csv")
    cache = EmbeddingCache(shards)
    file = cache.files[3]
    with file.path.open("rb+") as stream:
        stream.seek(file.header.extents["embeddings"].row_offset(599 - 10))
        stream.write(b"\x7f")
    with pytest.raises(CacheError, match=rf"^{file.path} is damaged: embeddings are not as they were written"):
        score(model, cache, out, parts=parts, engine=InProcess())
    file.path.unlink()
    with pytest.raises(
        CacheError,
        match=rf"^the cache file d\.h5 vanished from the folder {shards} while",
    ):
        score(model, cache, out, parts=parts, engine=InProcess())
    assert not (tmp_path / "out.csv").exists() and not (tmp_path / "out" / "d.csv").exists()
    assert not list(tmp_path.rglob(".*"))


def test_a_model_of_another_encoder_is_refused(shards, tmp_path):
    other = PULinearClassifier(prior=0.3, method="linear", device="cpu").fit(X[:, :3], S)
    for parts in (None, "csv"):
        with pytest.raises(ModelError, match="the model expects 3-d rows"):
            score(other, shards, tmp_path / ("o" if parts else "o.csv"), parts=parts, engine=InProcess())


def test_parts_that_cannot_be_are_refused(shards, model, tmp_path):
    with pytest.raises(ValueError, match="parts are tables of csv or parquet, got 'json'"):
        score(model, shards, tmp_path / "out", parts="json")
    with pytest.raises(ValueError, match=r"out\.csv is the name of a table; name a folder as out"):
        score(model, shards, tmp_path / "out.csv", parts="csv")
    (tmp_path / "more").mkdir()
    write_cache(tmp_path / "more" / "a.h5", X[:3], ["x", "y", "z"])
    with pytest.raises(ValueError, match=r"two cache files are called a\.h5, and their parts would be one"):
        score(model, [shards, tmp_path / "more" / "a.h5"], tmp_path / "out", parts="csv")
    with pytest.raises(ValueError, match="parts are for caches, a table for each file, and images are given"):
        score(model, tmp_path, tmp_path / "out", parts="csv")
    assert not (tmp_path / "out").exists()


def test_a_table_is_named_by_its_rows_where_its_worker_dies():
    rows = RowRange(10, (Piece("shards/1.h5", "", 0, 5),))
    assert str(FileTable(rows, "scores/1.csv")) == "rows 10 to 14 (shards/1.h5)"


# --- tables of an earlier run ----------------------------------------------------------------------------


def tables(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_tables_of_shards_that_are_gone_are_refused_and_kept(shards, model, tmp_path, suffix):
    out = tmp_path / "out"
    score(model, shards, out, parts=suffix)
    before = tables(out)
    for name in "cd":
        (shards / f"{name}.h5").unlink()
    line = rf"^{out} holds tables of shards that are gone: c\.{suffix}, d\.{suffix}; whoever .* Remove them, or"
    with pytest.raises(OutputError, match=line):
        score(model, shards, out, parts=suffix)
    assert tables(out) == before
    for name in "cd":
        (out / f"{name}.{suffix}").unlink()
    assert score(model, shards, out, parts=suffix).parts == 2
    assert sorted(tables(out)) == [f"a.{suffix}", f"b.{suffix}"]


def test_jobs_may_write_the_tables_of_single_shards_to_one_folder(shards, model, tmp_path):
    score(model, shards, tmp_path / "whole", parts="csv")
    for name in "abcd":
        score(model, shards / f"{name}.h5", tmp_path / "out", parts="csv")
    assert tables(tmp_path / "out") == tables(tmp_path / "whole")
    (tmp_path / "out" / "notes.txt").write_text("kept")
    (tmp_path / "out" / "old.parquet").write_text("no table of this format")
    score(model, shards, tmp_path / "out", parts="csv")


def test_tables_of_shards_that_are_gone_are_refused_in_a_store(shards, model):
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    fs.put(f"{shards}/", "memory://shards/", recursive=True)
    score(model, EmbeddingCache("memory://shards"), "memory://out", parts="csv")
    score(model, "memory://shards/b.h5", "memory://out", parts="csv")
    fs.rm("memory://shards/d.h5")
    for cache in map(EmbeddingCache, ("memory://shards", "memory://shards/b.h5")):
        with pytest.raises(OutputError, match=r"^memory://out holds tables of shards that are gone: d\.csv;"):
            score(model, cache, "memory://out", parts="csv")


def test_the_url_of_a_folder_of_shards_is_a_cache_and_that_of_a_folder_of_images_is_none(shards, model, tmp_path):
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    fs.put(f"{shards}/", "memory://shards/", recursive=True)
    fs.pipe("/images/a.png", b"")
    score(model, shards, tmp_path / "local.csv")
    for url in ("memory://shards", "memory://shards/"):
        score(model, url, tmp_path / "remote.csv")
        assert (tmp_path / "remote.csv").read_bytes() == (tmp_path / "local.csv").read_bytes()
    for url in ("memory://images", "memory://missing", "memory://shards/a.tar"):
        assert not is_cache(url)
    fs.put(f"{shards}/", "memory://shards.v2/", recursive=True)
    assert is_cache("memory://shards.v2/")
