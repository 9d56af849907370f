import shutil
import weakref

import numpy as np
import pytest
from helpers.planted import write_cache

import pucache
from pucache import EncoderSpec, PULinearClassifier
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
    return cache, {name: [keys[row] for row in np.flatnonzero(y == kind)[:25]] for kind, name in enumerate("ab")}


@pytest.fixture(scope="module")
def models(world):
    cache, concepts = world
    labels = pucache.read_labels(cache, concepts)
    return pucache.train_pu(cache, labels, device="cpu", penalty=0.01, method="linear")


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


def test_margins_of_a_row_by_one_head_depend_on_no_other_row_and_by_several_hardly():
    draw = np.random.default_rng(0)
    X, coef = draw.normal(size=(1003, 72)).astype(np.float16), draw.normal(size=(20, 72)).astype(np.float32)
    together = linear_margins(X, coef, np.zeros(20))
    for rows in ([0], [1002, 63, 64, 7], range(1, 1003)):
        alone = [linear_margins(X[list(rows)], head[None], np.zeros(1)) for head in coef]
        assert (alone[3] == linear_margins(X, coef[3:4], np.zeros(1))[list(rows)]).all()
        np.testing.assert_allclose(np.hstack(alone), together[list(rows)], atol=1e-4)


def other_encoder(folder):
    model = PULinearClassifier.load(folder / "a.safetensors")
    model.encoder_ = EncoderSpec.imported("other", D)
    model.save(folder / "other.safetensors")


BAD = [
    (other_encoder, "two encoders: a is of .*planted.*, other of .*other"),
    (lambda folder: (folder / "x.safetensors").write_text("no model"), "x.safetensors"),
    (lambda folder: shutil.copy(folder / "a.safetensors", folder / "A.safetensors"), "one file name"),
]


@pytest.mark.parametrize(("harm", "text"), BAD)
def test_a_folder_that_is_no_folder_of_models(models, tmp_path, harm, text):
    models.save(tmp_path)
    harm(tmp_path)
    with pytest.raises(ModelError, match=text):
        ConceptModels.load(tmp_path)
