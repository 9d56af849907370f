"""Models of parts of images: scores by part and by image, of new images that are cut alike."""

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

import pucache
from pucache.embedding.embed import embed
from pucache.errors import ModelError
from pucache.images.regions import image_of
from pucache.scoring.score import score
from pucache.scoring.score_tables import read_scores


def photograph(path, marked, seed):
    pixels = np.random.default_rng(seed).integers(0, 90, (96, 96, 3), np.uint8)
    if marked:  # one cell of nine
        pixels[32:64, 64:] = (255, 0, 0)
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(pixels).save(path)


def encoder_of(folder):
    weights = folder / "weights.safetensors"
    return {"encoder": "timm:test_convnext", "weights": weights, "precision": "fp32", "runtime": "torch"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    for number in range(24):
        photograph(folder / "pile" / f"{number:02}.png", number < 14, number)
    for number in range(4):
        photograph(folder / "new" / f"{number}.png", number == 2, 100 + number)
    torch.manual_seed(0)
    save_file(timm.create_model("test_convnext").state_dict(), folder / "weights.safetensors")
    cache = embed(folder / "pile", folder / "pile.h5", tiles="3x3", **encoder_of(folder))
    s = np.array(["percent:66.6667,33.3333" in key and int(key[:2]) < 12 for key in cache.keys], np.int8)
    pucache.train_pu(cache, positives=s).save(folder / "model.safetensors")
    return folder


def test_new_images_are_cut_as_the_models_were_and_scored_by_part_and_by_image(trained):
    folder = trained
    by_part = score(
        folder / "model.safetensors", folder / "new", folder / "parts.csv", weights=folder / "weights.safetensors"
    )
    scores = read_scores(folder / "parts.csv")

    report = score(folder / "model.safetensors", by_part.cache, folder / "images.csv", by_image=True)

    assert len(scores["key"]) == by_part.rows == 36 and report.rows == 4
    lines = (folder / "images.csv").read_text().splitlines()
    assert lines[0] == "key,margin,posterior,label,part"
    images = read_scores(folder / "images.csv")
    for key, margin in zip(images["key"], images["margin"], strict=True):
        assert margin == max(m for k, m in zip(scores["key"], scores["margin"], strict=True) if image_of(k) == key)
    assert images["key"][int(np.argmax(images["margin"]))] == "2.png"
    assert '"percent:66.6667,33.3333,33.3333,33.3334"' in lines[3]


def test_models_of_parts_and_of_whole_images_are_not_mixed(trained):
    folder = trained
    whole = embed(folder / "new", folder / "whole.h5", **encoder_of(folder))

    with pytest.raises(ModelError, match="tiles"):
        score(folder / "model.safetensors", whole, folder / "x.csv")
