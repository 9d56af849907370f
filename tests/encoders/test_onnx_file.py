"""ONNX files as encoders: those of torch's exporter, and those that are refused, each by one line."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from helpers.command_line import run
from helpers.refusals import one_line
from helpers.tiny import save_image
from PIL import Image
from sklearn.datasets import load_sample_images

import pucache
from pucache import load_encoder
from pucache.errors import EncoderError

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.usefixtures("one_thread")
PHOTOS = [Image.fromarray(photo) for photo in load_sample_images().images]
SIDE = 32
PREPROCESS = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "interpolation": "bicubic", "crop": 0.95}


class Patches(torch.nn.Module):
    """One token of each patch."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.patches, self.mixed = torch.nn.Conv2d(3, 24, 8, 8), torch.nn.Linear(24, 24)

    def forward(self, x):
        return self.mixed(torch.tanh(self.patches(x)).flatten(2).transpose(1, 2))


class Pooled(Patches):
    """One vector of each image."""

    def forward(self, x):
        return super().forward(x).mean(1)


class Column(Pooled):
    """What remains of a network of torchvision whose flattening went with its classifier."""

    def forward(self, x):
        return super().forward(x)[..., None, None]


class Tokens(Patches):
    """What transformers exports: all tokens, and one vector."""

    def forward(self, pixel_values):
        tokens = super().forward(pixel_values)
        return tokens, tokens[:, 0].tanh()


class OfBytes(Pooled):
    """What Keras exports with its preprocessing inside: uint8, channels last."""

    def forward(self, images):
        return super().forward((images.permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5)


def exported(path, model, images=None, outputs=("embedding",)):
    images = torch.zeros(2, 3, SIDE, SIDE) if images is None else images
    options = {"dynamo": True, "external_data": False, "verbose": False}
    shapes = ({0: torch.export.Dim("n", min=1)},)
    torch.onnx.export(model, (images,), str(path), output_names=list(outputs), dynamic_shapes=shapes, **options)


def edited(path, folder, change):
    model = onnx.load(str(folder / "vit.onnx"))
    change(model)
    onnx.save(model, str(path))
    return path


def one_image(model):
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory, one_thread):
    place = tmp_path_factory.mktemp("onnx")
    exported(place / "vit.onnx", Pooled())
    exported(place / "tokens.onnx", Tokens(), outputs=("last_hidden_state", "pooler_output"))
    exported(place / "column.onnx", Column(), outputs=("pooled:0",))
    exported(place / "half.onnx", Pooled().half(), torch.zeros(2, 3, SIDE, SIDE).half())
    edited(place / "one.onnx", place, one_image)
    exported(place / "bytes.onnx", OfBytes(), torch.zeros(2, SIDE, SIDE, 3, dtype=torch.uint8))
    for number in range(40):
        save_image(place / "photos" / f"{number:03}.png", number)
    return place


@pytest.fixture(scope="module")
def expected(folder):
    """Embeddings of the photos by torch, from the pixels that pucache prepares."""
    encoder = load_encoder(folder / "vit.onnx", preprocess=PREPROCESS)
    pixels = torch.stack([encoder.preprocess(photo) for photo in PHOTOS]).permute(0, 3, 1, 2)
    with torch.inference_mode():
        return Pooled()((pixels / 255 - 0.5) / 0.5).numpy()


def test_networks_in_onnx_files_give_the_embeddings_of_torch(folder, expected):
    for name in ("vit.onnx", "one.onnx", "half.onnx", "column.onnx:pooled:0", "bytes.onnx"):
        preprocess = {"crop": 0.95} if name == "bytes.onnx" else PREPROCESS
        encoder = load_encoder(f"{folder}/{name}", preprocess=preprocess)
        np.testing.assert_allclose(encoder(PHOTOS), expected, atol=1e-3)
        assert encoder.spec.runtime == "onnxruntime" and encoder.spec.input_size == (SIDE, SIDE)


def test_an_output_is_chosen_by_name_and_tokens_by_their_pooling(folder):
    def embeddings(output, pooling=None):
        return load_encoder(f"{folder}/tokens.onnx:{output}", preprocess=PREPROCESS, pooling=pooling)

    token, mean = (embeddings("last_hidden_state", pooling) for pooling in ("token", "avg"))
    np.testing.assert_allclose(np.tanh(token(PHOTOS)), embeddings("pooler_output")(PHOTOS), atol=1e-5)
    assert token.spec.name == "onnx:tokens:last_hidden_state" and token.spec.pooling == "token"
    assert token.spec.differences(mean.spec) == ["pooling"] and np.abs(token(PHOTOS) - mean(PHOTOS)).max() > 0.01


def test_the_preprocessing_of_transformers_beside_the_file_is_read(folder, tmp_path):
    path = shutil.copy(folder / "vit.onnx", tmp_path)
    stated = {
        "size": {"shortest_edge": 36},
        "crop_size": {"height": SIDE, "width": SIDE},
        "do_center_crop": True,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "resample": 3,
        "rescale_factor": 1 / 255,
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(stated))
    options = {**PREPROCESS, "crop": SIDE / 36}
    beside, by_options = load_encoder(path), load_encoder(folder / "vit.onnx", preprocess=options)
    np.testing.assert_array_equal(beside(PHOTOS), by_options(PHOTOS))
    assert beside.spec.crop_pct == pytest.approx(SIDE / 36)


def test_the_whole_way_by_an_onnx_file_from_the_command_line(folder, tmp_path, monkeypatch, without_ray):
    monkeypatch.chdir(tmp_path)
    shutil.copy(folder / "vit.onnx", tmp_path)
    run(f"embed {folder}/photos cache.h5 --encoder vit.onnx --mean 0.5 0.5 0.5 --std 0.5 0.5 0.5 --crop 0.95")
    (tmp_path / "found.txt").write_text("\n".join(pucache.EmbeddingCache("cache.h5").keys[:10]))
    run("train-pu cache.h5 --positives found.txt --out m.safetensors")
    again = run(f"embed {folder}/photos cache.h5 --encoder vit.onnx")
    assert "nothing had changed" in again.stdout, "the preprocessing is the cache's"
    values, name = "--mean 0 0 0 --std 1 1 1", "vit.onnx:embedding"
    run(f"embed {folder}/photos shards --ray --shards 1 --device cpu --encoder {name} {values}")
    assert pucache.EmbeddingCache("shards").encoder.runtime == "onnxruntime"
    run(f"score m.safetensors {folder}/photos --out scores.csv")
    (tmp_path / "vit.onnx").rename(tmp_path / "moved.onnx")
    told = run(f"score m.safetensors {folder}/photos --out new.csv", code=1)
    assert told.stderr.startswith("Error: onnx:vit lies in an ONNX file; pass it as --weights, or name its folder in ")
    monkeypatch.setenv("PUCACHE_WEIGHTS", ".")
    run(f"score m.safetensors {folder}/photos --out new.csv")
    assert (tmp_path / "scores.csv").read_text() == (tmp_path / "new.csv").read_text()


def second_input(model):
    model.graph.input.append(onnx.helper.make_tensor_value_info("more", 1, [1, 3, SIDE, SIDE]))


def dynamic_channels(model):
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "channels"


def custom_op(model):
    model.graph.node[0].domain = "of.others"
    model.opset_import.append(onnx.helper.make_opsetid("of.others", 1))


def external(location):
    def change(model):
        tensor = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)

    return change


def of_export(model):
    onnx.helper.set_model_props(model, {"threshold": "0.5", "share": "0.1"})


REFUSED = {
    "two inputs": (second_input, r"takes .*more: .*; expected one input"),
    "dynamic channels": (dynamic_channels, r"'channels'.*; expected one input \(N, 3, H, W\), float or uint8"),
    "a custom operator": (custom_op, r"onnxruntime cannot run .*of.others"),
    "weights that are missing": (external("gone.bin"), r"lacks gone.bin, the file of its weights"),
    "weights outside": (external("../gone.bin"), r"names weights outside its folder \(\.\./gone.bin\)"),
    "weights at a path": (external("/etc/hostname"), r"names weights outside its folder \(/etc/hostname\)"),
    "a model of export": (of_export, "is a model that export wrote"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_file_that_is_no_encoder_is_refused_by_one_line(folder, tmp_path, kind):
    change, told = REFUSED[kind]
    path = edited(tmp_path / "model.onnx", folder, change)

    assert re.search(told, one_line(EncoderError, load_encoder, path, preprocess=PREPROCESS))


OPTIONS = {
    "nothing said": ("vit.onnx", {}, "does not say how images are prepared; give --mean, --std"),
    "no pooling": ("tokens.onnx:last_hidden_state", {"preprocess": PREPROCESS}, "use --pooling token or avg"),
    "pooling of a vector": ("vit.onnx", {"preprocess": PREPROCESS, "pooling": "avg"}, "leave out --pooling"),
    "no output named": ("tokens.onnx", {"preprocess": PREPROCESS}, "name one: --encoder"),
    "no such output": ("vit.onnx:x", {"preprocess": PREPROCESS}, "gives embedding; name one"),
    "no such file": ("gone.onnx", {}, "cannot read"),
    "a size that the file fixes": (
        "vit.onnx",
        {"preprocess": PREPROCESS | {"image_size": 2 * SIDE}},
        "leave out --image-size",
    ),
    "a mean of bytes": ("bytes.onnx", {"preprocess": {"mean": (0.5,) * 3}}, "leave out --mean"),
    "two files": ("vit.onnx", {"weights": "vit.onnx"}, "has its own weights; leave out --weights"),
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_choice_that_is_missing_or_does_not_fit_is_named(folder, kind):
    name, options, told = OPTIONS[kind]
    assert told in one_line(EncoderError, load_encoder, f"{folder}/{name}", **options)


def test_the_digest_is_of_the_file_and_of_its_external_weights(folder, tmp_path):
    whole = load_encoder(folder / "vit.onnx", preprocess=PREPROCESS)
    model = onnx.load(str(folder / "vit.onnx"))
    onnx.save(model, str(tmp_path / "m.onnx"), save_as_external_data=True, location="m.bin")
    before = load_encoder(tmp_path / "m.onnx", preprocess=PREPROCESS)
    np.testing.assert_allclose(before(PHOTOS), whole(PHOTOS), atol=1e-5)
    content = bytearray((tmp_path / "m.bin").read_bytes())
    content[2] ^= 1
    (tmp_path / "m.bin").write_bytes(content)
    assert load_encoder(tmp_path / "m.onnx", preprocess=PREPROCESS).spec.differences(before.spec) == ["weights"]
