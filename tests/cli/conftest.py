import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from helpers.command_line import BROKEN, ENCODER, HIDDEN, LABELLED, REST, SMALL, run_json, save_images


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """Red images hidden among blue ones, their cache, a model, and what each command said of them."""
    world = tmp_path_factory.mktemp("world")
    draw = np.random.default_rng(0)
    save_images(world / "images" / "red", LABELLED + HIDDEN, (220, 40, 40), draw)
    save_images(world / "images" / "rest", REST, (40, 60, 200), draw)
    (world / "images" / BROKEN).write_bytes(b"no image")
    (world / "images" / "notes.docx").write_bytes(b"")
    torch.manual_seed(0)
    safetensors.torch.save_file(timm.create_model(ENCODER).state_dict(), world / "weights.safetensors")
    keys = [f"red/{number:03}.png" for number in range(LABELLED + HIDDEN)]
    (world / "positives.txt").write_text("\n".join(keys[:LABELLED]) + "\n")
    rest = [f"rest/{number:03}.png,0" for number in range(REST)]
    (world / "truth.csv").write_text("\n".join(["key,label", *(f"{key},1" for key in keys), *rest]) + "\n")
    return world


@pytest.fixture(scope="session")
def embedded(world):
    return run_json("embed {w}/images {w}/cache.h5" + SMALL, w=world)


@pytest.fixture(scope="session")
def trained(world, embedded):
    command = "train-pu {w}/cache.h5 --positives {w}/positives.txt --prior 0.15 --out {w}/model.safetensors"
    return run_json(command + " --device cpu", w=world)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, so that default outputs go there."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
