"""Commands that are killed, interrupted, or refused by the disk at chosen points; `World.strike` says what holds."""

import errno
import os
import random
import signal
import time

import pytest

from faults.filling import can_mount, disk
from faults.places import After, Clock, ended, strike_each
from faults.powerloss import check_crash, crashes
from pucache import EmbeddingCache
from pucache.errors import CacheError

# What starts the commands takes 20 seconds.
pytestmark = pytest.mark.slow

KILL, INTERRUPT, TERMINATE = signal.SIGKILL, signal.SIGINT, signal.SIGTERM
ALL = range(1, 1000)
SOME = [
    ("rename", [1, 2, 4], KILL),
    ("fsync", [1, 3], -errno.EIO),
    ("new file", [1], -errno.ENOSPC),
    ("rename", [1], INTERRUPT),
]
OTHERS = ("embed, workers", "update", "reuse", "pack", "score, Parquet", "import", "export")
FAULTS = {  # job: point, calls, signal or (negative) error
    "embed": [
        *(("fsync", [1, 4, 13], fault) for fault in (KILL, INTERRUPT, -errno.EIO)),
        ("rename", ALL, KILL),
        ("rename", [1, 3], -errno.EIO),
        ("new file", [1, 2, 3], -errno.ENOSPC),
        ("new file", [1], -errno.EROFS),
        ("write", [10, 33], KILL),
        ("write", [10, 33], TERMINATE),
        ("removal", [1], KILL),
    ],
    "score": [
        ("fsync", ALL, KILL),
        ("rename", ALL, -errno.EIO),
        ("rename", [1], TERMINATE),
        ("new file", [1], -errno.EACCES),
    ],
    # the first calls are those of the whitening and of the graph of neighbours, without which commands go on
    "train-pu": [
        ("fsync", [1, 2, 3, 5, 7], KILL),
        ("rename", [1, 2, 3, 4], KILL),
        ("fsync", [1, 5], -errno.EIO),
        ("rename", [3], -errno.EIO),
    ],
    "retrieve": [
        ("fsync", [1, 2, 3, 4], KILL),
        ("rename", [1, 2], KILL),
        ("fsync", [3, 4], -errno.EIO),
        ("rename", [2], -errno.EIO),
        ("new file", [2], -errno.ENOSPC),
        ("rename", [1, 2], INTERRUPT),
    ],
    "score, images": [("rename", [1, 2, 4], KILL), ("fsync", [1, 9], -errno.EIO)],
}


@pytest.mark.parametrize(
    ("name", "point", "calls", "fault"),
    [(name, *row) for name, rows in [*FAULTS.items(), *((name, SOME) for name in OTHERS)] for row in rows],
    ids=str,
)
def test_a_fault_at_any_point_leaves_outputs_whole_and_what_was_safe_is_not_computed_again(
    world, name, point, calls, fault
):
    job = world.jobs[name]
    struck = strike_each(world, job, point, calls, number=fault)
    assert struck
    for done in struck:
        if fault < 0 and done.code == 0:
            assert name == "train-pu" and "is not kept, and made anew each time: cannot write" in done.stderr
        elif fault < 0:
            done.error(os.strerror(-fault))
        else:
            assert done.code == (-KILL if fault == KILL else 128 + fault), done.stderr


def test_ctrl_c_again_while_it_is_ending_shows_no_traceback(world):
    job = world.jobs["embed"]
    seconds = world.undisturbed(job).seconds
    done = world.strike(job, *(After(seconds / 2 + number / 100, INTERRUPT) for number in range(3)))
    assert done.code in (0, 128 + INTERRUPT), done.stderr


@pytest.fixture
def small_disk_folder(tmp_path):
    """A disk of its own."""
    if not can_mount(tmp_path):
        pytest.skip("mounting a small disk needs root")
    with disk(tmp_path / "disk") as mounted:
        yield mounted


@pytest.mark.parametrize(
    ("name", "room"),
    [
        *(("embed", room) for room in ({"pages": 1}, {"pages": 14}, {"inodes": 4}, {"mode": "ro"})),
        *(("score", room) for room in ({"pages": 0}, {"inodes": 0})),
        ("pack", {"pages": 2}),
        ("train-pu", {"pages": 1}),
    ],
    ids=str,
)
def test_a_full_or_read_only_disk_is_one_line_and_with_room_the_same_command_goes_on(
    world, small_disk_folder, name, room
):
    job, full = world.jobs[name], small_disk_folder
    world.undisturbed(job)
    folder = world.place(job, full.folder)
    used = dict(zip(("pages", "inodes"), full.used, strict=True))
    full.resize(**{kind: max(1, used[kind] + more) if kind in used else more for kind, more in room.items()})
    done = world.run(job.command, folder)
    done.error("Read-only file system" if "mode" in room else "No space left on device")
    assert any(os.path.basename(output) in done.stderr for output in job.outputs)
    world.check_interrupted(job, folder)
    full.resize()
    world.check_rerun(job, folder, done.acknowledged)


@pytest.mark.parametrize("name", ["embed", "pack", "update", "train-pu"])
def test_after_a_power_loss_every_safe_row_is_there_and_outputs_are_whole(world, name):
    found = crashes(world, world.jobs[name])
    at_the_end = [crash for crash in found if crash.safe is None]
    assert at_the_end
    for crash in at_the_end + random.Random(0).sample(found, min(4, len(found))):
        check_crash(world, world.jobs[name], crash)
    for crash in found:
        assert not crash.safe or {"cache.h5", "cache.h5.parts"} & crash.files.keys(), crash.when


def test_a_clock_that_jumps_changes_nothing(world):
    year = 365 * 24 * 3600
    job = world.jobs["update"]
    world.check_rerun(job, world.place(job), 0, Clock((0, 30 * year, -30 * year, 3600, 1e-3)))


@pytest.mark.parametrize("name", ["embed", "update", "score", "import"])
def test_of_two_at_once_both_end_well_or_the_second_writer_of_one_file_is_refused(world, name):
    refused = world.rivals(world.jobs[name], random.Random(0).uniform(0, 0.3))
    assert not refused or name in ("embed", "update", "import")


def test_readers_beside_a_writer_see_the_whole_old_or_the_whole_new_cache(world):
    job = world.jobs["update"]
    whole, folder = world.undisturbed(job), world.place(job)
    path = folder / "cache.h5"
    seen, sides = [], []
    with world.start(job.command, folder) as writer:
        while not seen or writer.running:
            try:
                seen.append(rows(path))
            except CacheError as error:
                assert "while it was open; open it again" in str(error)
            time.sleep(0.001)
        assert ended(writer).code == 0
    for side in (whole.before, whole.after):
        path.write_bytes(side["cache.h5"])
        sides.append(rows(path))
    assert all(read in sides for read in seen)


def rows(path):
    cache = EmbeddingCache(path)
    return {key: row.tobytes() for key, row in zip(cache.keys, cache.X, strict=True)}
