import itertools
import re
import shutil

import pytest
from helpers.files import damage
from helpers.learned import write_run
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


def claimed(folder, seed, *, saves=0, **settings):
    """The step that a run of this seed goes on from, after it has saved so many times."""
    run = training(without_norms(dropout=0.3), recipe())
    with RunFolder(folder) as opened:
        opened.claim(recipe(), {"seed": seed, "images": "abc"} | settings, {})
        for step in range(2, 2 * saves + 1, 2):
            train(run, step - 2, 2)
            opened.save(step, run.network, run.optimizer, {})
        found = opened.load(run.network, run.optimizer)
    return found and found[1]["step"]


def test_a_checkpoint_of_another_run_is_set_aside_and_one_of_before_is_taken(tmp_path, caplog):
    assert claimed(tmp_path / "mine", 0, saves=2) == 4 and claimed(tmp_path / "other", 1, saves=3) == 6
    shutil.copy(files(tmp_path / "other") / "0000000006.safetensors", files(tmp_path / "mine"))
    assert claimed(tmp_path / "mine", 0) == 4
    assert "is the checkpoint of another run" in caplog.text
    saved(tmp_path / "before")  # no run claimed them
    (tmp_path / "before/checkpoints/0000000004.safetensors").unlink()
    assert load(tmp_path / "before")["step"] == 2


@pytest.mark.parametrize("loss", ["missing", "empty"])
def test_an_encoder_whose_checkpoints_are_lost_is_kept_when_the_run_begins_anew(tmp_path, caplog, loss):
    write_run(tmp_path)
    if loss == "empty":
        files(tmp_path).mkdir()
    before = (tmp_path / "encoder.safetensors").read_bytes()
    assert load(tmp_path) is None
    assert (tmp_path / "encoder.before.safetensors").read_bytes() == before
    assert "holds no checkpoint, so the run begins anew" in caplog.text
