import json

import numpy as np
import pytest
from helpers.planted import QUICK, planted, write_cache

from pucache import Labels, PULabels, PULinearClassifier, train_pu
from pucache.errors import CacheError
from pucache.labels.labels import TWIN_COSINE
from pucache.labels.read_labels import open_labels
from pucache.neighbours.graph_file import graph_path
from pucache.training.cross_fitting import deal_folds
from pucache.training.training_set import TrainingRows

pytestmark = pytest.mark.usefixtures("one_thread")
X, S, _ = planted(120, labelled=30)
OPTIONS = {"prior": 0.3, "penalty": 1e-3, "device": "cpu"}
LINEAR = OPTIONS | {"method": "linear"}
KEYS = [f"{'found' if label else 'rest'}/{row:03}.png" for row, label in enumerate(S)]


@pytest.fixture
def cache(tmp_path):
    return write_cache(tmp_path / "cache.h5", X, KEYS)


def training_set(cache, labels, **settings):
    read = open_labels(cache, labels)
    return TrainingRows.of_cache(cache, read, **settings, device="cpu").labelled_by(read.only)


# --- joining -----------------------------------------------------------------------------------


def test_a_glob_a_file_and_labels_give_the_same_data_and_the_model_that_fit_gives(cache, tmp_path):
    (tmp_path / "found.txt").write_text("\n".join(key for key, label in zip(KEYS, S, strict=True) if label))
    s = np.array([key.startswith("found/") for key in cache.keys], np.int8)
    expected = PULinearClassifier(**LINEAR).fit(cache.X, s)
    for positives in ("found/**", tmp_path / "found.txt", s):
        data = training_set(cache, positives)
        assert data.cache is cache and (data.labels.s == s).all() and (data.twin == np.arange(120)).all()
        for model in (train_pu(cache, positives, **LINEAR), PULinearClassifier(**LINEAR).train(data)):
            assert (model.coef_ == expected.coef_).all() and model.figures_ == expected.figures_
            assert model.encoder_ == cache.encoder
            model.check_fits(cache)


@pytest.mark.parametrize(("value", "dtype"), [(np.nan, np.float16), (-np.inf, np.float32)])
def test_embeddings_that_are_not_finite_are_named(tmp_path, monkeypatch, value, dtype):
    monkeypatch.setattr("pucache.cache.reader.BLOCK_BYTES", 500)
    bad = X.astype(dtype)
    bad[[80, 81, 90, 100], 3] = value
    cache = write_cache(tmp_path / "cache.h5", bad)
    for ask in (training_set, train_pu):
        with pytest.raises(CacheError, match=r"cache.h5 holds NaN or infinite embeddings \('00080.png', '00081.png'"):
            ask(cache, "0000*.png")
    training_set(write_cache(tmp_path / "good.h5", X.astype(dtype)), "0000*.png")


# --- the graph of neighbours ---------------------------------------------------------------------


GRAPHS = [({}, True), ({"method": "linear"}, False), ({"solver": "sgd", "sgd_settings": QUICK}, False)]


@pytest.mark.parametrize(("parameters", "makes"), GRAPHS, ids=str)
def test_a_graph_is_made_beside_the_cache_where_neighbours_may_count(cache, parameters, makes):
    model = train_pu(cache, "found/**", **OPTIONS | parameters)
    assert graph_path(cache).exists() == makes == (model.neighbours_ is not None)


# --- groups and twins --------------------------------------------------------------------------


def test_groups_stay_in_one_fold_with_their_twins(tmp_path):
    rows = np.repeat(X, 3, axis=0) + np.random.default_rng(0).normal(scale=0.1, size=(360, X.shape[1]))
    rows[1] = rows[100]  # a twin in another group
    cache = write_cache(tmp_path / "cache.h5", rows.astype(np.float32))
    s, groups = np.repeat(S, 3), np.arange(360) // 3
    data = training_set(cache, Labels({"": PULabels.of(s)}, group=groups * 3))
    assert len(np.unique(data.together)) == 119 and data.together[1] == data.together[100] == data.together[101]
    assert len(np.unique(data.twin)) > 300, "twins stay what they are"
    for fold in deal_folds(s, 5, 0, data.together).T:
        assert all(len(np.unique(fold[data.together == one])) == 1 for one in np.unique(data.together))


@pytest.mark.parametrize("twins", [TWIN_COSINE, None], ids=["by rows", "by bytes"])
def test_twins_of_what_is_known_are_named_and_share_a_fold(tmp_path, twins):
    """Of labelled positives and of confirmed ones; what was reviewed is not found again."""
    (labelled, *_), (a, b, c, d, twin, *_) = np.flatnonzero(S), np.flatnonzero(S == 0)
    rows, digests = X.copy(), np.random.default_rng(0).integers(0, 256, (120, 32), np.uint8)
    values = rows if twins else digests
    values[[a, b, c]], values[twin] = values[labelled], values[d]
    rows[a] *= 2  # in the same direction
    reviewed = np.zeros(120, np.int8)
    reviewed[[a, b, d]] = 1, -1, 1
    cache = write_cache(tmp_path / "cache.h5", rows, digests=None if twins else digests)
    data = training_set(cache, PULabels(S, reviewed), twins=twins)
    assert data.twins_of_positives() == sorted(
        [(f"{c:05}.png", f"{min(labelled, a):05}.png"), (f"{twin:05}.png", f"{d:05}.png")]
    )
    for fold in deal_folds(S, 5, 0, data.together).T:
        assert len(set(fold[[a, b, c, labelled]])) == len(set(fold[[d, twin]])) == 1


def test_the_summary_of_parameters_of_numpy_is_plain_json(cache):
    given = {"prior": np.float32(0.25), "threshold": np.float32(0.5), "deploy_prior": np.float32(0.125)}
    stated = train_pu(cache, "found/**", **LINEAR | given).summary()
    assert json.loads(json.dumps(stated, allow_nan=False)) == stated
    assert (stated["prior"], stated["threshold"], stated["deploy_prior"]) == (0.25, 0.5, 0.125)
