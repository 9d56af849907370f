"""The public API: one function per command, resolved on first use."""

import dataclasses
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
from pucache.pretraining.network import NetworkConfig
from pucache.pretraining.recipes import RECIPES

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


def test_estimate_prior(arguments):
    (estimate,) = pucache.estimate_prior(arguments.cache, arguments.labels, methods=["tilt"], device="cpu")
    assert estimate.prior is None and 0 <= estimate.low < estimate.high <= 1  # with so few labels, an interval alone


def test_sweep_priors(arguments):
    sweep = pucache.sweep_priors(
        arguments.cache,
        arguments.labels,
        pucache.PULinearClassifier(device="cpu"),
        truth=arguments.truth,
        priors=[0.1, 0.2],
        seeds=[0],
    )
    assert [row["prior"] for row in sweep.rows] == [0.1, 0.2] and sweep.rows[0]["true_auc"] > 0.8


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


def test_report(arguments, tmp_path):
    pucache.report(
        arguments.cache,
        arguments.labels,
        tmp_path / "report.html",
        model=arguments.model,
        truth=arguments.truth,
        device="cpu",
    )
    assert "</html>" in (tmp_path / "report.html").read_text()


def test_info_verify_and_pack(arguments, tmp_path):
    assert pucache.info(arguments.cache).rows == 48
    (verified,) = pucache.verify(arguments.cache)
    assert (verified.kind, verified.rows, verified.damage) == ("cache", 48, "")
    assert pucache.pack(arguments.cache, tmp_path / "packed.h5") == 48


@pytest.mark.parametrize("opened", [False, True])
def test_import_embeddings(tmp_path, opened):
    X, keys = np.eye(3, dtype=np.float32), ["a", "b", "c"]
    np.save(tmp_path / "X.npy", X)
    (tmp_path / "keys.txt").write_text("\n".join(keys))
    source, named = (X, keys) if opened else (str(tmp_path / "X.npy"), str(tmp_path / "keys.txt"))
    assert pucache.import_embeddings(source, str(tmp_path / "cache.h5"), keys=named).rows == 3
    np.testing.assert_array_equal(pucache.EmbeddingCache(tmp_path / "cache.h5").X, X)


@pytest.mark.parametrize("opened", [False, True])
def test_export(arguments, tmp_path, opened):
    cache = pucache.EmbeddingCache(arguments.cache) if opened else arguments.cache
    assert pucache.export(cache, str(tmp_path / "cache.parquet")).rows == 48
    assert pucache.import_embeddings(tmp_path / "cache.parquet", tmp_path / "again.h5").rows == 48


def test_pretrain(folder, tmp_path):
    source = folder / "photos"
    network = NetworkConfig(backbone="test_resnet", stem="small", size=16)
    recipe = dataclasses.replace(RECIPES["modern"], epochs=1, batch_size=16)
    report = pucache.pretrain(pucache.open_source(source), str(tmp_path / "run"), network, recipe, device="cpu")
    assert report.steps == report.total > 0
    encoder = pucache.load_encoder(str(tmp_path / "run"), device="cpu")
    assert len(pucache.embed(source, tmp_path / "own.h5", encoder)) == 48
