"""Pretraining on CUDA: steps, probes and a resumed run are those of the CPU."""

import numpy as np
import pytest
import torch
from helpers.training_parts import BATCH, IMAGES, SIDE, N, recipe, save_photos, train, training, with_norms

from pucache import pretrain
from pucache.encoders import pretrained_file
from pucache.errors import RunError
from pucache.pretraining import probe
from pucache.pretraining.network import NetworkConfig

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return save_photos(tmp_path_factory.mktemp("photos"))


def out_of_memory(*arguments, **options):
    raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")


def test_steps_are_those_of_the_cpu(cuda):
    how = recipe(accumulate=2)
    here, there = (train(training(with_norms(), how, device=device), steps=2) for device in (cuda, CPU))
    assert here == pytest.approx(there, rel=1e-3)


def test_a_batch_that_does_not_fit_is_refused_with_the_way_out(cuda, monkeypatch):
    network = with_norms()
    monkeypatch.setattr(network.backbone, "forward", out_of_memory)
    run = training(network, recipe(), device=cuda)
    with pytest.raises(RunError, match=r"^out of memory on cuda at step 1 with parts of 8 images; use --accumulate 2"):
        run.step(0, IMAGES[:BATCH])


def test_a_probe_is_that_of_the_cpu(cuda):
    generator = np.random.default_rng(0)
    classes = np.arange(600) % 3
    X = generator.standard_normal((600, 48)).astype(np.float32)
    X[:, :3] += 1.5 * np.eye(3, dtype=np.float32)[classes]
    s, here = (classes == 1).astype(np.int8), torch.from_numpy(X)
    there = here.to(cuda)
    assert probe.held_out_auc(X, s, "cuda") == pytest.approx(probe.held_out_auc(X, s, "cpu"), abs=2e-3)
    assert probe.effective_rank(there) == pytest.approx(probe.effective_rank(here), rel=1e-4)


def test_a_resumed_run_is_that_of_the_cpu(cuda, photos, tmp_path):
    network = NetworkConfig("test_resnet", size=SIDE)

    def pretrained(device, **options):
        settings = {"device": device, "precision": "fp32", "workers": 0}
        return pretrain(photos, tmp_path / device, network, recipe(epochs=1), **settings, **options)

    pretrained("cpu")
    assert pretrained("cuda", minutes=1e-9).steps == 1
    assert pretrained("cuda").steps == N // BATCH
    expected, weights = (pretrained_file.read(tmp_path / device)[0] for device in ("cpu", "cuda"))
    for name, tensor in expected.items():
        np.testing.assert_allclose(weights[name], tensor, rtol=1e-2, atol=1e-3)
