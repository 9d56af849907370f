"""A folder of shards against the packed file: whatever takes a cache gives the same, and copies no matrix.

Shards that were cut by range hold the rows in the order of the packed file, so results are equal to the last bit.
Shards that were dealt by hash hold them in another order: results agree as those of another order of rows do.
"""

import numpy as np
import pytest
from helpers.neighbours import with_neighbours
from helpers.planted import QUICK, planted, write_cache

import pucache
from pucache import EmbeddingCache, PULinearClassifier
from pucache.cache import embedding_cache
from pucache.labels.read_labels import open_labels
from pucache.neighbours.whitening import Whitening
from pucache.training.training_set import TrainingRows

pytestmark = pytest.mark.usefixtures("one_thread")
N, D = 700, 12
X, S, Y = planted(N, D, labelled=60, apart=0.8)
X = X.astype(np.float16)
X[200], X[650] = X[10], X[11]  # twins in different shards
KEYS = [f"{row:05}.png" for row in range(N)]
DIGESTS = np.random.default_rng(0).integers(0, 256, (N, 32), np.uint8)
DIGESTS[690] = DIGESTS[5]
FAST = {"device": "cpu", "penalty": 1e-3}


def write_shards(folder, parts):
    folder.mkdir()
    for number, rows in enumerate(parts):
        write_cache(folder / f"{number}.h5", X[rows], [KEYS[row] for row in rows], digests=DIGESTS[rows])
    return EmbeddingCache(folder)


@pytest.fixture(autouse=True)
def streaming(monkeypatch):
    """Small blocks, nothing kept, and no matrix of all rows in memory."""
    monkeypatch.setattr("pucache.cache.reader.BLOCK_BYTES", 1000)
    monkeypatch.setattr("pucache.storage.rows.LARGE_MAP_BYTES", 0)
    monkeypatch.setattr("pucache.storage.rows._BLOCK_VALUES", 0)  # blocks of 256 rows
    monkeypatch.setattr("pucache.heads.design_matrix.CPU_RESIDENT", 0)
    monkeypatch.setattr("pucache.labels.near_duplicates._BLOCK_VALUES", 1000)
    monkeypatch.setattr(embedding_cache, "_read_only_copy", lambda rows: pytest.fail("a matrix was copied"))


@pytest.fixture
def packed(tmp_path):
    return write_cache(tmp_path / "packed.h5", X, KEYS, digests=DIGESTS)


@pytest.fixture
def ranges(tmp_path):
    """The rows of the packed file in its order, in shards of many sizes."""
    return write_shards(tmp_path / "ranges", np.split(np.arange(N), [1, 1, 130, 131, 400, 512]))


# --- rows in the order of the packed file ---------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"method": "linear", "solver": "sgd"}, {"method": "linear", "loss": "nnpu"}])
def test_training_gives_the_same_model(packed, ranges, tmp_path, options):
    models = []
    for number, cache in enumerate((packed, ranges)):
        model = PULinearClassifier(**FAST | options)
        if "solver" in options:
            model.sgd_settings = QUICK
        labels = open_labels(cache, S)
        data = TrainingRows.of_cache(cache, labels, device="cpu").labelled_by(labels.only)
        model.train(data)
        model.save(tmp_path / f"{number}.safetensors")
        models.append((data.twin.tolist(), model.held_out_margins_, (tmp_path / f"{number}.safetensors").read_bytes()))
    (group, margins, content), (other_group, other_margins, other_content) = models
    assert group == other_group and len(set(group)) == N - 3
    np.testing.assert_array_equal(margins, other_margins)
    assert content == other_content


def test_scores_and_retrieval_by_a_model_are_the_same(packed, ranges, tmp_path):
    model = with_neighbours(pucache.train_pu(packed, S, device="cpu", method="linear", penalty=1e-3), 0.5)
    for cache in (packed, ranges):
        pucache.score(model, cache, tmp_path / f"{len(cache.files)}.csv")
        pucache.score(model, cache, tmp_path / f"{len(cache.files)}n.csv", neighbours=cache)
    for kind in ("", "n"):
        assert (tmp_path / f"1{kind}.csv").read_bytes() == (tmp_path / f"{len(ranges.files)}{kind}.csv").read_bytes()
    one, other = (pucache.retrieve_positives(cache, S, model, k=40, diverse=0.3) for cache in (packed, ranges))
    assert one.keys == other.keys and np.array_equal(one.scores, other.scores)


# --- rows in another order ------------------------------------------------------------------------


def test_rows_dealt_by_hash_give_the_same_up_to_rounding(packed, tmp_path):
    home = np.random.default_rng(1).integers(5, size=N)
    dealt = write_shards(tmp_path / "dealt", [np.flatnonzero(home == number) for number in range(5)])
    one, other = Whitening.estimate(packed), Whitening.estimate(dealt)
    np.testing.assert_allclose(one.mean, other.mean, atol=1e-6)
    piles = (packed, S), (dealt, S[[int(key[:5]) for key in dealt.keys]])
    ranked = [pucache.retrieve_positives(cache, s, k=40, by="topk", device="cpu") for cache, s in piles]
    assert ranked[0].keys == ranked[1].keys
    np.testing.assert_allclose(ranked[0].scores, ranked[1].scores, rtol=1e-4)
