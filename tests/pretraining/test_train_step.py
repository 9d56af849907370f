import itertools
import logging
import math

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from helpers.learned import description, network, write_run
from helpers.refusals import one_line
from helpers.training_parts import (
    BATCH,
    IMAGES,
    N,
    gradients,
    recipe,
    state,
    train,
    training,
    with_norms,
    without_norms,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from pucache.encoders import pretrained_file
from pucache.errors import EncoderError
from pucache.pretraining.augmentations import VIEWS, Augment, random_numbers
from pucache.pretraining.losses import alignment, contrastive_loss, uniformity
from pucache.pretraining.network import NetworkConfig, build_network

pytestmark = pytest.mark.usefixtures("one_thread")


# --- a step ------------------------------------------------------------------------------------


def by_hand(network, optimizer, rate, *, views, seed=3, steps=5):
    """The same training, written out."""
    network.to(memory_format=torch.channels_last).train()
    augment, losses = Augment(VIEWS[views], 16), []
    for number in range(steps):
        order = np.random.default_rng((seed, number // (N // BATCH))).permutation(N)
        place = number % (N // BATCH) * BATCH
        one, other = augment(IMAGES[order[place : place + BATCH]], random_numbers(seed, number, images=BATCH, views=2))
        z = network(torch.cat([one, other]))
        loss = contrastive_loss(torch.stack([z[:BATCH], z[BATCH:]], 1), temperature=0.5, tau_plus=0.1)
        optimizer.zero_grad()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = rate(number)
        optimizer.step()
        losses.append(loss.item())
    return losses


def warm_and_fall(number, steps=12, rising=1):
    peak = 0.06 * math.sqrt(BATCH / 256)
    return peak if number < rising else peak * 0.5 * (1 + math.cos(math.pi * (number - rising) / (steps - rising)))


def assert_near(found, wanted, within):
    for name in wanted:
        torch.testing.assert_close(
            found[name], wanted[name], atol=within, rtol=0, msg=lambda text, name=name: name + text
        )


def test_modern_steps_are_those_of_a_loop_written_out():
    # in double precision, as a ReLU makes much of a rounding
    run, plain = training(with_norms().double(), recipe()), with_norms().double()
    weights = [p for p in plain.parameters() if p.ndim > 1]
    rest = [p for p in plain.parameters() if p.ndim <= 1]
    optimizer = torch.optim.SGD(
        [{"params": weights, "weight_decay": 1e-4}, {"params": rest, "weight_decay": 0}], 1.0, momentum=0.9
    )
    wanted = by_hand(plain, optimizer, warm_and_fall, views="natural")
    assert train(run, steps=5) == pytest.approx(wanted, abs=1e-5)
    assert_near(state(run.network), state(plain), 1e-5)


def test_impulses_steps_are_those_of_a_loop_written_out():
    run, plain = training(without_norms(), recipe("impulses")), without_norms()
    optimizer = torch.optim.Adam(plain.parameters(), 1.0, betas=(0.9, 0.999))
    wanted = by_hand(plain, optimizer, lambda number: 3e-4, views="impulses")
    assert train(run, steps=5) == pytest.approx(wanted, abs=1e-5)
    assert_near(state(run.network), state(plain), 1e-4)


# --- in parts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [2, 4, 8])
def test_parts_make_the_loss_and_the_gradient_of_the_whole(accumulate):
    whole, parts = training(without_norms(), recipe()), training(without_norms(), recipe(accumulate=accumulate))
    assert train(parts, steps=1) == pytest.approx(train(whole, steps=1), abs=1e-6)
    assert_near(gradients(parts.network), gradients(whole.network), 1e-6)


def test_parts_move_the_running_statistics_once_an_image():
    run = training(with_norms(), recipe(accumulate=4))
    train(run, steps=1)
    counts = [int(tensor) for name, tensor in run.network.named_buffers() if name.endswith("batches_tracked")]
    assert counts and set(counts) == {4}


# --- losses ---------------------------------------------------------------------------------------

TEMPERATURES = st.floats(0.05, 5)
# the share of neg that tau_plus * pos must stay away from: there the bound is taken a little early
EDGE = 1e-5


def by_the_formulas(z, temperature, tau_plus):
    """The loss as METHOD.md has it, anchor by anchor; also whether the bound holds for each, and how near it is."""
    B, M, _ = z.shape
    z = z / np.sqrt((z**2).sum(2, keepdims=True))
    N = M * (B - 1)
    losses, bound, edge = [], [], []
    for i in range(B):
        for a in range(M):
            pos = np.mean([math.exp(z[i, a] @ z[i, k] / temperature) for k in range(M) if k != a])
            neg = np.mean([math.exp(z[i, a] @ z[j, k] / temperature) for j in range(B) if j != i for k in range(M)])
            unbiased, least = (neg - tau_plus * pos) / (1 - tau_plus), math.exp(-1 / temperature)
            losses.append(-math.log(pos / (pos + N * max(unbiased, least))))
            bound.append(unbiased < least)
            edge.append(abs(neg - tau_plus * pos) / neg < EDGE)
    return np.mean(losses), np.array(bound), any(edge)


def projections(B, M, d, seed, spread=None):
    """Random ones; with a `spread`, views of an image that differ by so much."""
    generator = np.random.default_rng(seed)
    if spread is None:
        return generator.standard_normal((B, M, d))
    return generator.standard_normal((B, 1, d)) + spread * generator.standard_normal((B, M, d))


# --- the formulas ------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    B=st.integers(2, 6),
    M=st.integers(2, 4),
    d=st.integers(1, 9),
    seed=st.integers(0, 2**31),
    spread=st.none() | st.floats(0.01, 3),
    temperature=TEMPERATURES,
    tau_plus=st.just(0.0) | st.floats(0, 0.9),
)
def test_the_loss_is_that_of_the_formulas(B, M, d, seed, spread, temperature, tau_plus):
    z = projections(B, M, d, seed, spread)
    expected, _, edge = by_the_formulas(z, temperature, tau_plus)
    got = contrastive_loss(torch.from_numpy(z), temperature=temperature, tau_plus=tau_plus)
    assert got.dtype == torch.float64 and got.shape == ()
    assert float(got) == pytest.approx(expected, rel=1e-9, abs=1e-3 if edge else 1e-12)


# --- gradients ---------------------------------------------------------------------------------


@pytest.mark.parametrize("tau_plus", [0.0, 0.1])
@pytest.mark.parametrize("temperature", [0.1, 0.5, 3.0])
@pytest.mark.parametrize("M", [2, 3])
def test_the_gradient_is_that_of_finite_differences(M, temperature, tau_plus):
    z = projections(4, M, 5, 3)
    _, bounds, edge = by_the_formulas(z, temperature, tau_plus)
    assert not edge and not bounds.all()
    z = torch.from_numpy(z).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: contrastive_loss(z, temperature=temperature, tau_plus=tau_plus), z)


@pytest.mark.parametrize("temperature", [0.2, 0.3])
def test_the_gradient_is_that_of_finite_differences_where_the_bound_holds_for_some_or_all(temperature):
    for spread, some in [(0.3, True), (0.01, False)]:
        z = projections(6, 2, 3, 0, spread)
        _, bounds, edge = by_the_formulas(z, temperature, 0.3)
        assert not edge and bounds.any() and bounds.all() != some
        z = torch.from_numpy(z).requires_grad_()
        assert torch.autograd.gradcheck(lambda z: contrastive_loss(z, temperature=temperature, tau_plus=0.3), z)


# --- alignment and uniformity ----------------------------------------------------------------------


@pytest.mark.parametrize("M", [2, 3, 4])
def test_alignment_is_the_mean_squared_distance_of_views_of_one_image(M):
    z = projections(6, M, 5, M)
    unit = z / np.sqrt((z**2).sum(2, keepdims=True))
    pairs = [((one[a] - one[b]) ** 2).sum() for one in unit for a in range(M) for b in range(M) if a != b]
    assert float(alignment(torch.from_numpy(z))) == pytest.approx(np.mean(pairs), rel=1e-5)


def test_uniformity_is_the_logarithm_of_the_mean_kernel_of_first_views():
    z = projections(7, 2, 5, 0)
    first = z[:, 0] / np.sqrt((z[:, 0] ** 2).sum(1, keepdims=True))
    kernel = [math.exp(-2 * ((a - b) ** 2).sum()) for i, a in enumerate(first) for j, b in enumerate(first) if i != j]
    assert float(uniformity(torch.from_numpy(z))) == pytest.approx(math.log(np.mean(kernel)), rel=1e-5)


HARD = {
    "random": torch.from_numpy(projections(4, 2, 8, 0)).float(),
    "identical views": torch.from_numpy(projections(4, 1, 8, 0)).float().expand(4, 3, 8),
    "nearly identical views": torch.from_numpy(projections(4, 2, 8, 0, 1e-6)).float(),
    "opposite views": torch.from_numpy(projections(4, 1, 8, 0)).float() * torch.tensor([1.0, -1])[:, None],
    "identical images": torch.from_numpy(projections(1, 2, 8, 0)).float().expand(4, 2, 8),
    "one point": torch.ones(4, 2, 8),
    "two opposite points": torch.ones(4, 2, 8) * torch.tensor([1.0, -1, 1, -1])[:, None, None],
    "an image at zero": torch.from_numpy(projections(4, 2, 8, 0)).float() * torch.tensor([0.0, 1, 1, 1])[:, None, None],
    "zero": torch.zeros(4, 2, 8),
}


@pytest.mark.parametrize("name", HARD)
def test_loss_and_gradient_are_finite(name):
    for temperature, tau_plus in itertools.product([1e-20, 0.005, 0.5, 1e30], [0, 0.1, 0.9, 1 - 1e-9]):
        z = HARD[name].clone().requires_grad_()
        loss = contrastive_loss(z, temperature=temperature, tau_plus=tau_plus)
        loss.backward()
        assert loss.isfinite() and loss >= 0 and z.grad.isfinite().all(), (temperature, tau_plus)


# --- network --------------------------------------------------------------------------------------


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


# --- compiled ------------------------------------------------------------------------------------


def warned(caplog):
    """What pucache and torch's compiler warn of; what torch says of the machine does not count."""
    of_interest = ("pucache", "torch._dynamo", "torch._inductor")
    records = [record for record in caplog.records if record.name.startswith(of_interest)]
    return [record.getMessage() for record in records if record.levelno >= logging.WARNING]


def compiled(network, how):
    """A training whose steps are compiled, and one whose steps are not."""
    run, plain = training(network(), how), training(network(), how)
    run.compile(0, IMAGES[next(iter(run.batch_rows(0)))])
    return run, plain


@pytest.mark.slow
def test_a_traced_step_is_the_plain_one_dropout_included(monkeypatch, caplog):
    """torch traces and differentiates what it compiles, and computes it without a compiler, which takes a minute."""
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda part, **options: compile_(part, backend="aot_eager", dynamic=False))
    run, plain = compiled(lambda: without_norms(0.3), recipe(accumulate=2, views="overhead"))
    assert train(run, steps=5) == pytest.approx(train(plain, steps=5), abs=1e-5)
    assert_near(state(run.network), state(plain.network), 1e-5)
    assert warned(caplog) == []


def test_compiling_changes_neither_network_nor_gradients(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda part, **options: part)  # the steps that it tries count here
    run, plain = compiled(with_norms, recipe())
    assert_near(state(run.network), state(plain.network), 0)
    assert all(parameter.grad is None for parameter in run.network.parameters())


def test_where_compiling_fails_one_line_says_so_and_steps_are_plain(monkeypatch, caplog):
    def fails(*arguments, **named):
        raise RuntimeError("no working C++ compiler\nset the environment variable CXX")

    monkeypatch.setattr(torch, "compile", lambda part, **options: fails)
    run, plain = compiled(with_norms, recipe())
    [line] = warned(caplog)
    assert "the training step cannot be compiled (no working C++ compiler" in line and "\n" not in line
    assert train(run, steps=3) == train(plain, steps=3)
