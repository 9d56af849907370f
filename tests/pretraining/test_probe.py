import math

import numpy as np
import pytest
import torch
from PIL import Image

from pucache import open_source
from pucache.pretraining.augmentations import VIEWS
from pucache.pretraining.dataset import MappedImages, Squash, decode_all
from pucache.pretraining.network import NetworkConfig, build_network
from pucache.pretraining.probe import Probe, effective_rank, features, held_out_auc
from pucache.progress import Silent

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def network():
    return build_network(NetworkConfig("test_resnet", size=32), norm=True, seed=0).train()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Forty noisy images: every fourth one is reddish, the others are bluish."""
    folder = tmp_path_factory.mktemp("images")
    generator = np.random.default_rng(0)
    for number in range(40):
        tint = (150, 60, 30) if number % 4 == 0 else (30, 60, 150)
        pixels = np.clip(generator.normal(tint, 25, (24, 24, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02}.png")
    return folder


def images(folder, side=32):
    source = open_source(folder)
    listing, run = source.scan(), folder.with_name(f"run-{side}")
    run.mkdir(exist_ok=True)
    decode_all(source, listing, run, Squash(side, "bilinear", VIEWS["natural"]), workers=0, progress=Silent())
    return MappedImages(run, listing, side)


def look(probe, network):
    return probe(network, CPU, torch.float32)


# --- held-out heads ----------------------------------------------------------------------------


def rows(n, d, share, apart, seed=0):
    generator = np.random.default_rng(seed)
    s = (generator.random(n) < share).astype(np.int8)
    X = generator.standard_normal((n, d)).astype(np.float32)
    X[:, 0] += apart * s
    return X, s


def test_separable_rows_have_an_area_of_nearly_1_and_half_separable_ones_what_theory_says():
    assert held_out_auc(*rows(300, 5, 0.3, 8)) > 0.999
    expected = 0.5 * (1 + math.erf(1 / 2))  # of normal distributions one deviation apart, P(N(1, sqrt 2) > 0)
    assert held_out_auc(*rows(1500, 5, 0.3, 1)) == pytest.approx(expected, abs=0.03)


# --- rank --------------------------------------------------------------------------------------


def test_the_effective_rank_is_that_of_the_formula_wherever_the_centre_is():
    X = np.random.default_rng(0).standard_normal((30, 6)) * [5, 3, 1, 1, 0.1, 0]
    singular = np.linalg.svd(X - X.mean(0), compute_uv=False)
    share = singular[:5] / singular[:5].sum()
    expected = math.exp(-(share * np.log(share)).sum())
    assert 2 < expected < 5
    assert effective_rank(torch.from_numpy(X)) == pytest.approx(expected, rel=1e-4)
    assert effective_rank(torch.from_numpy(X + 10).float()) == pytest.approx(expected, rel=1e-4)


# --- features ----------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_features_are_those_of_eval_mode_and_leave_the_network_as_it_was(network, folder, training):
    pixels = images(folder)
    network.train(training)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    found = features(network, pixels, np.arange(8), CPU, torch.float32)
    assert {module.training for module in network.modules()} == {training}
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    x = next(pixels.batches([np.arange(8)])).permute(0, 3, 1, 2) / 255
    with torch.no_grad():
        torch.testing.assert_close(found, network.eval().features(x))
        assert not torch.allclose(found, network.train().features(x), rtol=0.1)
    network.load_state_dict(before)


# --- a probe -----------------------------------------------------------------------------------

REDDISH = "".join(f"{number:02}.png\n" for number in range(0, 40, 4))


def test_positives_that_look_different_are_told_from_the_rest_and_random_ones_are_not(network, folder, tmp_path):
    (tmp_path / "positives.txt").write_text(REDDISH)
    found = Probe(images(folder), positives=tmp_path / "positives.txt")
    assert (
        found.name == "AUC of labelled against unlabelled, by held-out linear models" and look(found, network)[0] > 0.95
    )
    (tmp_path / "positives.txt").write_text("".join(f"{number:02}.png\n" for number in (1, 5, 8, 14, 20, 22, 27, 33)))
    assert look(Probe(images(folder), positives=tmp_path / "positives.txt"), network)[0] < 0.8
