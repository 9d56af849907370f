import json

import numpy as np
import pytest
from planted import QUICK, planted, write_cache

from pucache.cache import EmbeddingCache
from pucache.classifier import PULinearClassifier
from pucache.errors import CacheError, LabelError
from pucache.train import require_finite, summary, train_pu

X, S, _ = planted(200, labelled=30)
OPTIONS = {"prior": 0.3, "protocol": QUICK, "device": "cpu"}
KEYS = [f"{'found' if label else 'rest'}/{row:03}.png" for row, label in enumerate(S)]


@pytest.fixture
def cache(tmp_path):
    return write_cache(tmp_path / "cache.h5", X, KEYS)


def test_a_glob_a_file_and_labels_give_the_model_that_fit_gives(cache, tmp_path):
    (tmp_path / "found.txt").write_text("\n".join(key for key, label in zip(KEYS, S, strict=True) if label))
    s = np.array([key.startswith("found/") for key in cache.keys], np.int8)
    expected = PULinearClassifier(**OPTIONS).fit(cache.X, s)
    for positives in ("found/**", tmp_path / "found.txt", s):
        model = train_pu(cache, positives, **OPTIONS)
        assert (model.coef_ == expected.coef_).all() and model.estimates_ == expected.estimates_
        assert model.encoder_ == cache.encoder
        model.check_fits(cache)


def test_several_files_train_as_one(cache, tmp_path):
    cut = np.array([key < "rest/1" for key in KEYS])
    for name, rows in (("a", cut), ("b", ~cut)):
        write_cache(tmp_path / f"{name}.h5", X[rows], [key for key, taken in zip(KEYS, rows, strict=True) if taken])
    several = EmbeddingCache(tmp_path / "a.h5", tmp_path / "b.h5")
    assert (train_pu(several, "found/**", **OPTIONS).coef_ == train_pu(cache, "found/**", **OPTIONS).coef_).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_embeddings_that_are_not_finite_are_named(tmp_path, monkeypatch, value, dtype):
    monkeypatch.setattr("pucache.cache_file.BLOCK_BYTES", 1000)
    bad = X.astype(dtype)
    bad[[150, 151, 160, 170], 3] = value
    cache = write_cache(tmp_path / "cache.h5", bad)
    with pytest.raises(CacheError, match=r"cache.h5 holds NaN or infinite embeddings \('00150.png', '00151.png'"):
        train_pu(cache, "0000*.png", **OPTIONS)
    require_finite(write_cache(tmp_path / "good.h5", X.astype(dtype)))


@pytest.mark.parametrize(
    "positives, parameters, error, message",
    [
        ("absent/**", {}, LabelError, "no key matches"),
        ("**", {}, LabelError, "all 200 rows"),
        ("found/**", {"prior": 1.5}, ValueError, "prior must lie strictly between 0 and 1"),
        ("found/**", {"prior": None}, ValueError, "prior must lie strictly between 0 and 1"),
        (S[:-1], {}, ValueError, "inconsistent numbers of samples"),
        ("found/**", {"priors": 1}, TypeError, "priors"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(cache, positives, parameters, error, message):
    with pytest.raises(error, match=message):
        train_pu(cache, positives, **OPTIONS | parameters)


@pytest.mark.parametrize("number", [float, np.float32, np.float64])
def test_the_summary_is_plain_json_and_tells_what_was_done(cache, number):
    told = summary(train_pu(cache, "found/**", **OPTIONS | {"prior": number(0.25), "threshold": number(0.5)}))
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    estimates = told.pop("estimates")
    assert told == {
        "encoder": "imported:planted (6-d)",
        "labelled_positives": 30,
        "unlabelled": 170,
        "prior": 0.25,
        "target_prior": 0.5,
        "loss": "imbnnpu",
        "threshold": 0.5,
    }
    assert {"risk", "clamped", "pauc", "auc", "recall", "precision", "f1"} <= set(estimates)
