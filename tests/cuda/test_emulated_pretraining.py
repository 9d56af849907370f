"""Pretraining on a device that is emulated: steps, probes and resumed runs are those of the CPU; no step waits."""

import csv

import numpy as np
import pytest
import torch
from helpers.emulated_cuda import emulated_cuda
from helpers.slow import slow
from helpers.training_parts import BATCH, IMAGES, SIDE, N, recipe, state, train, training, with_norms
from PIL import Image

from pucache.encoders import pretrained_file
from pucache.errors import RunError
from pucache.images.source import open_source
from pucache.pretraining import probe
from pucache.pretraining.augmentations import VIEWS
from pucache.pretraining.dataset import open_images
from pucache.pretraining.metrics_log import MetricsLog
from pucache.pretraining.monitor import TrainingMonitor
from pucache.pretraining.network import NetworkConfig
from pucache.pretraining.pretrain import pretrain
from pucache.pretraining.probe import Probe
from pucache.pretraining.squash import Squash
from pucache.pretraining.trainer import Trainer
from pucache.progress import Silent

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, on which test_gpu.py runs"),
    pytest.mark.usefixtures("one_thread"),
]

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
STEPS_PER_EPOCH = N // BATCH


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for number, image in enumerate(IMAGES.numpy()):
        Image.fromarray(image).save(folder / f"{number:03}.png")
    return folder


def opened(photos, folder, device, decode):
    source = open_source(photos)
    squash = Squash(SIDE, "bilinear", VIEWS["natural"])
    return open_images(
        source, source.scan(), folder, squash, device=device, decode=decode, workers=0, progress=Silent()
    )


def out_of_memory(*arguments, **options):
    raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")


# --- steps -------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [slow(1), 2])
@pytest.mark.parametrize("name", ["modern", "impulses"])
def test_steps_are_those_of_the_cpu(name, accumulate):
    expected = training(with_norms(), recipe(name, accumulate=accumulate))
    losses = train(expected, steps=3)
    with emulated_cuda(as_cpu=True):
        run = training(with_norms(), recipe(name, accumulate=accumulate), device=CUDA)
        assert train(run, steps=3) == pytest.approx(losses, rel=1e-3)
        trained = {key: tensor.cpu() for key, tensor in state(run.network).items()}
    for key, tensor in state(expected.network).items():
        torch.testing.assert_close(trained[key], tensor, rtol=1e-2, atol=1e-3)


def test_steps_in_bfloat16_are_near_those_in_float32():
    losses = train(training(with_norms(), recipe()), steps=3)
    with emulated_cuda(as_cpu=True):
        run = training(with_norms(), recipe(), device=CUDA, dtype=torch.bfloat16)
        assert train(run, steps=3) == pytest.approx(losses, abs=0.05)


@pytest.mark.parametrize(
    ("name", "decode", "accumulate"),
    [("modern", "once", 1), slow("modern", "always", 2), slow("impulses", "once", 2), slow("impulses", "always", 1)],
)
def test_a_step_waits_for_nothing_and_a_row_of_the_log_twice(name, decode, accumulate, photos, tmp_path):
    with emulated_cuda(as_cpu=True) as device, MetricsLog(tmp_path, 0, tensorboard=False) as log:
        images = opened(photos, tmp_path, CUDA, decode)
        run = training(with_norms(), recipe(name, epochs=20, accumulate=accumulate), device=CUDA)
        monitor = TrainingMonitor(run, Probe(images), log, Silent(), losses=[], step=0)
        batches = images.batches(run.batch_rows(0))
        for step in range(2 * STEPS_PER_EPOCH):
            if step == 1:  # constants are on the device
                device.counts.clear()
            monitor.record(*run.step(step, next(batches)), waited=0)
            if (step + 1) % STEPS_PER_EPOCH == 0:
                assert device.counts.waited == 0, str(device.counts)
                if step < STEPS_PER_EPOCH:  # without a probe, which is due after every second epoch
                    monitor.measure_and_log()
                    assert device.counts.waited <= 2, str(device.counts)
                    device.counts.clear()
        batches.close()


def test_cudnn_times_its_kernels_for_steps_alone(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    timed = []
    run = training(with_norms(), recipe())
    run.network.backbone.register_forward_hook(lambda *_: timed.append(torch.backends.cudnn.benchmark))
    train(run, steps=2)
    assert timed == [True, True] and torch.backends.cudnn.benchmark is False


def test_a_batch_that_does_not_fit_is_refused_with_the_way_out(monkeypatch):
    with emulated_cuda(as_cpu=True):
        run = training(with_norms(), recipe(), device=CUDA)
        monkeypatch.setattr(run, "_forward", out_of_memory)
        expected = (
            r"^out of memory on cuda at step 1 with parts of 8 images; "
            r"use --accumulate 2, which keeps the negatives, or a --batch-size below 8$"
        )
        with pytest.raises(RunError, match=expected):
            run.step(0, IMAGES[:BATCH])


def test_images_that_do_not_fit_go_up_batch_by_batch(photos, tmp_path, monkeypatch, caplog):
    plan = np.random.default_rng(0).permutation(N).reshape(4, 7)
    with emulated_cuda(as_cpu=True):
        expected = [batch.cpu() for batch in opened(photos, tmp_path, CUDA, "once").batches(plan)]
        with monkeypatch.context() as patch:
            patch.setattr(torch, "tensor", out_of_memory)
            images = opened(photos, tmp_path, CUDA, "once")
        found = list(images.batches(plan))
        assert all(batch.is_cuda for batch in found)
        assert torch.equal(torch.stack([batch.cpu() for batch in found]), torch.stack(expected))
    assert "too little memory on cuda for the images; they are copied there batch by batch" in caplog.text


# --- probes ------------------------------------------------------------------------------------


def features(n=300, d=24):
    generator = np.random.default_rng(0)
    classes = np.arange(n) % 3
    X = generator.standard_normal((n, d)).astype(np.float32)
    X[:, :3] += 1.5 * np.eye(3, dtype=np.float32)[classes]
    return X, classes


def test_held_out_heads_are_trained_on_the_device():
    X, classes = features(90, 6)
    s = (classes == 1).astype(np.int8)
    expected = probe.held_out_auc(X, s)
    with emulated_cuda() as device:
        assert probe.held_out_auc(X, s, "cuda") == pytest.approx(expected, abs=2e-3)
        assert device.counts.launches > 100


def test_neighbours_and_the_rank_are_computed_on_the_device():
    X, classes = features()
    expected = probe.knn_accuracy(torch.from_numpy(X), torch.from_numpy(classes))
    with emulated_cuda(as_cpu=True) as device:
        there = torch.from_numpy(X).to(CUDA)
        device.counts.clear()
        assert probe.knn_accuracy(there, torch.from_numpy(classes)) == pytest.approx(expected, abs=1e-2)
        assert device.counts.waited <= 2, str(device.counts)


def test_features_stay_on_the_device(photos, tmp_path):
    network = with_norms()
    expected = probe.features(network, opened(photos, tmp_path, CPU, "once"), np.arange(N), CPU, torch.float32)
    with emulated_cuda(as_cpu=True) as device:
        images, network = opened(photos, tmp_path, CUDA, "once"), with_norms().to(CUDA)
        device.counts.clear()
        X = probe.features(network, images, np.arange(N), CUDA, torch.float32)
        assert X.is_cuda and device.counts.waited == 0, str(device.counts)
        torch.testing.assert_close(X.cpu(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(300, 24), (24, 300)])
@pytest.mark.parametrize("scale", [1e-15, 1.0, 1e10])
def test_the_rank_is_that_of_the_cpu(shape, scale):
    X = torch.from_numpy(scale * features(*shape)[0])
    expected = probe.effective_rank(X)
    with emulated_cuda(as_cpu=True):
        assert probe.effective_rank(X.to(CUDA)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("room", [True, False])
def test_a_probe_goes_on_where_the_device_has_no_room(room, photos, tmp_path, monkeypatch, caplog):
    (tmp_path / "labels.csv").write_text("\n".join(["key,label", *(f"{n:03}.png,{n % 2}" for n in range(N))]))
    images = opened(photos, tmp_path, CPU, "always")
    expected = Probe(images, labels=tmp_path / "labels.csv")(with_norms(), CPU, torch.float32)
    with emulated_cuda(as_cpu=True):
        network = with_norms().to(CUDA)
        if not room:
            monkeypatch.setattr(torch.linalg, "eigvalsh", out_of_memory)
        found = Probe(images, labels=tmp_path / "labels.csv")(network, CUDA, torch.float32)
    assert found.probe == pytest.approx(expected.probe, abs=2 / N)
    assert found.rank == pytest.approx(expected.rank, rel=1e-3)
    assert ("too little memory on cuda to probe the features there; the CPU does it" in caplog.text) is not room


def test_a_probe_that_does_not_fit_is_refused_with_the_way_out(photos, tmp_path, monkeypatch):
    with emulated_cuda(as_cpu=True):
        network = with_norms().to(CUDA)
        monkeypatch.setattr(network, "features", out_of_memory)
        with pytest.raises(RunError, match=r"^out of memory on cuda with the features of 128 images; use a smaller "):
            Probe(opened(photos, tmp_path, CPU, "always"))(network, CUDA, torch.float32)


# --- runs --------------------------------------------------------------------------------------


def pretrained(photos, folder, device, name, decode, **options):
    network = NetworkConfig("test_resnet", stem="small", size=SIDE)
    settings = {"device": device, "precision": "fp32", "workers": 0, "decode": decode}
    return pretrain(photos, folder, network, recipe(name, epochs=2), **settings, **options)


def outcome(folder):
    """Encoder, and the rows of the log without the throughput."""
    with (folder / "log.csv").open(newline="") as stream:
        rows = [
            [float(row[name] or 0) for name in row if name != "images_per_second"] for row in csv.DictReader(stream)
        ]
    return pretrained_file.read(folder)[0], np.array(rows)


@pytest.mark.parametrize(("name", "decode"), [("modern", "once"), slow("impulses", "always")])
def test_a_resumed_run_is_that_of_the_cpu(name, decode, photos, tmp_path, monkeypatch):
    pretrained(photos, tmp_path / "cpu", "cpu", name, decode)
    take_step, waits = Trainer._take_step, []

    def counted(trainer, batches):
        before = device.counts.waited
        take_step(trainer, batches)
        waits.append(device.counts.waited - before)

    monkeypatch.setattr(Trainer, "_take_step", counted)
    with emulated_cuda(as_cpu=True) as device:
        stopped = pretrained(photos, tmp_path / "cuda", "cuda", name, decode, minutes=1e-9)
        assert stopped.steps == 1
        finished = pretrained(photos, tmp_path / "cuda", "cuda", name, decode)
    assert finished.steps == len(waits) == 2 * STEPS_PER_EPOCH
    assert not any(waits[1:]), str(device.counts)  # the first step brings constants to the device
    (expected, expected_rows), (weights, rows) = outcome(tmp_path / "cpu"), outcome(tmp_path / "cuda")
    np.testing.assert_allclose(rows, expected_rows, rtol=2e-2, atol=2e-2)
    for tensor_name, tensor in expected.items():
        np.testing.assert_allclose(weights[tensor_name], tensor, rtol=1e-2, atol=1e-3)
