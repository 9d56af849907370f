"""Configurations of networks that nobody's memory holds: refused in one line, before memory or time is taken."""

import copy
import json
import subprocess
import sys
import zipfile

import pytest
import torch
from helpers.image_text import ARCHITECTURE, PREPROCESSING
from safetensors.torch import save_file

CHILD = """
import json, sys
from pucache.encoders.encoder import load_encoder
from pucache.encoders.sentence_encoder import SentenceEncoder
from pucache.errors import PUCacheError
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) >> 10
import open_clip, timm, tokenizers
for path in sys.argv[1:]:
    before = peak()
    try:
        if "sentences" in path:
            SentenceEncoder(path)
        else:
            load_encoder(path, device="cpu", precision="fp32", runtime="torch")
        said = "loaded"
    except PUCacheError as error:
        said = str(error)
    print(json.dumps([path, said, peak() - before]))
"""
HUGE = (10**6, 10**9, 10**18)
WEIGHTS = {"a.weight": torch.zeros(50_000), **{f"b.{number}": torch.zeros(2, 2) for number in range(30)}}


def changed(config, *path, value):
    config = copy.deepcopy(config)
    inner = config
    for name in path[:-1]:
        inner = inner.setdefault(name, {})
    inner[path[-1]] = value
    return config


def folder(path, name, config, weights=WEIGHTS):
    path.mkdir()
    (path / name).write_text(json.dumps(config))
    if weights:
        save_file(weights, path / "model.safetensors")
    return path


def cases(place):
    """Folders with a number in their configuration that no weights of theirs have."""
    clip = {"model_cfg": ARCHITECTURE, "preprocess_cfg": PREPROCESSING}
    of_clip = ["width", "layers", "mlp_ratio", "image_size", "head_width"]
    of_text = ["width", "layers", "vocab_size", "context_length"]
    vit = {"architecture": "test_vit", "pretrained_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3}}
    bert = {"model_type": "bert", "layer_norm_eps": 1e-12, "hidden_size": 8, "num_attention_heads": 2}
    bert |= {"intermediate_size": 16, "num_hidden_layers": 1}
    for value in HUGE:
        for tower, names in (("vision_cfg", of_clip), ("text_cfg", of_text)):
            for name in names:
                config = changed(clip, "model_cfg", tower, name, value=value)
                yield folder(place / f"clip-{tower}-{name}-{value}", "open_clip_config.json", config)
        config = changed(clip, "model_cfg", "vision_cfg", "layers", value=[3, value, 6, 3])
        yield folder(place / f"clip-resnet-{value}", "open_clip_config.json", config)
        config = changed(clip, "model_cfg", "vision_cfg", "width", value=value)
        yield folder(place / f"clip-no-weights-{value}", "open_clip_config.json", config, weights=None)
        for name in ("depth", "embed_dim", "img_size", "num_heads", "mlp_ratio", "patch_size"):
            config = changed(vit, "model_args", name, value=value)
            yield folder(place / f"timm-{name}-{value}", "config.json", config)
        for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"):
            path = folder(place / f"sentences-{name}-{value}", "config.json", changed(bert, name, value=value))
            (path / "tokenizer.json").write_text(
                json.dumps({"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}})
            )
            yield path
    with zipfile.ZipFile(place / "sentences.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("config.json", "tokenizer.json", "model.safetensors"):
            archive.writestr(name, bytes(300 << 20))
    yield place / "sentences.zip"


def test_a_configuration_of_more_than_its_weights_takes_neither_memory_nor_time(tmp_path):
    for library in ("open_clip", "tokenizers"):
        pytest.importorskip(library)
    paths = list(map(str, cases(tmp_path)))
    child = subprocess.run([sys.executable, "-c", CHILD, *paths], capture_output=True, text=True, timeout=300)
    assert not child.returncode, child.stderr[-2000:]
    told = list(map(json.loads, child.stdout.splitlines()))
    assert [path for path, *_ in told] == paths
    for path, said, memory in told:
        assert said != "loaded" and "\n" not in said and path in said, (path, said)
        assert memory < 300, (path, said, memory)
    assert "warning" not in child.stderr.lower()
