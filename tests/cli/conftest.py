import json
import shutil

import pytest
from helpers.command_line import SMALL, run, run_json, save_world
from helpers.neighbours import with_neighbours

from pucache import PULinearClassifier, report


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """Red images hidden among blue ones, their cache, a model, and what each command said of them."""
    return save_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="session")
def embedding(world):
    """The command that wrote cache.h5, with every line of its progress."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pucache.cli.progress.EVERY_SECONDS", 0.0)
        return run("embed {w}/images {w}/cache.h5 --json" + SMALL, w=world)


@pytest.fixture(scope="session")
def embedded(embedding):
    return json.loads(embedding.stdout)


@pytest.fixture(scope="session")
def trained(world, embedded):
    command = "train-pu {w}/cache.h5 --positives {w}/positives.txt --prior 0.15 --penalty 0.01"
    return run_json(command + " --out {w}/model.safetensors", w=world)


@pytest.fixture
def small_maps(monkeypatch):
    """Reports with maps of few images, which take most of their time."""
    monkeypatch.setitem(report.__kwdefaults__, "sample", 60)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, so that default outputs go there."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def indexed(world, trained, here):
    """A copy of the world's cache and models, so that a graph beside it stays here."""
    shutil.copytree(world, here / "w", ignore=shutil.ignore_patterns("images", "bad", "cache.h5.*"))
    model = PULinearClassifier.load(world / "model.safetensors")
    with_neighbours(model, 2.0).save(here / "w" / "with_neighbours.safetensors")
    return here / "w"
