"""The folder of ``score --parts``: a table for each cache file, and none of shards that are gone."""

import numpy as np
import pytest
from helpers.planted import planted, write_cache

from pucache.errors import OutputError
from pucache.scoring.score import score
from pucache.scoring.score_tables import read_scores
from pucache.training.sklearn_classifier import PULinearClassifier

N, D = 300, 4
X, S, _ = planted(N, d=D, labelled=40)


@pytest.fixture(scope="module")
def model():
    return PULinearClassifier(prior=0.3, method="linear", device="cpu").fit(X, S)


@pytest.fixture
def shards(tmp_path):
    """Shards of 200, 0, 1 and 99 rows."""
    (tmp_path / "shards").mkdir()
    for name, rows in {"a": slice(0, 200), "b": slice(0, 0), "c": slice(200, 201), "d": slice(201, N)}.items():
        write_cache(tmp_path / "shards" / f"{name}.h5", X[rows], [f"{row:04}.png" for row in range(N)[rows]])
    return tmp_path / "shards"


def tables(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_parts_are_the_table_cut_at_the_files(shards, model, tmp_path, suffix):
    whole = score(model, shards, tmp_path / f"whole.{suffix}")
    report = score(model, shards, f"{tmp_path}/parts/", parts=suffix)
    assert report.parts == 4 and report.positives == whole.positives > 0
    assert sorted(tables(tmp_path / "parts")) == [f"{name}.{suffix}" for name in "abcd"]
    parts = [read_scores(tmp_path / "parts" / f"{name}.{suffix}") for name in "abcd"]
    for column, values in read_scores(tmp_path / f"whole.{suffix}").items():
        assert np.concatenate([table[column] for table in parts]).tolist() == values.tolist()


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


def test_jobs_may_write_the_tables_of_single_shards_to_one_folder(shards, model, tmp_path):
    score(model, shards, tmp_path / "whole", parts="csv")
    for name in "abcd":
        score(model, shards / f"{name}.h5", tmp_path / "out", parts="csv")
    assert tables(tmp_path / "out") == tables(tmp_path / "whole")
    (tmp_path / "out" / "notes.txt").write_text("kept")
    (tmp_path / "out" / "old.parquet").write_text("no table of this format")
    score(model, shards, tmp_path / "out", parts="csv")
