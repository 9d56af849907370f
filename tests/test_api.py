"""The public API: one function per command, resolved on first use."""

import inspect
import subprocess
import sys

import numpy as np
import pytest
from helpers.command_line import ENCODER, save_world

import pucache
from pucache.cli.main import main

pytestmark = pytest.mark.usefixtures("one_thread")


def test_every_public_name_resolves_and_every_command_is_one():
    assert dir(pucache) == sorted(pucache.__all__)
    assert {name.replace("-", "_") for name in main.commands} - {"labels"} <= set(pucache.__all__)
    assert all(getattr(pucache, name) is not None for name in pucache.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = pucache.nothing


def test_importing_pucache_imports_neither_torch_nor_h5py():
    code = "import pucache, sys; print(sorted({'torch', 'h5py', 'numpy', 'sklearn'} & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"


# --- every function, with paths and with opened objects ----------------------------------------

TRAINING = {"prior": 0.2, "device": "cpu"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_world(tmp_path_factory.mktemp("api"))


@pytest.fixture(scope="module")
def cache(folder):
    weights = str(folder / "weights.safetensors")
    encoder = {"encoder": f"timm:{ENCODER}", "weights": weights, "device": "cpu", "runtime": "torch"}
    return pucache.embed(str(folder / "images"), str(folder / "cache.h5"), **encoder)


def test_embed_returns_the_opened_cache_and_takes_an_opened_source_and_encoder(folder, cache):
    assert isinstance(cache, pucache.EmbeddingCache) and len(cache) == 60
    weights = folder / "weights.safetensors"
    encoder = pucache.load_encoder(f"timm:{ENCODER}", weights=weights, device="cpu", like=cache.encoder)
    again = pucache.embed(pucache.open_source(folder / "images"), folder / "again.h5", encoder)
    assert list(again.keys) == list(cache.keys) and np.array_equal(again.X, cache.X)


@pytest.mark.parametrize("opened", [False, True])
def test_the_functions_of_a_search_take_paths_and_opened_objects(folder, cache, tmp_path, opened):
    rows, labels = cache if opened else str(folder / "cache.h5"), str(folder / "positives.txt")
    labels = pucache.read_labels(cache, labels) if opened else labels
    model = pucache.train_pu(rows, labels, **TRAINING)
    assert isinstance(model, pucache.PULinearClassifier)
    model.save(tmp_path / "model.safetensors")
    model = model if opened else str(tmp_path / "model.safetensors")
    ranking = pucache.retrieve_positives(rows, labels, model, k=5, device="cpu")
    assert len(ranking.keys) == 5 and all(key.startswith("red/") for key in ranking.keys)
    pucache.write_review_page(rows, ranking, tmp_path / "review.html")
    assert ranking.keys[0] in (tmp_path / "review.html").read_text()
    assert pucache.score(model, rows, str(tmp_path / "scores.csv")).rows == 60
    assert pucache.evaluate(str(tmp_path / "scores.csv"), str(folder / "truth.csv"))["auc"] > 0.9


def test_the_options_of_train_pu_are_those_of_the_classifier_with_its_defaults():
    taken = {name: one.default for name, one in inspect.signature(pucache.train_pu).parameters.items()}
    options = inspect.signature(pucache.PULinearClassifier).parameters
    expected = {("seed" if name == "random_state" else name): one.default for name, one in options.items()}
    del expected["pos_label"]  # labels of a cache are not text
    assert taken.items() >= expected.items() and "parameters" not in taken
