import os

import pytest
from helpers.slow import slow

from faults.places import LEFTOVER, error_line, state

pytestmark = pytest.mark.slow

NOBODY = [("nobody", {})]


def open_to_all(*paths):
    """Let the user that root becomes write here too."""
    for path in paths:
        path.chmod(0o777 if path.is_dir() else 0o666)


@pytest.fixture
def reachable(world):
    """The folders above are private to the user who runs the tests; let others pass."""
    changed = []
    for folder in (world.folder, *world.folder.parents):
        mode = folder.stat().st_mode
        if folder.stat().st_uid == os.getuid() and not mode & 0o001:
            folder.chmod(mode | 0o011)
            changed.append((folder, mode))
    yield
    for folder, mode in changed:
        folder.chmod(mode)


@pytest.mark.parametrize("name", ["embed", "pack", "score", "train-pu"])
def test_a_folder_that_may_not_be_written_is_one_line_and_when_it_may_the_command_goes_on(world, reachable, name):
    job = world.jobs[name]
    folder = world.place(job)
    for path in folder.iterdir():
        open_to_all(path)
    folder.chmod(0o555)
    done = world.zygote.run(job.command, folder, twists=NOBODY)
    error_line(done, "Permission denied", os.path.basename(job.outputs[0]))
    world.check_interrupted(job, folder)
    folder.chmod(0o777)
    world.check_rerun(job, folder, twists=NOBODY)


@pytest.mark.parametrize("inner", [False, slow(True)])
def test_a_folder_that_loses_its_permission_midway_is_one_line_and_nothing_safe_is_lost(world, reachable, inner):
    job = world.jobs["embed"]
    folder = world.place(job)
    open_to_all(folder)
    command = world.zygote.start(job.command, folder, twists=[*NOBODY, ("slow", {"seconds": 1.0})])
    parts = folder / "cache.h5.parts"
    while command.code(0.002) is None and not list(parts.glob("part-*.h5")):
        pass
    (parts if inner else folder).chmod(0o555)
    done = command.wait()
    error_line(done, "Permission denied")
    assert done.acknowledged > 0
    (parts if inner else folder).chmod(0o777)
    world.check_interrupted(job, folder)
    world.check_rerun(job, folder, done.acknowledged, twists=NOBODY)


def test_an_image_folder_that_loses_its_permission_keeps_its_rows_and_shows_as_a_failure(world, reachable):
    job, folder = world.jobs["update"], world.place(world.jobs["embed"])
    red = world.images / "red"
    world.check_rerun(world.jobs["embed"], folder)
    open_to_all(folder, folder / "cache.h5", folder / ".cache.h5.lock")
    mode = red.stat().st_mode
    red.chmod(0o000)
    try:
        done = world.zygote.run(job.command, folder, twists=NOBODY)
    finally:
        red.chmod(mode)
    assert done.code == 0, done.stderr
    assert "Permission denied" in done.result["failures"]["red/"]
    assert (done.result["rows"], done.result["computed"], done.result["vanished"]) == (88, 0, 0)
    again = world.zygote.run(job.command, folder)
    assert (again.result["rows"], again.result["computed"]) == (88, 0)
    world.check_finished(world.jobs["embed"], folder, again)


def test_images_that_lose_their_permission_while_they_are_read_are_failures_and_come_back(world, reachable):
    job = world.jobs["embed"]
    folder = world.place(job)
    open_to_all(folder)
    command = world.zygote.start(job.command, folder, twists=[*NOBODY, ("slow", {"seconds": 1.0})])
    while command.code(0.002) is None and not (folder / "cache.h5.parts").exists():
        pass
    mode = world.images.stat().st_mode
    world.images.chmod(0o000)
    try:
        done = command.wait()
    finally:
        world.images.chmod(mode)
    assert done.code == 0, done.stderr
    told = done.result
    lost = [reason for reason in told["failures"].values() if "Permission denied" in reason]
    assert lost and told["rows"] + len(told["failures"]) == 91
    again = world.zygote.run(job.command, folder)
    assert again.result["computed"] == 88 - told["rows"]
    world.check_finished(job, folder, again)


def test_a_cache_that_may_not_be_read_is_one_line(world, reachable):
    job = world.jobs["score"]
    folder = world.place(job)
    open_to_all(folder)
    (folder / "cache.h5").chmod(0o000)
    done = world.zygote.run(job.command, folder, twists=NOBODY)
    error_line(done, "cache.h5", "Permission denied")
    assert all(name in world.undisturbed(job).before or LEFTOVER.fullmatch(name) for name in state(folder))


def test_leftovers_of_another_user_do_not_stop_a_writer(world, reachable):
    job = world.jobs["score"]
    folder = world.place(job)
    folder.chmod(0o1777)  # as /tmp: only the owner may remove a file
    leftover = folder / ".scores.csv.abcdefgh.partial"
    leftover.write_bytes(b"half")
    leftover.chmod(0o600)
    done = world.zygote.run(job.command, folder, twists=NOBODY)
    if os.geteuid() == 0:
        assert done.code == 0 and leftover.exists(), done.stderr
    else:
        world.check_finished(job, folder, done)
