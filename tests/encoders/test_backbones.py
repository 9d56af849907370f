import socket

import pytest
import timm
import torch
from helpers.slow import slow

from pucache.encoders import backbones
from pucache.encoders.backbones import from_timm, make_stem_small, untrained
from pucache.errors import EncoderError

pytestmark = pytest.mark.usefixtures("one_thread")

SIDE = 32


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*_):
        pytest.fail("the network was touched")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def shapes(architecture, stem):
    """What each layer of a network makes of a square of SIDE pixels; takes neither time nor memory."""
    with torch.device("meta"):
        model = untrained(architecture, stem=stem).eval()
        found = {}

        def note(name, made):
            found.setdefault(name, getattr(made, "shape", None))

        for name, module in model.named_modules():
            module.register_forward_hook(lambda _, given, made, name=name: note(name, made))
        model(torch.zeros(1, 3, SIDE, SIDE))
    return found


FIRST_STAGE = {  # layer: what it makes of 32 pixels, with the standard stem
    "resnet18": ("layer1", 8),
    "resnet50": ("layer1", 8),
    "resnet50d": ("layer1", 8),
    "ecaresnet26t": ("layer1", 8),
    "seresnetaa50d": ("layer1", 8),
    "wide_resnet50_2": ("layer1", 8),
    "resnest14d": ("layer1", 8),
    "skresnet18": ("layer1", 8),
    "res2net50d": ("layer1", 8),
    "legacy_seresnet18": ("layer1", 8),
    "resnetv2_18": ("stages.0", 8),
    "resnetv2_18d": ("stages.0", 8),
    "nf_resnet50": ("stages.0", 8),
    "densenet121": ("features.denseblock1.denselayer1", 8),
    "dpn48b": ("features.conv1_pool", 8),
    "test_resnet": ("layer1", 8),
    "test_byobnet": ("stem", 16),
    "test_convnext": ("stages.0", 8),
    "convnext_atto": ("stages.0", 8),
    "regnetx_002": ("stem", 16),
    "mobilenetv3_small_050": ("conv_stem", 16),
    "test_efficientnet": ("conv_stem", 16),
    "tf_efficientnet_lite0": ("conv_stem", 16),
    "hrnet_w18_small": ("conv1", 16),
    "vgg11": ("features.0", 32),
}


@pytest.mark.parametrize(
    "architecture", [*list(FIRST_STAGE)[::3], *map(slow, [*list(FIRST_STAGE)[1::3], *list(FIRST_STAGE)[2::3]])]
)
def test_a_small_stem_skips_no_pixel_before_the_first_stage(architecture):
    layer, standard = FIRST_STAGE[architecture]
    assert shapes(architecture, "standard")[layer][-2:] == (standard, standard)
    assert shapes(architecture, "small")[layer][-2:] == (SIDE, SIDE)


def test_no_pooling_is_taken_away_that_skips_nothing():
    """The stem of an HGNetV2 joins what a pooling of stride 1 gives with something of its size."""
    assert shapes("hgnetv2_b0", "small")["stem.stem2b"][-1] == shapes("hgnetv2_b0", "standard")["stem.stem2b"][-1] * 2


@pytest.mark.parametrize("architecture", ["resnet18", "test_efficientnet"])
def test_all_but_the_first_convolution_stays_as_it_was(architecture):
    torch.manual_seed(0)
    model = untrained(architecture)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    make_stem_small(model, architecture)
    after = model.state_dict()
    first = model.pretrained_cfg["first_conv"]
    assert list(before) == list(after) and after[f"{first}.weight"].shape[2:] == (3, 3)
    assert all(torch.equal(before[name], after[name]) for name in before if name != f"{first}.weight")
    assert not torch.equal(after[f"{first}.weight"], before[f"{first}.weight"][..., :3, :3])


def test_a_first_convolution_that_is_small_already_keeps_its_weights():
    model = timm.create_model("test_vgg" if timm.is_model("test_vgg") else "vgg11", num_classes=0, device="meta")
    first = model.features[0]
    make_stem_small(model, "vgg11")
    assert model.features[0] is first


def test_a_new_first_convolution_keeps_the_size_of_what_passes_it():
    torch.manual_seed(0)
    first = untrained("resnet18", stem="small").conv1
    made = first(torch.randn(4, 3, SIDE, SIDE))
    assert made.shape == (4, 64, SIDE, SIDE) and first.bias is None and 0.1 < made.std() < 1


@pytest.mark.parametrize(
    "architecture",
    [
        "test_vit",  # patches
        "swin_tiny_patch4_window7_224",
        "crossvit_9_240",  # two kinds of patches
        "mobileone_s0",  # convolutions side by side, which would make pictures of two sizes
        "repvgg_a0",
        "fastvit_t8",
        "tresnet_m",  # over squares of pixels that were stacked before
        "csatv2",  # over frequencies
        "naflexvit_base_patch16_gap",  # no convolution at all
    ],
)
def test_what_does_not_begin_with_one_convolution_over_pixels_has_no_small_stem(architecture):
    with torch.device("meta"), pytest.raises(EncoderError) as caught:
        untrained(architecture, stem="small")
    told = "does not begin with one convolution over pixels; use --stem standard"
    assert str(caught.value) == f"{architecture} {told}"


@pytest.mark.parametrize("stem", ["standard", "small"])
def test_untrained_weights_are_a_function_of_the_seed(stem):
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(untrained("test_resnet", stem=stem).state_dict())
    first, same, other = drawn
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first if first[name].ndim == 4)


def test_weights_of_a_file_go_into_all_but_the_classifier(tmp_path):
    torch.manual_seed(0)
    full = timm.create_model("test_resnet", pretrained=False)
    torch.save(full.state_dict(), tmp_path / "weights.pth")
    loaded = from_timm("test_resnet", tmp_path / "weights.pth").state_dict()
    assert loaded and all(torch.equal(tensor, full.state_dict()[name]) for name, tensor in loaded.items())


def test_every_pooling_of_a_stem_is_one_of_timms():
    """A name that no network has any more would be a line that does nothing."""
    with torch.device("meta"):
        made = [timm.create_model(name) for name in ("resnet18", "resnetv2_18", "densenet121", "dpn48b")]
        made.append(timm.create_model("legacy_seresnet18"))
    for model, pool in zip(
        made, ["maxpool", "stem.pool", "features.pool0", "features.conv1_pool", "pool0"], strict=True
    ):
        assert pool in backbones._STEM_POOLS and pool in dict(model.named_modules())
    assert len(backbones._STEM_POOLS) == len(made)
