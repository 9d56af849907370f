from functools import partial
from pathlib import Path

import pytest
import timm
import torch
from helpers.authors import IMAGES, network
from helpers.refusals import one_line
from torch.utils.flop_counter import FlopCounterMode

from pucache.cli.embed import embed
from pucache.encoders.encoder import load_encoder
from pucache.encoders.pooling import FAMILIES, authors_choice, set_pooling
from pucache.errors import EncoderError

pytestmark = pytest.mark.usefixtures("one_thread")
refusal = partial(one_line, EncoderError, load_encoder)
PLAIN = {"device": "cpu", "precision": "fp32", "runtime": "torch"}


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


@pytest.mark.parametrize("name", ["vit_small_patch16_dinov3", "vit_small_patch14_dinov2"])
def test_dino_gives_the_class_token(tmp_path, name):
    encoder = load_encoder(f"timm:{name}", weights=saved(tmp_path, name), **PLAIN)
    assert (encoder.spec.pooling, encoder.spec.input_size[0]) == ("token", 256 if "dinov3" in name else 224)
    side = encoder.spec.input_size[0]
    model = network(name)  # of timm alone
    images = torch.nn.functional.interpolate(IMAGES, (side, side))
    with torch.inference_mode():
        found = encoder.runtime.network().network(images)
        if name.endswith("dinov3"):  # whose positions do not depend on the size
            torch.testing.assert_close(found, model.forward_features(images)[:, 0])
        torch.testing.assert_close(found, encoder.runtime.network().network.forward_features(images)[:, 0])


def test_a_cache_keeps_the_pooling_and_the_size_of_its_seal(tmp_path):
    name = "timm:vit_small_patch16_dinov3"
    weights = saved(tmp_path, "vit_small_patch16_dinov3")
    older = load_encoder(name, weights=weights, pooling="avg", image_size=224, **PLAIN).spec
    assert load_encoder(name, weights=weights, like=older, **PLAIN).spec == older
    assert load_encoder(name, weights=weights, like=older, pooling="token", **PLAIN).spec.pooling == "token"


def test_another_pooling_takes_the_same_weights(tmp_path):
    weights = saved(tmp_path, "test_vit")
    token, mean = (load_encoder("timm:test_vit", weights=weights, pooling=each, **PLAIN) for each in (None, "avg"))
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


def test_a_network_without_a_choice_says_so():
    model = torch.nn.Linear(2, 2)
    told = one_line(EncoderError, set_pooling, model, "x", "avg")
    assert told == "x has no pooling 'avg'; leave it out, as there is no choice"


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_small_patch14_dinov2"])
def test_a_size_that_the_patches_do_not_divide_is_refused_with_those_that_they_do(tmp_path, name):
    told = refusal(f"timm:{name}", weights=saved(tmp_path, name), image_size=225)
    step = 14 if "14" in name else 16
    assert told.endswith(
        f"patches of {step} pixels, which do not divide 225 x 225; use --image-size 224 or {224 + step}"
    )


def test_a_convolutional_network_takes_another_size_and_one_too_small_is_refused(tmp_path):
    weights = saved(tmp_path, "test_resnet")
    assert load_encoder("timm:test_resnet", weights=weights, image_size=96, **PLAIN).spec.input_size == (96, 96)
    weights = saved(tmp_path, "tresnet_m")
    assert "cannot take images of 1 x 1 pixels" in refusal("timm:tresnet_m", weights=weights, image_size=1)


@pytest.mark.parametrize("option", [{"image_size": 96}, {"pooling": "avg"}, {"preprocess": {"mean": (0, 0, 0)}}])
def test_the_bundled_encoder_has_no_choice(option):
    told = one_line(ValueError, load_encoder, "bundled", **option)
    assert told.endswith("cannot be chosen for bundled; leave it out")


LISTED = {  # in the help of embed and in docs/encoders.md: dimension, and multiply-adds in billions at a size
    "tf_efficientnet_lite0": (224, 1280, "0.4"),
    "vit_small_patch16_dinov3": (256, 384, "6.2"),
    "vit_small_patch14_dinov2": (224, 384, "6.1"),
    "vit_base_patch16_siglip_224": (224, 768, "18"),
}


@pytest.mark.parametrize("name", LISTED)
def test_what_to_try_first_has_the_dimension_and_the_multiply_adds_that_are_said(name):
    side, dim, billions = LISTED[name]
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        settings = {"img_size": side} if name.startswith("vit") else {}
        model = timm.create_model(name, num_classes=0, **settings).eval().requires_grad_(False)
        rows = model(torch.zeros(1, 3, side, side))
    counted = counter.get_total_flops() / 2e9
    assert rows.shape == (1, dim) and (f"{counted:.1f}" if counted < 10 else f"{counted:.0f}") == billions
    pages = (Path(__file__).parents[2] / "docs/encoders.md").read_text(), embed.callback.__doc__
    assert all(f"{billions} billion" in page for page in pages)
