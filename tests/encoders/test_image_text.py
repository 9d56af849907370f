import copy
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fuzz.damage import bounded
from helpers.image_text import ARCHITECTURE, PREPROCESSING, save_image_text
from helpers.refusals import one_line
from helpers.tiny import save_image
from PIL import Image
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_sample_images
from sklearn.metrics.pairwise import cosine_similarity, paired_cosine_distances

import pucache
from pucache import load_encoder
from pucache.encoders.image_text import score_by_text
from pucache.errors import EncoderError, MissingExtraError, PUCacheError, UnknownEncoderError

open_clip = pytest.importorskip("open_clip")
pytestmark = pytest.mark.usefixtures("one_thread")
PLAIN = {"device": "cpu", "precision": "fp32", "runtime": "torch"}
NAME = "open_clip:tiny"
CONFIG = "open_clip_config.json"
# downscaling by much, where torch's kernel and Pillow's agree to two grey levels
PHOTOS = [Image.fromarray(photo) for photo in load_sample_images().images]
TEXTS = ["a palace", "a dahlia, l'été", "a word " * 100]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, one_thread):
    """A model, images, their cache by it, and a head on that; nobody changes them."""
    place = tmp_path_factory.mktemp("whole")
    model = save_image_text(place / "model")
    for number in range(30):
        save_image(place / "images" / f"{number:03}.png", number)
    cache = pucache.embed(place / "images", place / "cache.h5", NAME, weights=model, **PLAIN)
    head = pucache.train_pu(cache, cache.keys[:15], prior=0.2, method="linear", penalty=0.01, device="cpu")
    return SimpleNamespace(model=model, images=place / "images", cache=cache, head=head)


@pytest.fixture
def folder(whole, tmp_path):
    """A copy of the model."""
    return shutil.copytree(whole.model, tmp_path / "model")


def of_open_clip(folder):
    """Unit vectors of the photos and of the texts, by open_clip alone."""
    name = f"local-dir:{folder}"
    model, _, preprocess = open_clip.create_model_and_transforms(name)
    with torch.inference_mode():
        images = model.eval().encode_image(torch.stack([preprocess(photo) for photo in PHOTOS]), normalize=True)
        texts = model.encode_text(open_clip.get_tokenizer(name)(TEXTS), normalize=True)
    return images.numpy(), texts.numpy()


@pytest.mark.parametrize("changed", [{}, {"resize_mode": "squash", "interpolation": "bilinear", "mean": [0.5] * 3}])
def test_embeddings_and_scores_are_those_of_open_clip(tmp_path, changed):
    folder = save_image_text(tmp_path / "model", **changed)
    encoder = load_encoder(NAME, weights=folder, **PLAIN)
    X, (images, texts) = encoder(PHOTOS), of_open_clip(folder)
    assert X.shape == (2, 24) == (2, encoder.spec.dim) and encoder.spec.input_size == (32, 32)
    assert paired_cosine_distances(X, images).max() < 1e-4
    scores, found = score_by_text(TEXTS[:2], TEXTS[2:], encoder.spec, folder)
    assert found == encoder.spec
    np.testing.assert_allclose(scores(X), images @ (texts[:2].mean(0) - texts[2]), atol=1e-3)
    np.testing.assert_allclose(scores(X), cosine_similarity(X, texts) @ [0.5, 0.5, -1], atol=1e-6)


def changed(*path, to):
    """Changes one entry of a folder's configuration."""

    def change(folder):
        content = json.loads((folder / CONFIG).read_text())
        *places, last = path
        part = content
        for place in places:
            part = part[place]
        part[last] = to
        (folder / CONFIG).write_text(json.dumps(content))

    return change


def changed_text_tower(folder):
    path = folder / "open_clip_model.safetensors"
    tensors = load_file(path)
    tensors["text_projection"][0, 0] += 1e-3
    save_file(tensors, path)


OTHERS = {
    "mean": changed("preprocess_cfg", "mean", 0, to=0.48145467),
    "input_size": changed("model_cfg", "vision_cfg", "image_size", to=40),
    "an activation": changed("model_cfg", "quick_gelu", to=True),
    "the tokenizer": changed("model_cfg", "text_cfg", "tokenizer_kwargs", to={"clean": "whitespace"}),
    "weights": changed_text_tower,
}


BEYOND = [("vision_cfg", name) for name in ("width", "layers", "mlp_ratio", "image_size", "head_width")]
BEYOND += [("text_cfg", name) for name in ("width", "layers", "vocab_size", "context_length")]


@pytest.mark.parametrize(("tower", "field"), BEYOND)
@pytest.mark.parametrize("value", [10**6, 10**18])
def test_a_network_larger_than_its_weights_takes_neither_memory_nor_time(folder, tower, field, value):
    changed("model_cfg", tower, field, to=value)(folder)
    with bounded(300 << 20):
        assert str(folder) in one_line(EncoderError, load_encoder, NAME, weights=folder, **PLAIN)


@pytest.mark.parametrize("what", OTHERS)
def test_a_model_that_differs_in_one_digit_is_refused_for_images_words_and_scores(what, whole, folder, tmp_path):
    cache, images = whole.cache, whole.images
    OTHERS[what](folder)
    field = what if hasattr(cache.encoder, what) else "configuration"
    told = [
        one_line(EncoderError, pucache.retrieve_positives, cache, words="a frog", weights=folder, device="cpu"),
        one_line(PUCacheError, pucache.embed, images, cache.files[0].path, NAME, weights=folder),
    ]
    if what == "weights":
        told += [
            one_line(EncoderError, pucache.retrieve_positives, cache, like=images, weights=folder, device="cpu"),
            one_line(PUCacheError, pucache.score, whole.head, images, tmp_path / "s.csv", weights=folder),
        ]
    for text in told:
        assert "(they differ in " in text and field in text.split("differ in ")[1]


def test_words_rank_a_cache_and_a_model_scores_new_images(whole, tmp_path):
    cache = whole.cache
    scores, _ = score_by_text(["a frog"], [], cache.encoder, whole.model)
    ranked = pucache.retrieve_positives(cache, words="a frog", weights=whole.model, k=None)
    np.testing.assert_allclose(ranked.scores, np.sort(scores(cache.take(np.arange(30))))[::-1], atol=1e-6)
    whole.head.save(tmp_path / "model.safetensors")
    assert whole.head.encoder_ == cache.encoder
    pucache.score(tmp_path / "model.safetensors", whole.images, tmp_path / "new.csv", weights=whole.model, device="cpu")
    pucache.score(tmp_path / "model.safetensors", cache, tmp_path / "old.csv")
    assert (tmp_path / "new.csv").read_text() == (tmp_path / "old.csv").read_text()


# --- refusals -------------------------------------------------------------------------------------


def test_a_model_without_a_tag_or_with_another_activation_is_not_guessed():
    told = one_line(UnknownEncoderError, load_encoder, "open_clip:ViT-B-32", **PLAIN)
    assert "does not say which weights are meant" in told and "open_clip:ViT-B-32:TAG (openai, " in told
    told = one_line(UnknownEncoderError, load_encoder, "open_clip:ViT-B-32:mine", **PLAIN)
    assert "has no weights of the tag 'mine' in open_clip; use open_clip:ViT-B-32:TAG (openai, " in told
    told = one_line(UnknownEncoderError, load_encoder, "open_clip:ViT-B-32:openai", **PLAIN)
    assert told.endswith("use open_clip:ViT-B-32-quickgelu:openai")
    told = one_line(UnknownEncoderError, load_encoder, "open_clip:vit-b-32:openai", **PLAIN)
    assert "did you mean ViT-B-32" in told
    assert "a model of your own" in one_line(UnknownEncoderError, load_encoder, NAME, **PLAIN)


@pytest.mark.parametrize("wrong", [{"mean": None}, {"std": [0.2, 0, 0.2]}, {"resize_mode": "longest"}, {"mean": "abc"}])
def test_preprocessing_that_is_not_stated_is_no_default(tmp_path, wrong):
    folder = save_image_text(tmp_path / "model", **wrong)
    assert "preprocess_cfg" in one_line(EncoderError, load_encoder, NAME, weights=folder, **PLAIN)


@pytest.mark.parametrize("lost", [CONFIG, "open_clip_model.safetensors"])
@pytest.mark.parametrize("content", [None, b"", b"{}", b"[]", b"\x00" * 40])
def test_a_folder_that_lacks_a_file_or_holds_a_damaged_one_is_named(folder, lost, content):
    (folder / lost).unlink()
    if content is not None:
        (folder / lost).write_bytes(content)
    assert str(folder) in one_line(EncoderError, load_encoder, NAME, weights=folder, **PLAIN)


def test_a_folder_of_another_model_and_one_that_asks_for_code_are_refused(folder):
    told = one_line(EncoderError, load_encoder, "open_clip:ViT-B-32", weights=folder, **PLAIN)
    assert told == f"{folder} does not hold ViT-B-32: it differs in embed_dim; name the model that it holds"
    asking = copy.deepcopy(ARCHITECTURE)
    asking["text_cfg"]["tokenizer_kwargs"] = {"trust_remote_code": True}
    (folder / CONFIG).write_text(json.dumps({"model_cfg": asking, "preprocess_cfg": PREPROCESSING}))
    assert "code of others" in one_line(EncoderError, load_encoder, NAME, weights=folder, **PLAIN)


def test_without_open_clip_the_extra_is_named(folder, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "open_clip", None)
    told = one_line(MissingExtraError, load_encoder, NAME, weights=folder, **PLAIN)
    assert told == "open_clip:tiny needs open_clip; pip install -e '.[clip]'"


def test_words_rank_the_parts_of_images(whole, tmp_path):
    tiles = pucache.embed(whole.images, tmp_path / "tiles.h5", NAME, weights=whole.model, tiles="2x2", **PLAIN)
    ranking = pucache.retrieve_positives(tiles, words=TEXTS[:1], weights=whole.model, k=None)
    assert set(ranking.keys) == set(tiles.keys)
    scores, _ = score_by_text(TEXTS[:1], [], tiles.encoder, whole.model)
    assert ranking.keys[0] == tiles.keys[int(np.argmax(scores(tiles.X)))]
