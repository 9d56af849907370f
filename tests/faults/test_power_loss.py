import random

import pytest
from helpers.slow import slow

from faults.places import state
from faults.powerloss import END, check_crash, crashes

pytestmark = pytest.mark.slow


def some(found, count):
    """A few of the disks, always with those of after the end."""
    last = [crash for crash in found if crash.safe is None]
    rest = [crash for crash in found if crash.safe is not None]
    return last + random.Random(0).sample(rest, min(count, len(rest)))


@pytest.mark.parametrize(("name", "count"), [("embed", 4), slow("update", 3)])
def test_after_a_power_loss_every_row_that_was_said_to_be_safe_is_there(world, tmp_path, name, count):
    for crash in some(crashes(world, world.jobs[name], tmp_path / "seen"), count):
        check_crash(world, world.jobs[name], crash, tmp_path / "seen")


@pytest.mark.parametrize("name", ["pack", *map(slow, ("score, Parquet", "train-pu", "retrieve"))])
def test_after_a_power_loss_an_output_is_the_whole_old_or_the_whole_new_one(world, tmp_path, name):
    for crash in some(crashes(world, world.jobs[name], tmp_path / "seen"), 2):
        check_crash(world, world.jobs[name], crash, tmp_path / "seen")


def test_the_folder_of_the_parts_is_on_disk_before_any_part_is_said_to_be_safe(world, tmp_path):
    job = world.jobs["embed"]
    found = crashes(world, job, tmp_path / "seen")
    for crash in found:
        assert not crash.safe or {"cache.h5", "cache.h5.parts"} & crash.files.keys(), crash.when


@pytest.mark.parametrize("name", ["pack", slow("embed"), slow("train-pu")])
def test_a_disk_whose_fsync_does_nothing_is_found_out(world, tmp_path, name):
    found = crashes(world, world.jobs[name], tmp_path / "seen", honest=False)
    ends = [crash for crash in found if crash.when.startswith(END)]
    assert len(ends) > 1
    refused = 0
    for crash in ends:
        try:
            check_crash(world, world.jobs[name], crash, tmp_path / "seen")
        except AssertionError:
            refused += 1
    assert refused >= len(ends) - 1  # all but the disk that happened to keep everything


def test_on_an_honest_disk_only_one_thing_is_possible_after_the_end(world, tmp_path):
    job = world.jobs["pack"]
    (only,) = (crash for crash in crashes(world, job, tmp_path / "seen") if crash.safe is None)
    assert only.files.keys() == world.undisturbed(job).after.keys()
    check_crash(world, job, only, tmp_path / "seen")
    assert state(tmp_path / "seen")
