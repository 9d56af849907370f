import pytest
import safetensors.torch
import timm
import torch
from helpers.learned import description, network, write_run
from helpers.refusals import one_line

from pucache.encoders import pretrained_file
from pucache.errors import EncoderError
from pucache.pretraining.network import NetworkConfig, build_network

pytestmark = pytest.mark.usefixtures("one_thread")


def make(architecture="test_resnet", *, norm=True, seed=0, **changed):
    return build_network(NetworkConfig(architecture, **{"size": 24, **changed}), norm=norm, seed=seed)


def refusal(*arguments, **changed):
    return one_line(EncoderError, make, *arguments, **changed)


def equal(a, b):
    a, b = a.state_dict(), b.state_dict()
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


# --- shapes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [16, 32])
def test_features_are_the_backbone_of_normalised_views_and_projections_follow_them(size):
    made = make(size=size).eval()
    views = torch.rand(3, 3, size, size)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (made.description.mean, made.description.std))
    with torch.no_grad():
        features = made.features(views)
        torch.testing.assert_close(features, made.backbone((views - mean) / std))
        torch.testing.assert_close(made(views), made.projector(features))
    assert features.shape == (3, made.dim) and made(views).shape == (3, 128)


# --- where it begins -----------------------------------------------------------------------------


def test_weights_of_a_file_go_into_the_backbone_but_for_a_small_stem(tmp_path):
    torch.manual_seed(9)
    full = timm.create_model("test_convnext").state_dict()
    safetensors.torch.save_file(full, tmp_path / "w.safetensors")
    for stem, size in (("standard", 96), ("small", 64)):
        made = make("test_convnext", size=size, weights=str(tmp_path / "w.safetensors"))
        differing = {n for n, tensor in made.backbone.state_dict().items() if not torch.equal(tensor, full[n])}
        assert differing == ({"stem.0.weight", "stem.0.bias"} if stem == "small" else set())
        assert made.description.stem == stem


@pytest.mark.parametrize("stem", ["standard", "small"])
def test_an_earlier_run_is_where_training_begins_and_images_are_brought_as_to_it(tmp_path, stem):
    learned = write_run(tmp_path / "run", stem=stem, size=40)
    copy = (tmp_path / "run" / pretrained_file.NAME).rename(tmp_path / "kept under another name")
    pretrained_file.write(tmp_path / "run" / pretrained_file.NAME, learned, description(stem=stem, size=40))
    for where in (tmp_path / "run", tmp_path / "run" / pretrained_file.NAME, copy):
        made = make(size=None, weights=str(where))
        assert equal(made.backbone, learned)
        assert made.description == description(stem=stem, size=40, steps=0)
    for size in (16, 80):
        made = make(weights=str(copy), size=size).description
        assert (made.size, made.stem) == (size, stem)


def test_a_network_that_begins_with_patches_keeps_them_at_any_size():
    assert make("test_vit", size=32).description.stem == "standard"


# --- what is refused -----------------------------------------------------------------------------


def test_a_run_of_another_network_is_refused_with_what_to_pass(tmp_path):
    write_run(tmp_path)
    for architecture in ("test_convnext", "bundled"):
        told = refusal(architecture, weights=str(tmp_path))
        assert told.endswith("holds test_resnet; pass --backbone test_resnet")


def test_weights_of_another_network_are_refused(tmp_path):
    safetensors.torch.save_file(network("test_convnext").state_dict(), tmp_path / "w.safetensors")
    assert "does not fit test_resnet: it lacks" in refusal(weights=str(tmp_path / "w.safetensors"))
    assert "leave out --weights" in refusal("bundled", weights=str(tmp_path / "w.safetensors"))
