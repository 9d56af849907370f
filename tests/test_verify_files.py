"""The verb `verify`, on every kind of file."""

import numpy as np
import pytest
import torch
from helpers.files import damage
from helpers.learned import network, write_run
from helpers.planted import planted, write_cache

from pucache import EmbeddingCache, PULinearClassifier, verify
from pucache.pretraining.run_folder import CHECKPOINT, RunFolder


@pytest.fixture
def cache(tmp_path):
    X = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float16)
    return write_cache(tmp_path / "cache.h5", X).files[0].path


@pytest.fixture
def model(tmp_path):
    X, s, _ = planted()
    PULinearClassifier(prior=0.2, method="linear", penalty=0.01).fit(X, s).save(tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def summary(results):
    return [(result.path, result.kind, result.rows, result.damage) for result in results]


def test_caches_folders_of_them_and_models_are_verified_in_one_go(cache, model):
    whole_cache = (cache, "cache", 20, "")
    whole_model = (model, "model", PULinearClassifier.load(model).n_features_in_, "")
    assert summary(verify([cache, model, cache.parent])) == [whole_cache, whole_model, whole_cache]
    opened = EmbeddingCache(cache)
    for one_path in (cache, str(cache), cache.parent, opened, [opened]):
        assert summary(verify(one_path)) == [whole_cache]


@pytest.mark.parametrize("at", [100, 1000, -200])
def test_a_damaged_file_does_not_keep_the_others_from_being_verified(cache, model, run_folder, at):
    files = [cache, model, run_folder / "encoder.safetensors", run_folder / "checkpoints/0000000007.safetensors"]
    for path in files:
        damage(path, at)
    results = verify(files)
    assert [result.path for result in results] == files
    assert all(str(result.path) in result.damage for result in results)
    assert results[2].damage.endswith("run pretrain again") and results[3].damage.endswith(CHECKPOINT.remedy)


# --- what pretrain writes ------------------------------------------------------------------------


@pytest.fixture
def run_folder(tmp_path):
    """As after 7 steps of a training, the last checkpoints of which are of steps 5 and 7."""
    write_run(tmp_path / "run", steps=7)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    with RunFolder(tmp_path / "run") as run:
        for step in (5, 7):
            run.save(step, model, optimizer, {"losses": [0.5]})
    (tmp_path / "run/checkpoints/0000000009.damaged").write_text("set aside")
    (tmp_path / "run/log.csv").write_text("step\n")
    return tmp_path / "run"


def test_the_folder_of_a_run_is_its_encoder_and_its_checkpoints(run_folder, cache):
    checkpoints = [(run_folder / f"checkpoints/000000000{step}.safetensors", "checkpoint", step, "") for step in (5, 7)]
    expected = [(run_folder / "encoder.safetensors", "encoder", 7, ""), *checkpoints]
    for paths in ([run_folder], [path for path, *_ in expected]):
        assert summary(verify(paths)) == expected
    assert [result.kind for result in verify([cache, run_folder])] == ["cache", "encoder", "checkpoint", "checkpoint"]


@pytest.mark.parametrize("name", ["scores.csv", "ranking.npz"])
def test_what_is_no_file_of_pucache_is_said_to_be_none(tmp_path, name):
    (tmp_path / name).write_bytes(b"key,margin\n")
    (found,) = verify(tmp_path / name)
    assert found.damage.startswith(f"{tmp_path / name} is no file that verify checks; expected a cache, a model, or")
