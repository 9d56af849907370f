import shutil
import weakref

import numpy as np
import pytest
from helpers.files import damage
from helpers.planted import write_cache

import pucache
from pucache import EmbeddingCache, EncoderSpec, PULinearClassifier
from pucache.errors import ModelError
from pucache.training.concept_models import ConceptModels
from pucache.training.sklearn_classifier import linear_margins
from pucache.training.training_set import TrainingRows

pytestmark = pytest.mark.usefixtures("one_thread")
N, D = 600, 8


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A cache of three blobs, and positives of each."""
    draw = np.random.default_rng(0)
    y = draw.integers(0, 6, N)
    X = (draw.normal(size=(N, D)) + 3 * np.eye(6, D)[y]).astype(np.float32)
    cache = write_cache(tmp_path_factory.mktemp("world") / "cache.h5", X)
    keys = list(cache.keys)
    return cache, {name: [keys[row] for row in np.flatnonzero(y == kind)[:25]] for kind, name in enumerate("abc")}


@pytest.fixture(scope="module")
def models(world):
    cache, concepts = world
    several = concepts | {"gone": ["gone.png"], "one": concepts["a"][:1]}
    return pucache.train_pu(cache, pucache.read_labels(cache, several), device="cpu", penalty=0.01)


def test_each_head_is_that_of_its_training_alone(world, models):
    cache, concepts = world
    assert list(models) == ["a", "b", "c", "one"] and list(models.failures) == ["gone"]
    for name, keys in (("a", concepts["a"]), ("c", concepts["c"])):
        s = np.isin(list(cache.keys), keys).astype(np.int8)
        alone = pucache.train_pu(cache, s, device="cpu", penalty=0.01)
        assert (models[name].coef_ == alone.coef_).all() and models[name].threshold_ == alone.threshold_
        assert models[name].figures_ == alone.figures_


def test_a_sampled_cache_serves_all_concepts(world, monkeypatch):
    cache, concepts = world
    monkeypatch.setattr("pucache.labels.sample.SAMPLE_ROWS", 200)
    trained = pucache.train_pu(cache, pucache.read_labels(cache, concepts), device="cpu", method="linear", penalty=1e-3)
    assert {model.n_labelled_ for model in trained.values()} == {25}
    assert {model.unlabelled_sample_.rows for model in trained.values()} == {200}


def test_501_concepts_are_held_one_at_a_time_and_one_that_fails_stops_no_other(world):
    cache, _ = world
    keys, data_of = list(cache.keys), {}

    def work(name, data):
        assert sum(held() is not None for held in data_of.values()) <= 1, "only the one before, until it is replaced"
        data_of[name] = weakref.ref(data)
        if name == "007":
            raise ValueError("no luck")

    labels = pucache.read_labels(cache, {f"{number:03}": keys[number : number + 2] for number in range(501)})
    done = TrainingRows.of_cache(cache, labels, device="cpu").map(labels, work)
    assert done.failures == {"007": "no luck"} and len(data_of) == 501


def test_all_models_of_a_folder_score_in_one_pass(world, models, tmp_path, monkeypatch):
    passes, blocks = [], EmbeddingCache.blocks
    monkeypatch.setattr(
        EmbeddingCache, "blocks", lambda *given, **options: passes.append(1) or blocks(*given, **options)
    )
    pucache.score(models, world[0], tmp_path / "wide.csv")
    assert len(passes) == 1


def test_margins_of_a_row_by_one_head_depend_on_no_other_row_and_by_several_hardly():
    draw = np.random.default_rng(0)
    X, coef = draw.normal(size=(1003, 72)).astype(np.float16), draw.normal(size=(20, 72)).astype(np.float32)
    together = linear_margins(X, coef, np.zeros(20))
    for rows in ([0], [1002, 63, 64, 7], range(1, 1003)):
        alone = [linear_margins(X[list(rows)], head[None], np.zeros(1)) for head in coef]
        assert (alone[3] == linear_margins(X, coef[3:4], np.zeros(1))[list(rows)]).all()
        np.testing.assert_allclose(np.hstack(alone), together[list(rows)], atol=1e-4)


def other_encoder(folder, models):
    model = PULinearClassifier.load(folder / "a.safetensors")
    model.encoder_ = EncoderSpec.imported("other", D)
    model.save(folder / "other.safetensors")


def damaged(folder, models):
    damage(folder / "b.safetensors", (folder / "b.safetensors").stat().st_size // 2)


BAD = [
    (other_encoder, "two encoders: a is of .*planted.*, other of .*other"),
    (damaged, "b.safetensors"),
    (lambda folder, models: (folder / "x.safetensors").write_text("no model"), "x.safetensors"),
    (lambda folder, models: [file.unlink() for file in folder.iterdir()], "holds no models"),
    (lambda folder, models: shutil.copy(folder / "a.safetensors", folder / "A.safetensors"), "one file name"),
]


@pytest.mark.parametrize(("harm", "text"), BAD)
def test_a_folder_that_is_no_folder_of_models(models, tmp_path, harm, text):
    models.save(tmp_path)
    harm(tmp_path, models)
    with pytest.raises(ModelError, match=text):
        ConceptModels.load(tmp_path)
