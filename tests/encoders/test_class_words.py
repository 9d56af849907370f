import functools

import numpy as np
import pytest
import torch
from helpers.texts import save_text_encoder

from pucache.encoders.backbones import class_layer, class_texts
from pucache.encoders.class_words import score_by_classes
from pucache.encoders.sentence_encoder import SentenceEncoder

pytest.importorskip("tokenizers")
pytestmark = pytest.mark.usefixtures("one_thread")
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
    for damage in (file.read_bytes(), b"", file.read_bytes()[:-5]):
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
