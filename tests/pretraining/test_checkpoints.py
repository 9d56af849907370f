import itertools

import numpy as np
import pytest
import torch
from helpers.training_parts import recipe, state, train, training, with_norms, without_norms

from pucache.errors import OutputError, RunError
from pucache.pretraining import checkpoints
from pucache.storage import tensor_file

pytestmark = pytest.mark.usefixtures("one_thread")


def saved(folder, steps=(2, 4)):
    """A training that was saved after each of these steps."""
    run = training(without_norms(dropout=0.3), recipe())
    for first, last in itertools.pairwise((0, *steps)):
        losses = train(run, first, last - first)
        checkpoints.save(folder, last, run.network, run.optimizer, {"losses": losses})
    return run


def load(folder, run=None):
    run = run or training(without_norms(dropout=0.3), recipe())
    return checkpoints.load(folder, run.network, run.optimizer), run


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def damage(path):
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(("make", "name"), [(lambda: without_norms(dropout=0.3), "modern"),
                                            (lambda: without_norms(dropout=0.3), "impulses"),
                                            (with_norms, "modern"), (with_norms, "impulses")])  # fmt: skip
def test_training_goes_on_from_a_checkpoint_bit_for_bit(make, name, tmp_path):
    whole, first, second = (training(make(), recipe(name)) for _ in range(3))
    wanted = train(whole, steps=8)
    losses = train(first, steps=5)
    checkpoints.save(tmp_path / "new" / "folder", 5, first.network, first.optimizer, {"losses": losses, "more": None})
    told, _ = load(tmp_path / "new" / "folder", second)
    assert told == {"losses": wanted[:5], "more": None, "step": 5}
    assert train(second, 5, 3) == wanted[5:]
    for tensor, other in zip(state(whole.network).values(), state(second.network).values(), strict=True):
        assert torch.equal(tensor, other)


def test_where_there_is_none_nothing_is_loaded(tmp_path):
    assert load(tmp_path)[0] is None and load(tmp_path / "missing")[0] is None
    assert not checkpoints.exist(tmp_path)


def test_the_last_two_are_kept(tmp_path):
    saved(tmp_path, (1, 2, 3, 4))
    assert names(tmp_path) == ["0000000003.safetensors", "0000000004.safetensors"] and checkpoints.exist(tmp_path)


@pytest.mark.parametrize("how", ["flipped", "cut", "empty", "a folder", "of another step"])
def test_a_damaged_one_is_said_and_the_one_before_it_is_taken(how, tmp_path, caplog):
    saved(tmp_path)
    last, before = tmp_path / "0000000004.safetensors", tmp_path / "0000000002.safetensors"
    if how == "flipped":
        damage(last)
    elif how == "of another step":
        last.write_bytes(before.read_bytes())
    elif how == "a folder":
        last.unlink()
        last.mkdir()
    else:
        last.write_bytes(last.read_bytes()[: 1000 if how == "cut" else 0])
    told, _ = load(tmp_path)
    assert told["step"] == 2
    assert "0000000004" in caplog.text and "going back to the state after step 2" in caplog.text


def test_where_none_is_whole_the_remedy_is_told(tmp_path):
    saved(tmp_path)
    for path in tmp_path.iterdir():
        damage(path)
    with pytest.raises(RunError, match=r"no checkpoint in .* is whole; remove that folder") as error:
        load(tmp_path)
    assert "\n" not in str(error.value)


def test_one_of_another_network_is_not_taken(tmp_path):
    saved(tmp_path)
    with pytest.raises(RunError, match="no checkpoint"):
        load(tmp_path, training(with_norms(), recipe()))


def test_damaged_ones_are_set_aside_and_never_taken_for_the_last(tmp_path):
    run = saved(tmp_path)
    damage(tmp_path / "0000000004.safetensors")
    checkpoints.set_aside_after(tmp_path, 2)
    checkpoints.save(tmp_path, 3, run.network, run.optimizer, {})
    assert names(tmp_path) == ["0000000002.safetensors", "0000000003.safetensors", "0000000004.damaged"]


def test_a_full_disk_leaves_those_that_are_there(tmp_path, small_disk):
    run = saved(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with small_disk(10_000), pytest.raises(OutputError, match="cannot write"):
        checkpoints.save(tmp_path, 6, run.network, run.optimizer, {})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    run = training(without_norms(), recipe())
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="cannot write"):
        checkpoints.save(tmp_path / "file" / "below", 1, run.network, run.optimizer, {})


@pytest.mark.parametrize(
    ("name", "values"),
    [("optimizer.x", np.zeros(1)), ("optimizer.99.exp_avg", np.zeros(2)), ("optimizer.0.momentum_buffer", np.zeros(7))],
)
def test_an_optimiser_that_does_not_fit_is_not_taken(name, values, tmp_path):
    saved(tmp_path)
    last = tmp_path / "0000000004.safetensors"
    tensors, told = tensor_file.read(last, checkpoints.KIND, max_bytes=1 << 30)
    tensor_file.write(last, checkpoints.KIND, tensors | {name: values}, told)
    assert load(tmp_path)[0]["step"] == 2
