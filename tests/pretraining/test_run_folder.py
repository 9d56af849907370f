import itertools

import pytest
import torch
from helpers.files import damage
from helpers.training_parts import recipe, train, training, with_norms, without_norms

from pucache.errors import RunError
from pucache.pretraining.run_folder import RunFolder

pytestmark = pytest.mark.usefixtures("one_thread")


def saved(folder, steps=(2, 4)):
    """A training that was saved after each of these steps."""
    run = training(without_norms(dropout=0.3), recipe())
    for first, last in itertools.pairwise((0, *steps)):
        losses = train(run, first, last - first)
        save(folder, last, run, losses=losses)
    return run


def save(folder, step, run, **state):
    with RunFolder(folder) as opened:
        opened.save(step, run.network, run.optimizer, state)


def load(folder, run=None):
    """State of the last whole checkpoint."""
    run = run or training(without_norms(dropout=0.3), recipe())
    with RunFolder(folder) as opened:
        found = opened.load(run.network, run.optimizer)
    return found and found[1]


def files(folder):
    return folder / "checkpoints"


def names(folder):
    return sorted(path.name for path in files(folder).iterdir())


@pytest.mark.parametrize("how", ["flipped", "cut", "empty", "a folder", "of another step"])
def test_a_damaged_one_is_said_and_the_one_before_it_is_taken(how, tmp_path, caplog):
    saved(tmp_path)
    last, before = (files(tmp_path) / f"000000000{step}.safetensors" for step in (4, 2))
    if how == "flipped":
        damage(last)
    elif how == "of another step":
        last.write_bytes(before.read_bytes())
    elif how == "a folder":
        last.unlink()
        last.mkdir()
    else:
        last.write_bytes(last.read_bytes()[: 1000 if how == "cut" else 0])
    assert load(tmp_path)["step"] == 2
    assert "0000000004" in caplog.text and "going back to the state after step 2" in caplog.text


def test_damaged_ones_are_set_aside_and_never_taken_for_the_last(tmp_path):
    run = saved(tmp_path)
    damage(files(tmp_path) / "0000000004.safetensors")
    load(tmp_path)
    save(tmp_path, 3, run)
    assert names(tmp_path) == ["0000000002.safetensors", "0000000003.safetensors", "0000000004.damaged"]


def test_where_none_is_whole_the_remedy_is_told(tmp_path):
    saved(tmp_path)
    for path in files(tmp_path).iterdir():
        damage(path)
    with pytest.raises(RunError, match=r"no checkpoint in .* is whole; remove that folder") as error:
        load(tmp_path)
    assert "\n" not in str(error.value)


def layout(tensor):
    """Strides, but for those along which there is nothing to stride."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


@pytest.mark.parametrize("name", ["modern", "impulses"])
def test_states_of_the_optimiser_have_the_strides_of_their_parameters(name, tmp_path):
    first, second = (training(with_norms(), recipe(name)) for _ in range(2))
    train(first, steps=2)
    save(tmp_path, 2, first)
    load(tmp_path, second)
    parameters = list(second.network.parameters())
    assert any(p.ndim == 4 and layout(p) != layout(p.contiguous()) for p in parameters)
    for parameter, earlier in zip(parameters, first.network.parameters(), strict=True):
        found, expected = second.optimizer.state[parameter], first.optimizer.state[earlier]
        assert found.keys() == expected.keys() != set()
        for field, tensor in found.items():
            assert torch.equal(tensor, expected[field])
            assert not tensor.ndim or layout(tensor) == layout(parameter)
