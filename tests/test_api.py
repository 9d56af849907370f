"""The public API: one function per command, resolved on first use."""

import inspect
import pkgutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from helpers.command_line import save_images

import pucache
from pucache.cli.main import main
from pucache.labels.label_files import read_truth

pytestmark = pytest.mark.usefixtures("one_thread")


def test_no_module_or_package_has_the_name_of_a_public_name():
    modules = {module.name for module in pkgutil.iter_modules(pucache.__path__)}
    assert len(modules) > 10 and not modules & set(pucache.__all__)


def test_every_public_name_resolves_and_every_command_is_one():
    assert dir(pucache) == sorted(pucache.__all__)
    assert {name.replace("-", "_") for name in main.commands} <= set(pucache.__all__)
    assert all(getattr(pucache, name) is not None for name in pucache.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = pucache.nothing


def test_importing_pucache_imports_neither_torch_nor_h5py():
    code = "import pucache, sys; print(sorted({'torch', 'h5py', 'numpy', 'sklearn'} & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"


# --- every function, with paths and with opened objects ----------------------------------------

ENCODER = "timm:test_convnext"
TRAINING = {"prior": 0.2, "device": "cpu"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Red images among blue ones, the first eight labelled; true classes; weights of a small network."""
    folder, draw = tmp_path_factory.mktemp("api"), np.random.default_rng(0)
    save_images(folder / "photos/red", 16, (220, 40, 40), draw)
    save_images(folder / "photos/rest", 32, (40, 60, 200), draw)
    keys = [f"red/{number:03}.png" for number in range(16)]
    lines = [*(f"{key},1" for key in keys), *(f"rest/{number:03}.png,0" for number in range(32))]
    (folder / "truth.csv").write_text("\n".join(["key,label", *lines]) + "\n")
    (folder / "found.txt").write_text("\n".join(keys[:8]) + "\n")
    torch.manual_seed(0)
    safetensors.torch.save_file(timm.create_model("test_convnext").state_dict(), folder / "weights.safetensors")
    return folder


@pytest.fixture(scope="module")
def cache(folder):
    return pucache.embed(
        str(folder / "photos"),
        str(folder / "cache.h5"),
        ENCODER,
        weights=str(folder / "weights.safetensors"),
        device="cpu",
    )


@pytest.fixture(scope="module")
def model(folder, cache):
    model = pucache.train_pu(cache, folder / "found.txt", **TRAINING)
    model.save(folder / "model.safetensors")
    return model


@pytest.fixture(scope="module", params=["paths", "opened"])
def arguments(request, folder, cache, model):
    """The same arguments as strings and as opened objects."""
    if request.param == "paths":
        names = {"cache": "cache.h5", "labels": "found.txt", "model": "model.safetensors", "truth": "truth.csv"}
        return SimpleNamespace(**{name: str(folder / file) for name, file in names.items()})
    labels = pucache.Labels.read(cache, folder / "found.txt")
    return SimpleNamespace(cache=cache, labels=labels, model=model, truth=read_truth(folder / "truth.csv", cache.keys))


def test_embed_returns_the_opened_cache_and_takes_an_opened_source_and_encoder(folder, cache):
    assert isinstance(cache, pucache.EmbeddingCache) and len(cache) == 48
    encoder = pucache.load_encoder(ENCODER, weights=folder / "weights.safetensors", device="cpu", like=cache.encoder)
    again = pucache.embed(pucache.open_source(folder / "photos"), folder / "again.h5", encoder)
    assert list(again.keys) == list(cache.keys) and np.array_equal(again.X, cache.X)


def test_train_pu(arguments, model):
    trained = pucache.train_pu(arguments.cache, arguments.labels, **TRAINING)
    assert isinstance(trained, pucache.PULinearClassifier)
    np.testing.assert_array_equal(trained.coef_, model.coef_)


def test_the_options_of_train_pu_are_those_of_the_classifier_with_its_defaults():
    taken = {name: one.default for name, one in inspect.signature(pucache.train_pu).parameters.items()}
    options = inspect.signature(pucache.PULinearClassifier).parameters
    expected = {("seed" if name == "random_state" else name): one.default for name, one in options.items()}
    del expected["pos_label"]  # labels of a cache are not text
    assert taken.items() >= expected.items() and "parameters" not in taken


def test_retrieve_positives_and_write_review_page(arguments, tmp_path):
    ranking = pucache.retrieve_positives(arguments.cache, arguments.labels, arguments.model, k=5, device="cpu")
    assert len(ranking.keys) == 5 and all(key.startswith("red/") for key in ranking.keys)
    pucache.write_review_page(arguments.cache, ranking, arguments.labels, tmp_path / "review.html")
    assert ranking.keys[0] in (tmp_path / "review.html").read_text()


def test_score_and_evaluate(arguments, folder, tmp_path):
    report = pucache.score(arguments.model, arguments.cache, str(tmp_path / "scores.csv"))
    assert report.rows == 48
    metrics = pucache.evaluate(str(tmp_path / "scores.csv"), str(folder / "truth.csv"))
    assert metrics["auc"] > 0.9
