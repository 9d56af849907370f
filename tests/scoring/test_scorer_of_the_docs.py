"""The scorers of docs/interop.md, which need no pucache, against pucache."""

import re
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from helpers.planted import planted, write_cache
from PIL import ExifTags, Image
from safetensors.torch import save_file
from sklearn.datasets import load_sample_images

from pucache import PULinearClassifier, embed, export, load_encoder, score
from pucache.scoring.onnx_model import export_onnx

PAGE = Path(__file__).parents[2] / "docs/interop.md"
PHOTOGRAPHS = load_sample_images().images


def block_with(word):
    return next(text for text in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if word in text)


def test_the_scorer_gives_the_scores_of_pucache_in_fifteen_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X, s, _ = planted(labelled=40)
    model = PULinearClassifier(prior=0.3, device="cpu").fit(X, s)
    model.save("model.safetensors")
    cache = write_cache(tmp_path / "cache.h5", X)
    score(model, cache, "cache.scores.csv")
    export(cache, "images.parquet")
    exec(block_with("merge"))
    code = block_with("safe_open")
    assert len([line for line in code.split("table =")[0].splitlines() if line]) <= 15
    exec(code, names := {})
    margin, _, label = names["score"](X)
    np.testing.assert_allclose(margin, model.margins(X), atol=1e-4)
    np.testing.assert_array_equal(label, model.margins(X) > np.float32(model.threshold_))


@pytest.fixture
def photographs(tmp_path):
    """Parts of two photographs, none of them square, as PNG and as JPEG: large ones, and one that lies on its side."""
    (tmp_path / "photos").mkdir()
    draw = np.random.default_rng(0)
    for number in range(40):
        photograph = Image.fromarray(PHOTOGRAPHS[number % 4 > 2])
        width, height = draw.integers(60, photograph.size)
        photograph.crop((0, 0, width, height)).save(tmp_path / f"photos/{number % 4 > 2:d}-{number:02}.png")
    large = photograph.resize((2400, 1500))
    large.save(tmp_path / "photos/0-large.jpg", quality=95)
    side = Image.Exif()
    side[ExifTags.Base.Orientation] = 6
    large.save(tmp_path / "photos/0-side.jpg", quality=95, exif=side)
    return tmp_path / "photos"


@pytest.mark.slow
def test_the_graph_scores_photographs_that_are_not_square_as_pucache_does(tmp_path, monkeypatch, photographs):
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        save_file(timm.create_model("test_resnet").state_dict(), "weights.safetensors")
    encoder = load_encoder(
        "timm:test_resnet", weights="weights.safetensors", device="cpu", precision="fp32", runtime="torch"
    )
    assert encoder.spec.crop_mode == "center" and encoder.spec.crop_pct < 1
    cache = embed("photos", "cache.h5", encoder)
    s = np.array([key.startswith("0") for key in cache.keys], np.int8)
    model = PULinearClassifier(prior=0.3, device="cpu").fit(cache.X, s)
    model.encoder_ = cache.encoder
    export_onnx(model, "model.onnx", weights="weights.safetensors")
    code, margins = block_with("onnxruntime"), model.margins(cache.X)
    code = code.replace("512", str(encoder.preprocess.sufficient_side))  # is that of the bundled encoder
    rows = [*range(3, len(s), 8), *np.flatnonzero([key.endswith("jpg") for key in cache.keys])]
    found = []
    for row in rows:
        exec(code.replace("new-photos/0001.png", f"photos/{cache.keys[row]}"), names := {})
        found.append(names["margin"].item())
    assert np.ptp(margins[rows]) > 2
    np.testing.assert_allclose(found, margins[rows], atol=2e-2)
