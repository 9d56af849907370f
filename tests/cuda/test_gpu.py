"""Pretraining and retrieval on a GPU: it finds what the CPU finds, and training never waits for what it need not."""

import csv
import gc
import itertools
import json
import math
import signal

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from helpers.planted import planted, write_cache
from helpers.started import Started, Strike
from helpers.training_parts import BATCH, IMAGES, SIDE, N, recipe, train, training, with_norms
from PIL import Image

from pucache.cache.embedding_cache import EmbeddingCache
from pucache.cli.main import main
from pucache.images.source import open_source
from pucache.neighbours.search import row_search
from pucache.neighbours.whitening import put
from pucache.pretraining import checkpoints, decoded_images
from pucache.pretraining.augmentations import VIEWS, Augment, random_numbers
from pucache.pretraining.decoded_images import MappedImages, decode_all
from pucache.pretraining.losses import contrastive_loss
from pucache.pretraining.squash import Squash
from pucache.progress import Silent
from pucache.retrieval.retrieve import rank_unlabelled
from pucache.retrieval.similarity import Similarity

DEVICE = torch.device("cuda")
CPU = torch.device("cpu")
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.usefixtures("one_thread"),
]

EPOCHS = 4
STEPS = EPOCHS * (N // BATCH)
SMALL = ("--backbone", "test_resnet", "--stem", "small", "--size", 16, "--batch-size", BATCH, "--epochs", EPOCHS,
         "--workers", 0, "--device", DEVICE, "--precision", "fp32")  # fmt: skip


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for number, image in enumerate(IMAGES.numpy()):
        Image.fromarray(image).save(folder / f"{number:03}.png")
    return folder


def run(*arguments):
    ended = CliRunner().invoke(main, [*map(str, arguments), "--json"], prog_name="pucache", catch_exceptions=False)
    assert ended.exit_code == 0, ended.stderr
    return json.loads(ended.stdout)


def losses(folder):
    with (folder / "log.csv").open(newline="") as stream:
        return [float(row["loss"]) for row in csv.DictReader(stream) if row["loss"]]


# --- parts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VIEWS)
def test_views_are_those_of_the_cpu(name):
    augment = Augment(VIEWS[name], 48)  # large enough to be blurred
    drawn = random_numbers(0, 0, images=N, views=4)
    here = augment(IMAGES, drawn)
    assert len(here) == 4 and here.std() > 0.1
    torch.testing.assert_close(augment(IMAGES.to(DEVICE), drawn).cpu(), here, atol=1e-4, rtol=0)


@pytest.mark.parametrize("n_views", [2, 3])
def test_the_loss_and_its_gradient_are_those_of_the_cpu(n_views):
    drawn = torch.randn(16, n_views, 128, generator=torch.Generator().manual_seed(0))
    found = []
    for device in (CPU, DEVICE):
        z = drawn.to(device).requires_grad_()
        loss = contrastive_loss(z, temperature=0.5, tau_plus=0.1)
        loss.backward()
        found.append((loss.detach().cpu(), z.grad.cpu()))
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-4)


def mapped(folder, out, device=DEVICE):
    """The images of a folder, decoded into another one."""
    source = open_source(folder)
    listing = source.scan()
    squash = Squash(SIDE, "bilinear", VIEWS["natural"])
    decode_all(source, listing, out, squash, workers=0, progress=Silent())
    return MappedImages(out, listing, SIDE, device)


@pytest.mark.parametrize("share", [0.25, 0.0])
def test_batches_are_those_of_the_cpu_whether_images_lie_on_the_device_or_in_a_file(
    share, photos, tmp_path, monkeypatch
):
    monkeypatch.setattr(decoded_images, "_GPU_SHARE", share)
    plan = np.random.default_rng(0).permutation(N).reshape(4, 7)
    found = list(mapped(photos, tmp_path / "out").batches(plan))
    assert {batch.device.type for batch in found} == {DEVICE.type}
    wanted = list(mapped(photos, tmp_path / "out", CPU).batches(plan))
    assert len(wanted) == 4 and torch.equal(torch.stack(found).cpu(), torch.stack(wanted))


@pytest.mark.parametrize("share", [0.25, 0.0])
def test_images_take_the_memory_of_the_device_only_where_they_may(share, photos, tmp_path, monkeypatch):
    monkeypatch.setattr(decoded_images, "_GPU_SHARE", share)
    gc.collect()  # lest it happens between the two looks
    before = torch.cuda.memory_allocated()
    images = mapped(photos, tmp_path / "out")
    taken = torch.cuda.memory_allocated() - before
    assert len(images.keys) == N and (taken >= N * SIDE * SIDE * 3) == (share > 0)


# --- steps -------------------------------------------------------------------------------------


def exact(name, device=DEVICE):
    """A training in double precision, in which nothing hides behind rounding."""
    return training(with_norms().double(), recipe(name), device=device)


def weights(run):
    return torch.cat([parameter.detach().flatten() for parameter in run.network.parameters()])


@pytest.mark.parametrize("name", ["modern", "impulses"])
def test_training_goes_on_from_a_checkpoint_with_what_the_fused_optimiser_remembers(name, tmp_path):
    whole, second = exact(name), exact(name)
    assert all(group["fused"] is (DEVICE.type == "cuda") for group in whole.optimizer.param_groups)
    train(whole, steps=5)
    checkpoints.save(tmp_path, 5, whole.network, whole.optimizer, {})
    checkpoints.load(tmp_path, second.network, second.optimizer)
    before = weights(whole)
    assert torch.equal(weights(second), before)
    assert train(second, 5, 3) == pytest.approx(train(whole, 5, 3), abs=1e-4)
    assert (weights(second) - weights(whole)).norm() < 0.01 * (weights(whole) - before).norm()


@pytest.mark.parametrize("name", ["modern", "impulses"])
def test_steps_are_those_of_the_cpu(name):
    here, there = (train(exact(name, device), steps=4) for device in (CPU, DEVICE))
    assert there == pytest.approx(here, abs=1e-3)


def test_the_loss_in_bfloat16_is_near_that_in_float32():
    fine, rough = (
        train(training(with_norms(), recipe(), device=DEVICE, dtype=dtype), steps=4)
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert rough != fine and rough == pytest.approx(fine, abs=0.05)


def test_parts_in_bfloat16_make_the_loss_of_the_whole():
    whole, parts = (
        train(training(with_norms(), recipe(accumulate=n), device=DEVICE, dtype=torch.bfloat16), steps=1)
        for n in (1, 2)
    )
    assert parts == pytest.approx(whole, abs=0.2)  # each part has batch statistics of its own


def test_compiled_steps_are_those_of_the_eager_network():
    pytest.importorskip("triton")
    eager, compiled = (
        train(training(with_norms(), recipe(), device=DEVICE, compiled=compiled), steps=3) for compiled in (False, True)
    )
    assert compiled == pytest.approx(eager, abs=0.02)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["modern", "impulses"])
def test_a_step_never_waits_for_the_device(name, dtype, accumulate):
    run = training(with_norms(), recipe(name, accumulate=accumulate), device=DEVICE, dtype=dtype)
    # from the host, and as they come where all images lie on the device
    rows = itertools.islice(run.batch_rows(0), 6)
    batches = [IMAGES[some] if number % 2 else IMAGES[some].to(DEVICE) for number, some in enumerate(rows)]
    for number in (0, 1):  # kernels are chosen, and constants made
        run.step(number, batches[number])
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        taken = [run.step(number, batches[number])[0] for number in range(2, 6)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(loss.isfinite() for loss in taken)


# --- runs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_run_that_is_killed_goes_on_where_it_was(optimizer, photos, tmp_path):
    run_dir = tmp_path / "run"
    how = ("pretrain", photos, run_dir, *SMALL, "--optimizer", optimizer, "--save-every", 0)
    killed = Strike(signal.SIGKILL, "pucache.pretraining.checkpoints.save", 6)
    with Started(how, tmp_path / "first", strike=killed) as command:
        assert command.wait() == -signal.SIGKILL, command.stderr
    with Started(how, tmp_path / "second") as command:
        assert command.wait() == 0, command.stderr
        assert command.steps == list(range(5, STEPS))
    run("pretrain", photos, tmp_path / "whole", *SMALL, "--optimizer", optimizer)
    assert len(losses(run_dir)) == EPOCHS and losses(run_dir) == pytest.approx(losses(tmp_path / "whole"), abs=0.05)


@pytest.mark.parametrize("how", [("--decode", "always"), ("--precision", "bf16"), ("--compile",), ("--accumulate", 2)])
def test_a_run_is_much_the_same_however_it_is_run(how, photos, tmp_path):
    if how == ("--compile",):
        pytest.importorskip("triton")
    for name, more in (("usual", ()), ("other", how)):
        told = run("pretrain", photos, tmp_path / name, *SMALL, "--epochs", 2, *more)
        assert (
            told["steps"] == told["total"] == 2 * (N // BATCH) and told["images"] == N and math.isfinite(told["rank"])
        )
    assert losses(tmp_path / "other") == pytest.approx(losses(tmp_path / "usual"), abs=0.2)


def test_the_encoder_of_a_run_embeds_there_and_on_the_cpu_alike(photos, tmp_path):
    run("pretrain", photos, tmp_path / "run", *SMALL, "--epochs", 2)
    rows = []
    for device in (CPU, DEVICE):
        cache = tmp_path / f"{len(rows)}.h5"
        run("embed", photos, cache, "--encoder", tmp_path / "run", "--device", device, "--precision", "fp32")
        rows.append(np.asarray(EmbeddingCache(cache).X, np.float64))
    here, there = rows
    assert here.shape == there.shape and len(here) == N
    assert np.linalg.norm(here - there) < 1e-2 * np.linalg.norm(here)


# --- retrieval ---------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 30, 2048, 2100])
def test_the_nearest_rows_are_those_that_the_cpu_finds(k):
    rows, among = np.random.default_rng(0).normal(size=(2, 3000, 64)).astype(np.float32)
    here, there = (row_search(put(among, gpu), gpu)(put(rows[:50], gpu), k) for gpu in (torch.device("cuda"), None))
    np.testing.assert_allclose(here[0], there[0], rtol=1e-3, atol=1e-2)
    assert np.mean([len(np.intersect1d(a, b)) / k for a, b in zip(here[1], there[1], strict=True)]) > 0.99


@pytest.mark.parametrize("kind", ["whitened", "max", "topk"])
def test_similarity_ranks_alike(tmp_path, kind):
    X, s, _ = planted(n=3000, d=32)
    cache = write_cache(tmp_path / "cache.h5", X)
    here, there = (rank_unlabelled(cache, s, k=200, scorer=Similarity(kind, device)) for device in ("cuda", "cpu"))
    assert len(np.intersect1d(here.rows, there.rows)) > 195
