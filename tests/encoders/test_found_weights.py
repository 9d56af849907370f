import os
import shutil

import pytest
import torch
from helpers.authors import network
from helpers.command_line import run
from helpers.learned import write_run
from helpers.tiny import save_image

import pucache
from pucache.encoders.encoder import load_encoder
from pucache.encoders.found_weights import VARIABLE, find_weights

pytestmark = pytest.mark.usefixtures("one_thread")
NAME = "timm:test_vit"
PLAIN = {"device": "cpu", "precision": "fp32", "runtime": "torch"}


@pytest.fixture(autouse=True)
def working_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PUCACHE_WORK", str(tmp_path / "work"))


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "given" / "vit.pth"
    path.parent.mkdir()
    torch.save(network("test_vit").state_dict(), path)
    return path


@pytest.fixture
def spec(weights):
    return load_encoder(NAME, weights=weights, **PLAIN).spec


@pytest.fixture
def shelf(tmp_path, monkeypatch, weights):
    """The folder of weights, with the right ones under another name, among others."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    (folder / "a.txt").write_text("no weights")
    other = {name: tensor + 1 for name, tensor in torch.load(weights).items()}
    torch.save(other, folder / "b.pth")
    shutil.copy(weights, folder / "c.pth")
    write_run(folder / "d")
    monkeypatch.setenv(VARIABLE, str(folder))
    return folder


def test_weights_lie_where_the_cache_names_them(weights, spec):
    assert spec.origin == str(weights) and find_weights(spec) == str(weights)
    assert load_encoder(NAME, like=spec, **PLAIN).spec == spec


def test_weights_that_moved_are_found_by_their_digest(weights, spec, shelf):
    weights.unlink()
    assert find_weights(spec) == str(shelf / "c.pth")
    assert load_encoder(NAME, like=spec, **PLAIN).spec == spec


def test_weights_that_were_replaced_are_not_taken_for_the_right_ones(weights, spec, shelf):
    shutil.copy(shelf / "b.pth", weights)
    assert find_weights(spec) == str(shelf / "c.pth")


def test_digests_are_remembered_by_path_size_and_time(weights, spec, shelf, monkeypatch):
    monkeypatch.setattr("pucache.encoders.encoder.load_encoder", lambda *_, **__: pytest.fail("an encoder was loaded"))
    assert find_weights(spec) == str(weights), "which was loaded when the cache was made"
    monkeypatch.undo()
    monkeypatch.setenv(VARIABLE, str(shelf))
    monkeypatch.setenv("PUCACHE_WORK", str(shelf.parent / "work"))
    weights.unlink()
    find_weights(spec)
    monkeypatch.setattr("pucache.encoders.encoder.load_encoder", lambda *_, **__: pytest.fail("an encoder was loaded"))
    assert find_weights(spec) == str(shelf / "c.pth")
    monkeypatch.undo()
    monkeypatch.setenv(VARIABLE, str(shelf))
    monkeypatch.setenv("PUCACHE_WORK", str(shelf.parent / "work"))
    shutil.copy(shelf / "b.pth", shelf / "c.pth")
    os.utime(shelf / "c.pth", (1, 1))
    assert find_weights(spec) is None


def test_a_pretrained_encoder_is_found_too(shelf):
    spec = load_encoder(shelf / "d", **PLAIN).spec
    moved = shelf / "moved"
    (shelf / "d").rename(moved)
    assert find_weights(spec) == str(moved) and load_encoder(spec.name, like=spec, **PLAIN).spec == spec


def test_a_model_scores_new_images_without_being_told_where_its_weights_lie(tmp_path, weights, shelf, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in range(40):
        save_image(tmp_path / "photos" / f"{number:03}.png", number)
    run(f"embed photos cache.h5 --encoder {NAME} --weights {weights} --device cpu")
    (tmp_path / "found.txt").write_text("\n".join(pucache.EmbeddingCache("cache.h5").keys[:10]))
    run("train-pu cache.h5 --positives found.txt --out m.safetensors")
    weights.unlink()
    run("score m.safetensors photos --out scores.csv")
    assert (tmp_path / "scores.csv").read_text().count("\n") == 41
