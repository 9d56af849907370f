"""Scores by tasks of whole shards: the table of one machine; tests/scaling/test_tasks.py runs real processes."""

import pytest
from helpers.planted import planted, write_cache
from helpers.shard_tasks import InProcess

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.errors import CacheError
from pucache.scaling.score_shards import score_shards
from pucache.scoring.score import score
from pucache.training.sklearn_classifier import PULinearClassifier

N, D = 1300, 4
X, S, _ = planted(N, d=D, labelled=40)


@pytest.fixture(scope="module")
def model():
    return PULinearClassifier(prior=0.3, method="linear", device="cpu").fit(X, S)


@pytest.fixture
def shards(tmp_path, monkeypatch):
    """Shards of 700, 0, 1 and 599 rows, read in blocks of 50."""
    monkeypatch.setattr("pucache.scaling.tasks.cluster_tasks", InProcess)
    monkeypatch.setattr("pucache.cache.reader.BLOCK_BYTES", 50 * D * 4)
    monkeypatch.setattr("pucache.storage.arrow._ROW_GROUP", 64)
    (tmp_path / "shards").mkdir()
    for name, rows in {"a": slice(0, 700), "b": slice(0, 0), "c": slice(700, 701), "d": slice(701, N)}.items():
        keys = [f'{row:04},"é".png' for row in range(N)[rows]]
        write_cache(tmp_path / "shards" / f"{name}.h5", X[rows], keys, failures={f"bad-{name}.png": "truncated"})
    return tmp_path / "shards"


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_the_table_is_that_of_one_machine(shards, model, tmp_path, suffix):
    local = score(model, shards, tmp_path / f"local.{suffix}")
    report = score_shards(model, shards, tmp_path / f"ray.{suffix}")
    assert (tmp_path / f"ray.{suffix}").read_bytes() == (tmp_path / f"local.{suffix}").read_bytes()
    figures = ("rows", "positives", "failures")
    assert [getattr(report, name) for name in figures] == [getattr(local, name) for name in figures]
    assert (report.rows, report.failures) == (N, 4) and report.positives > 0


def test_a_shard_that_vanishes_or_is_damaged_is_named_and_there_is_no_table(shards, model, tmp_path):
    out, cache = tmp_path / "out.csv", EmbeddingCache(shards)
    file = cache.files[3]
    with file.path.open("rb+") as stream:
        stream.seek(file.header.extents["embeddings"].row_offset(599 - 10))
        stream.write(b"\x7f")
    with pytest.raises(CacheError, match=rf"^{file.path} is damaged: embeddings are not as they were written"):
        score_shards(model, cache, out)
    file.path.unlink()
    with pytest.raises(CacheError, match=rf"^the cache file d\.h5 vanished from the folder {shards} while"):
        score_shards(model, cache, out)
    assert not out.exists()
    assert not list(tmp_path.rglob(".*"))
