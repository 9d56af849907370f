"""Rankings by tasks of whole shards: that of one machine; tests/scaling/test_tasks.py runs real processes."""

import numpy as np
import pytest
from helpers.neighbours import with_neighbours
from helpers.planted import planted, write_cache
from helpers.shard_tasks import InProcess

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.errors import CacheError
from pucache.labels.labels import Labels
from pucache.retrieval.retrieve import retrieve_positives
from pucache.scaling.rank_shards import rank_shards
from pucache.training.sklearn_classifier import PULinearClassifier

N, D = 900, 6
X, S, Y = planted(N, d=D, labelled=40)


@pytest.fixture(scope="module")
def model():
    return PULinearClassifier(prior=0.3, method="linear", device="cpu").fit(X, S)


@pytest.fixture(autouse=True)
def in_process(monkeypatch):
    monkeypatch.setattr("pucache.scaling.tasks.cluster_tasks", InProcess)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Shards that begin amid blocks of 40 rows; with copies of positives."""
    monkeypatch.setattr("pucache.cache.reader.BLOCK_BYTES", 40 * D * 4)
    rows = X.copy()
    rows[np.flatnonzero(S == 0)[:60:2]] = rows[np.flatnonzero(S == 1)[:30]]
    for number, part in enumerate(np.array_split(np.arange(N), [7, 15, 15, 400])):
        write_cache(tmp_path / f"{number}.h5", rows[part], [f"{row:04}.png" for row in part])
    return EmbeddingCache(tmp_path)


def labels():
    reviewed = np.zeros(N, np.int8)
    unlabelled = np.flatnonzero(S == 0)
    reviewed[unlabelled[-20:]], reviewed[unlabelled[-40:-20]] = -1, 1
    return Labels(S, reviewed)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"k": None, "similarity": "topk"},
        {"k": 30, "similarity": "topk", "twins": None},
        {"k": 20, "diverse": 0.5},
        {"k": 50, "by": "classifier"},
        {"k": 10, "by": "classifier", "diverse": 0.3},
    ],
    ids=str,
)
def test_the_ranking_is_that_of_one_machine(cache, model, options):
    chosen = model if "by" in options else None
    local = retrieve_positives(cache, labels(), chosen, device="cpu", **options)
    ranking = rank_shards(cache, labels(), chosen, **options)
    assert ranking.rows.tolist() == local.rows.tolist() and ranking.keys == local.keys
    assert ranking.scores.tobytes() == local.scores.tobytes() and ranking.scores.dtype == np.float32
    assert (ranking.posterior is None) == (local.posterior is None)
    if local.posterior is not None:
        assert ranking.posterior.tobytes() == local.posterior.tobytes()
    for name in ("scorer", "note", "search", "search_by"):
        assert getattr(ranking, name) == getattr(local, name)


def test_a_model_that_ranks_by_neighbours_is_refused(cache, model):
    with pytest.raises(ValueError, match="neighbours are searched on one machine, not by the engine ray; rank by cl"):
        rank_shards(cache, S, with_neighbours(model, 2.0))


@pytest.mark.parametrize("dataset", ["embeddings", "digests", "keys"])
@pytest.mark.parametrize("by", ["similarity", "classifier"])
def test_damage_is_named(cache, model, dataset, by):
    file = cache.files[-1]
    with file.path.open("rb+") as stream:
        stream.seek(file.header.extents[dataset].row_offset(len(file) - 1) + 1)
        stream.write(b"\x01")
    with pytest.raises(CacheError, match=rf"^{file.path} is damaged: {dataset} are not as they were written"):
        rank_shards(cache, S, model if by == "classifier" else None)
