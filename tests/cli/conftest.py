import json

import pytest
from helpers.command_line import SMALL, run, run_json, save_world


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
def here(tmp_path, monkeypatch):
    """An empty working directory, so that default outputs go there."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
