"""Configurations of networks that nobody's memory holds: refused in one line, before memory or time is taken."""

import copy
import itertools
import json
import zipfile

import pytest
import torch
from fuzz.damage import bounded
from helpers.image_text import ARCHITECTURE, PREPROCESSING
from helpers.refusals import one_line
from safetensors.torch import save_file

from pucache import load_encoder
from pucache.encoders.sentence_encoder import SentenceEncoder
from pucache.errors import PUCacheError

pytest.importorskip("open_clip")
pytest.importorskip("tokenizers")

HUGE = (10**6, 10**18)
WEIGHTS = {"a.weight": torch.zeros(50_000), **{f"b.{number}": torch.zeros(2, 2) for number in range(30)}}


def changed(config, *path, value):
    config = copy.deepcopy(config)
    inner = config
    for name in path[:-1]:
        inner = inner.setdefault(name, {})
    inner[path[-1]] = value
    return config


CLIP = {"model_cfg": ARCHITECTURE, "preprocess_cfg": PREPROCESSING}
VIT = {"architecture": "test_vit", "pretrained_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3}}
BERT = {"model_type": "bert", "layer_norm_eps": 1e-12, "hidden_size": 8, "num_attention_heads": 2}
BERT |= {"intermediate_size": 16, "num_hidden_layers": 1}
TOKENIZER = {"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}
FIELDS = {  # the file of a configuration, what else is in it, and the numbers that no weights of its folder have
    "clip": ("open_clip_config.json", CLIP, [
        *(("model_cfg", "vision_cfg", name) for name in ("width", "layers", "mlp_ratio", "image_size", "head_width")),
        *(("model_cfg", "text_cfg", name) for name in ("width", "layers", "vocab_size", "context_length")),
    ]),
    "timm": ("config.json", VIT, [
        ("model_args", name) for name in ("depth", "embed_dim", "img_size", "num_heads", "mlp_ratio", "patch_size")
    ]),
    "sentences": ("config.json", BERT, [
        (name,) for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    ]),
}  # fmt: skip


def cases(place):
    """Folders with a number in their configuration that no weights of theirs have."""
    for kind, (name, config, fields) in FIELDS.items():
        for number, (field, value) in enumerate(zip(fields, itertools.cycle(HUGE), strict=False)):
            folder = place / f"{kind}-{number}"
            folder.mkdir()
            (folder / name).write_text(json.dumps(changed(config, *field, value=value)))
            (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
            save_file(WEIGHTS, folder / "model.safetensors")
            yield folder
    with zipfile.ZipFile(place / "sentences.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("config.json", "tokenizer.json", "model.safetensors"):
            archive.writestr(name, bytes(300 << 20))
    yield place / "sentences.zip"


def test_a_configuration_of_more_than_its_weights_takes_neither_memory_nor_time(tmp_path):
    for path in cases(tmp_path):
        load = SentenceEncoder if "sentences" in path.name else load_encoder
        with bounded(300 << 20):
            assert str(path) in one_line(PUCacheError, load, str(path)), path
