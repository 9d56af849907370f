"""The verb `verify`, on every kind of file."""

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from helpers.learned import network, write_run
from helpers.planted import planted, write_cache
from helpers.sealing import edited, reseal_model

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.cli.main import main
from pucache.errors import CacheError
from pucache.pretraining.run_folder import CHECKPOINT, RunFolder
from pucache.storage import tensor_file
from pucache.training.sklearn_classifier import PULinearClassifier
from pucache.verify_files import verify


@pytest.fixture
def cache(tmp_path):
    X = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float16)
    return write_cache(tmp_path / "cache.h5", X).files[0].path


@pytest.fixture
def model(tmp_path):
    X, s, _ = planted()
    PULinearClassifier(prior=0.2).fit(X, s).save(tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def damage_of(path):
    (result,) = verify([path])
    assert "\n" not in result.damage
    return result.damage


def summary(results):
    return [(result.path, result.kind, result.rows, result.damage) for result in results]


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_caches_folders_of_them_and_models_are_verified_in_one_go(cache, model):
    whole_cache = (cache, "cache", 20, "")
    whole_model = (model, "model", PULinearClassifier.load(model).n_features_in_, "")
    assert summary(verify([cache, model, cache.parent])) == [whole_cache, whole_model, whole_cache]
    opened = EmbeddingCache(cache)
    for one_path in (cache, str(cache), cache.parent, opened, [opened]):
        assert summary(verify(one_path)) == [whole_cache]


@pytest.mark.parametrize("at", [9, 1000, -200])
def test_a_damaged_file_does_not_keep_the_others_from_being_verified(cache, model, at):
    flip(cache, at)
    flip(model, at)
    results = verify([cache, model])
    assert all(str(result.path) in result.damage for result in results) and len(results) == 2


@pytest.mark.parametrize("name", ["gone.h5", "gone.safetensors", "notes.txt"])
def test_a_missing_file_and_one_of_another_program_are_reported_by_name(tmp_path, name):
    (tmp_path / "notes.txt").write_text("key\n")
    assert name in damage_of(tmp_path / name)


def test_a_cache_with_keys_out_of_order_under_a_right_seal_is_found(cache):
    with edited(cache) as file:
        file["keys"][:] = file["keys"][:][::-1]
    assert "keys are not sorted and unique" in damage_of(cache)


def test_an_invalid_model_with_valid_checksums_is_found(model):
    data = model.read_bytes()
    model.write_bytes(data.replace(b"parameters", b"parametres"))
    reseal_model(model)
    assert "holds no model of pucache" in damage_of(model)


def test_nothing_to_verify_is_an_error(tmp_path):
    with pytest.raises(CacheError, match="no cache in folder"):
        verify([tmp_path])


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
    files = [
        run_folder / name
        for name in ("encoder.safetensors", *(f"checkpoints/000000000{n}.safetensors" for n in (5, 7)))
    ]
    for paths in ([run_folder], files):
        assert summary(verify(paths)) == [
            (files[0], "encoder", 7, ""),
            (files[1], "checkpoint", 5, ""),
            (files[2], "checkpoint", 7, ""),
        ]
    assert [result.kind for result in verify([cache, run_folder])] == ["cache", "encoder", "checkpoint", "checkpoint"]


@pytest.mark.parametrize(
    ("name", "kind", "remedy"),
    [
        ("encoder.safetensors", "encoder", "run pretrain again"),
        ("checkpoints/0000000007.safetensors", "checkpoint", CHECKPOINT.remedy),
    ],
)
@pytest.mark.parametrize("at", [100, 5000, -1])
def test_a_changed_byte_in_a_file_of_pretrain_is_found(run_folder, name, kind, remedy, at):
    flip(run_folder / name, at)
    damaged = [file for file in verify([run_folder]) if file.damage]
    assert [(file.path, file.kind) for file in damaged] == [(run_folder / name, kind)]
    assert str(run_folder / name) in damaged[0].damage and damaged[0].damage.endswith(remedy)


def test_a_cut_encoder_is_still_called_one(run_folder):
    path = run_folder / "encoder.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    assert [(file.kind, bool(file.damage)) for file in verify([path])] == [("encoder", True)]


def test_invalid_descriptions_with_valid_checksums_are_found(run_folder):
    write_run(run_folder, size=5000)
    assert "does not describe an encoder" in damage_of(run_folder / "encoder.safetensors")
    path = run_folder / "checkpoints/0000000007.safetensors"
    for step in ({}, {"step": "7"}, {"step": -1}, {"step": True}):
        tensor_file.write(path, CHECKPOINT, {}, step)
        assert "does not say after which step it was written" in damage_of(path)


def test_a_file_of_unknown_kind_is_reported_as_no_model(tmp_path):
    kind = tensor_file.Kind(format="pucache-news", version=1, noun="thing", error=CacheError, expected="", remedy="")
    tensor_file.write(tmp_path / "new", kind, {}, {})
    assert "is a safetensors file but not a pucache model" in damage_of(tmp_path / "new")


@pytest.mark.slow
def test_the_command_prints_the_kind_of_each_file(run_folder, cache):
    ended = CliRunner().invoke(main, ["verify", str(cache), str(run_folder)])
    assert ended.exit_code == 0 and ended.stdout.splitlines() == [
        f"{cache}: 20 rows, whole",
        f"{run_folder}/encoder.safetensors: an encoder after 7 steps, whole",
        f"{run_folder}/checkpoints/0000000005.safetensors: a checkpoint after 5 steps, whole",
        f"{run_folder}/checkpoints/0000000007.safetensors: a checkpoint after 7 steps, whole",
    ]
