import itertools
import re

import pytest
from helpers.files import damage
from helpers.refusals import one_line
from helpers.training_parts import recipe, train, training, without_norms

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


@pytest.mark.parametrize("how", ["cut", "empty", "a folder", "of another step"])
def test_a_damaged_one_is_said_and_the_one_before_it_is_taken(how, tmp_path, caplog):
    saved(tmp_path)
    last, before = (files(tmp_path) / f"000000000{step}.safetensors" for step in (4, 2))
    if how == "of another step":
        last.write_bytes(before.read_bytes())
    elif how == "a folder":
        last.unlink()
        last.mkdir()
    else:
        last.write_bytes(last.read_bytes()[: 1000 if how == "cut" else 0])
    assert load(tmp_path)["step"] == 2
    assert "0000000004" in caplog.text and "going back to the state after step 2" in caplog.text


def test_where_none_is_whole_the_remedy_is_told(tmp_path):
    saved(tmp_path)
    for path in files(tmp_path).iterdir():
        damage(path)
    assert re.search("no checkpoint in .* is whole; remove that folder", one_line(RunError, load, tmp_path))
