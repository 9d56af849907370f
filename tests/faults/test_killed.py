import signal
import time

import pytest
from helpers.slow import slow

from faults.places import state
from faults.stopping import count, interrupt_often, kill_often

# What starts the commands takes 20 seconds; tests/embedding/test_resume.py kills an embedding at eight places.
pytestmark = pytest.mark.slow


def killed(struck):
    """How many kills struck a running command."""
    places = count(struck)
    return places.total() - places["after the end"]


@pytest.mark.parametrize("name", ["embed", *map(slow, ("embed, workers", "update", "reuse", "score, images"))])
def test_a_killed_embed_loses_nothing_that_was_safe_and_ends_in_the_same_bytes(world, name):
    assert killed(kill_often(world, world.jobs[name], 2, 1)) == 2


@pytest.mark.parametrize("name", ["score", *map(slow, ("train-pu", "pack", "score, Parquet", "retrieve", "import"))])
def test_a_killed_command_leaves_its_output_whole_or_absent_and_the_next_one_clears_up(world, name):
    assert killed(kill_often(world, world.jobs[name], 2, 3)) == 2


def test_a_command_as_users_start_it_goes_on_after_a_kill_and_agrees_with_the_forked_ones(world):
    assert killed(kill_often(world, world.jobs["embed"], 1, 4, plain_every=1)) == 1
    folder = world.place(world.jobs["embed"])
    world.check_finished(world.jobs["embed"], folder, world.zygote.plain(world.jobs["embed"].command, folder).wait())


def test_a_writer_killed_while_it_writes_leaves_a_partial_which_the_next_writer_removes(world):
    for name in ("embed", "pack", "score", "train-pu", "retrieve"):
        job = world.jobs[name]
        folder = world.place(job)
        twist = [("die_in_replace", {"call": 1})]
        assert world.zygote.run(job.command, folder, twists=twist).code == -signal.SIGKILL
        assert any(path.endswith(".partial") for path in state(folder)), name
        world.check_interrupted(job, folder)
        world.check_rerun(job, folder)


@pytest.mark.parametrize("name", ["embed", *map(slow, ("embed, workers", "pack", "train-pu"))])
def test_ctrl_c_and_sigterm_say_how_to_go_on_and_leave_outputs_whole_or_absent(world, name):
    assert count(interrupt_often(world, world.jobs[name], 2, 5)).total() == 2


def test_ctrl_c_again_while_it_is_ending_shows_no_traceback(world):
    job = world.jobs["embed"]
    folder = world.place(job)
    command = world.zygote.start(job.command, folder)
    command.begun()
    time.sleep(world.undisturbed(job).seconds / 3)
    for _ in range(3):
        command.signal(signal.SIGINT)
        time.sleep(0.01)
    ended = command.wait()
    assert ended.code in (130, -signal.SIGINT) and "Traceback" not in ended.stderr, ended.stderr
    world.check_interrupted(job, folder)
    world.check_rerun(job, folder, ended.acknowledged)
