import math

import numpy as np
import pytest
import torch
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

from pucache.pretraining.augmentations import VIEWS, Augment, random_numbers
from pucache.pretraining.losses import contrastive_loss

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
    parts, plain = (training(with_norms(), recipe(accumulate=4)) for _ in range(2))
    rows, drawn = next(iter(plain.batch_rows(0))), random_numbers(3, 0, images=BATCH, views=2)
    with torch.no_grad():  # one pass of each part, in their order
        for place, (images, numbers) in enumerate(zip(IMAGES[rows].chunk(4), drawn.chunk(4), strict=True)):
            plain._project(0, place, images, numbers)
    train(parts, steps=1)
    moved = [name for name, tensor in parts.network.named_buffers() if not torch.equal(tensor, state(with_norms()).get(
             name, tensor))]  # fmt: skip
    found, wanted = state(parts.network), state(plain.network)
    assert len(moved) == 3 * sum(name.endswith("batches_tracked") for name in found) > 0
    for name in moved:
        assert torch.equal(found[name], wanted[name]), name


# --- the order ---------------------------------------------------------------------------------


def rows_of(run, first=0):
    return [rows.tolist() for rows in run.batch_rows(first)]


def joined(batches):
    return [row for rows in batches for row in rows]


def test_every_epoch_is_another_order_without_repetition():
    run = training(without_norms(), recipe())
    batches = rows_of(run)
    assert len(batches) == run.steps == 12 and run.steps_per_epoch == 3 and {len(rows) for rows in batches} == {BATCH}
    epochs = [joined(batches[first : first + 3]) for first in range(0, 12, 3)]
    for epoch in epochs:
        assert len(set(epoch)) == 3 * BATCH and set(epoch) <= set(range(N))
    assert len(set(map(tuple, epochs))) == 4
    assert set(joined(epochs)) == set(range(N))  # what one leaves out is in another
    assert batches != rows_of(training(without_norms(), recipe(), seed=4))
