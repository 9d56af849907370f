"""Repositories as the hub has them, in its cache on this machine or in a folder; no network is touched."""

import json
import os
import subprocess
import sys
from functools import partial

import huggingface_hub
import pytest
import timm
import torch
from fuzz.damage import bounded
from helpers.authors import network
from helpers.image_text import save_image_text
from helpers.refusals import one_line
from safetensors.torch import save_file

from pucache import load_encoder
from pucache.errors import EncoderError

pytestmark = pytest.mark.usefixtures("one_thread")
PLAIN = {"device": "cpu", "precision": "fp32", "runtime": "torch"}
refusal = partial(one_line, EncoderError, load_encoder, **PLAIN)
CONFIG = {
    "architecture": "test_vit",
    "num_classes": 0,
    "pretrained_cfg": {"input_size": [3, 160, 160], "mean": [0.4] * 3, "std": [0.2] * 3, "interpolation": "bilinear"},
}
CARD = "---\nlicense: cc-by-nc-4.0\n---\n# A model\n"


def repository(folder, config=CONFIG, card=CARD):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "README.md").write_text(card)
    save_file(network("test_vit").state_dict(), folder / "model.safetensors")
    return folder


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The hub's cache, in which a repository can be put, without a network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)

    def place(name):
        base = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
        (base / "refs").mkdir(parents=True)
        (base / "refs/main").write_text("a" * 40)
        (base / "snapshots" / ("a" * 40)).mkdir(parents=True)
        return base / "snapshots" / ("a" * 40)

    return place


@pytest.mark.parametrize("name", ["hf-hub:org/model", "timm:hf-hub:org/model", "timm:org/model"])
def test_a_network_of_the_hub_is_found_by_each_of_its_names(hub, name):
    repository(hub("org/model"))
    encoder = load_encoder(name, **PLAIN)
    assert encoder.spec.name == "timm:hf-hub:org/model" and encoder.licence == "cc-by-nc-4.0"
    assert encoder.spec.mean == (0.4, 0.4, 0.4) and encoder.spec.interpolation == "bilinear"


def test_a_folder_of_such_a_repository_gives_the_same_embeddings(hub, tmp_path):
    repository(hub("org/model"))
    folder = repository(tmp_path / "copied")
    of_hub, of_folder = (load_encoder(name, **PLAIN) for name in ("hf-hub:org/model", folder))
    assert of_folder.spec.name == "timm:test_vit" and of_folder.licence == "cc-by-nc-4.0"
    assert of_hub.spec.differences(of_folder.spec) == ["name"]
    assert load_encoder("timm:test_vit", weights=folder, **PLAIN).spec == of_folder.spec


def test_an_image_text_model_is_found_by_its_repository_and_in_its_folder(hub, tmp_path):
    pytest.importorskip("open_clip")
    save_image_text(hub("org/clip"))
    folder = save_image_text(tmp_path / "clip")
    for name in ("hf-hub:org/clip", "open_clip:hf-hub:org/clip"):
        encoder = load_encoder(name, **PLAIN)
        assert encoder.spec.name == "open_clip:hf-hub:org/clip" and encoder.spec.configuration
    assert load_encoder(folder, **PLAIN).spec.differences(encoder.spec) == ["name"]


@pytest.mark.parametrize("field", ["depth", "embed_dim", "img_size", "num_heads", "mlp_ratio", "patch_size"])
@pytest.mark.parametrize("value", [10**6, 10**18])
def test_a_network_larger_than_its_weights_takes_neither_memory_nor_time(tmp_path, field, value):
    folder = repository(tmp_path / "model", CONFIG | {"model_args": {field: value}})
    with bounded(300 << 20):
        assert str(folder) in refusal(str(folder))


REFUSED = {
    "of transformers": ({"model_type": "dinov2"}, "holds dinov2 of transformers, whose name in timm it does not say"),
    "of nothing": ({}, "holds no model of transformers"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_repository_of_another_library_is_refused_with_the_way_out(hub, tmp_path, kind):
    config, told = REFUSED[kind]
    repository(hub("org/model"), config)
    for name in ("hf-hub:org/model", str(repository(tmp_path / "folder", config))):
        assert told in refusal(name) and "--encoder timm:NAME --weights FILE" in refusal(name)


def test_a_repository_without_configuration_or_network_is_named(hub, tmp_path):
    hub("org/empty")
    told = refusal("hf-hub:org/empty")
    assert told.startswith("cannot find open_clip_config.json or config.json of hf-hub:org/empty (it has neither)")
    assert "offline mode" in refusal("hf-hub:org/unknown")
    assert "offline mode" in refusal("timm:org/unknown") and "offline mode" in refusal("timm:resnet18")
    (tmp_path / "folder").mkdir()
    assert "with config.json" in refusal(str(tmp_path / "folder"))
    (repository(tmp_path / "model") / "model.safetensors").unlink()
    assert "holds no weights; expected model.safetensors or pytorch_model.bin" in refusal(str(tmp_path / "model"))


def test_a_card_without_a_licence_states_none(tmp_path):
    assert load_encoder(repository(tmp_path / "a", card="# no licence"), **PLAIN).licence == ""


def test_the_licence_of_a_tag_is_that_of_timm_and_a_bare_file_has_none(tmp_path):
    torch.save(network("test_vit").state_dict(), tmp_path / "weights.pth")
    options = {"weights": tmp_path / "weights.pth", **PLAIN}
    for name in ("test_vit.r160_in1k", "timm/test_vit.r160_in1k", "hf-hub:timm/test_vit.r160_in1k"):
        tagged = load_encoder(f"timm:{name}", **options)
        assert tagged.licence == timm.get_pretrained_cfg("test_vit.r160_in1k").license == "apache-2.0"
        assert tagged.spec.name == "timm:test_vit.r160_in1k", "a network has one name in caches"
    assert load_encoder("timm:test_vit", **options).licence == ""


WITHOUT_PAUSES = """
import time
from pucache.cli.main import run

pauses = []
time.sleep = pauses.append
try:
    run()
finally:
    open("pauses", "w").write(" ".join(map(str, pauses)))
"""


@pytest.mark.slow
def test_no_hub_in_reach_is_one_line_soon_with_the_way_out(tmp_path):
    closed = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path), "TORCH_HOME": str(tmp_path)}
    (tmp_path / "images").mkdir()
    command = [sys.executable, "-c", WITHOUT_PAUSES, "embed", "images", "cache.h5", "--encoder", "timm:resnet18"]
    ended = subprocess.run(command, env={**os.environ, **closed}, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 1 and ended.stderr.count("\n") == 1 and ended.stdout == ""
    assert ended.stderr.startswith("Error: cannot fetch the pretrained weights of resnet18 (")
    assert "--weights FILE" in ended.stderr and "use the bundled one" in ended.stderr
    assert sum(map(float, (tmp_path / "pauses").read_text().split())) < 5, "the hub's client retries for 45 s"
