import json

import numpy as np
import pytest
from helpers.planted import QUICK, planted, write_cache

from pucache import (
    Labels,
    PULabels,
    PULinearClassifier,
    read_labels,
    train_pu,
)
from pucache.errors import CacheError
from pucache.labels.read_labels import open_labels
from pucache.neighbours import graph
from pucache.neighbours.graph_file import graph_path
from pucache.training.cross_fitting import deal_folds
from pucache.training.model_summary import summary
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


def test_groups_stay_in_one_fold_with_their_twins_and_count_as_one_label(tmp_path):
    rows = np.repeat(X, 3, axis=0) + np.random.default_rng(0).normal(scale=0.1, size=(360, X.shape[1]))
    rows[1] = rows[100]  # a twin in another group
    cache = write_cache(tmp_path / "cache.h5", rows.astype(np.float32))
    s, groups = np.repeat(S, 3), np.arange(360) // 3
    data = training_set(cache, Labels({"": PULabels.of(s)}, group=groups * 3))
    assert len(np.unique(data.together)) == 119 and data.together[1] == data.together[100] == data.together[101]
    assert len(np.unique(data.twin)) > 300, "twins stay what they are"
    for fold in deal_folds(s, 5, 0, data.together).T:
        assert all(len(np.unique(fold[data.together == one])) == 1 for one in np.unique(data.together))
    grouped, alone = (train_pu(cache, read_labels(cache, s, groups=one), device="cpu") for one in (groups, "none"))
    assert grouped.figures_.labels.labels < alone.figures_.labels.labels
    assert grouped.figures_.design_effect > 1.5 and alone.figures_.design_effect is None
    assert np.ptp(grouped.figures_["recall"].interval) > np.ptp(alone.figures_["recall"].interval)
    assert summary(grouped)["groups"] == grouped.n_groups_ == 119 and "groups" not in summary(alone)
    path = tmp_path / "m.safetensors"
    grouped.save(path)
    assert PULinearClassifier.load(path).n_groups_ == 119
    alone.save(path)
    assert PULinearClassifier.load(path).n_groups_ is None


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


def test_copies_of_labelled_images_are_found_by_their_bytes_and_share_a_fold(tmp_path):
    digests = np.random.default_rng(0).integers(0, 256, (120, 32), np.uint8)
    copy, labelled = np.flatnonzero(S == 0)[:3], np.flatnonzero(S)[:3]
    digests[copy] = digests[labelled]
    data = training_set(write_cache(tmp_path / "cache.h5", X, digests=digests), S, twins=None)
    pairs = [(f"{a:05}.png", f"{b:05}.png") for a, b in zip(copy, labelled, strict=True)]
    assert data.twins_of_positives() == pairs and len(np.unique(data.twin)) == 117
    for fold in deal_folds(S, 5, 0, data.together).T:
        assert (fold[copy] == fold[labelled]).all()


# --- the graph of neighbours ---------------------------------------------------------------------


def test_the_graph_is_kept_beside_the_cache_and_used_again(cache, monkeypatch):
    first = train_pu(cache, "found/**", **OPTIONS)
    kept = graph_path(cache)
    written = kept.read_bytes()
    assert kept.is_file() and first.neighbours_.search == "exact search"
    monkeypatch.setattr(graph, "neighbour_graph", None)  # a search would fail
    again = train_pu(cache, "found/**", **OPTIONS)
    assert (again.coef_ == first.coef_).all() and again.neighbours_ == first.neighbours_
    assert kept.read_bytes() == written


@pytest.mark.parametrize("parameters", [{"method": "linear"}, {"solver": "sgd", "sgd_settings": QUICK}], ids=str)
def test_the_method_linear_makes_no_graph(cache, parameters):
    train_pu(cache, "found/**", **OPTIONS | parameters)
    assert not graph_path(cache).exists()


# --- a review ----------------------------------------------------------------------------------


def test_twins_of_what_was_reviewed_are_not_found_again(tmp_path):
    rows = X.copy()
    a, b, c, d, twin = np.flatnonzero(S == 0)[:5]
    labelled = np.flatnonzero(S)[0]
    rows[a] = rows[b] = rows[c] = 2 * rows[labelled]
    reviewed = np.zeros(120, np.int8)
    reviewed[[a, b, d]] = 1, -1, 1
    rows[twin] = rows[d]
    found = training_set(write_cache(tmp_path / "cache.h5", rows), PULabels(S, reviewed)).twins_of_positives()
    assert found == sorted([(f"{c:05}.png", f"{min(labelled, a):05}.png"), (f"{twin:05}.png", f"{d:05}.png")])


def test_the_summary_is_plain_json_and_tells_what_was_done(cache):
    given = {"prior": np.float32(0.25), "threshold": np.float32(0.5), "deploy_prior": np.float32(0.125)}
    stated = summary(train_pu(cache, "found/**", **OPTIONS | given))
    assert json.loads(json.dumps(stated, allow_nan=False)) == stated
    estimates = stated.pop("estimates")
    assert stated == {
        "encoder": "imported:planted (6-d)",
        "labelled_positives": 30,
        "unlabelled": 90,
        "unlabelled_sample": None,
        "confirmed_positives": 0,
        "known_negatives": 0,
        "prior": 0.25,
        "prior_estimate": None,
        "penalty": 1e-3,
        "threshold": 0.5,
        "threshold_rule": "0.5",
        "loss": "imbupu",
        "target_prior": 0.5,
        "solver": "batch",
        "deploy_prior": 0.125,
        "note": "",
    }
    assert {"risk", "clamped", "pauc", "auc", "recall", "precision", "f1"} <= set(estimates)
