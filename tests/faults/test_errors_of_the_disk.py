import signal

import pytest
from helpers.slow import slow

from faults.places import error_line, state
from faults.tracing import READS, RENAMES, can_trace, count_calls, run_traced, run_unwritable

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not can_trace(), reason="needs strace, and the right to trace")]
BAD = "Input/output error"


def test_an_image_that_the_disk_cannot_read_is_a_failure_and_costs_nothing_else(world):
    job = world.jobs["embed"]
    folder = world.place(job)
    image = world.images / "red" / "003.png"
    done = run_traced(world, job, folder, f"{READS}:error=EIO", only=[image])
    assert done.code == 0, done.stderr
    assert BAD in done.result["failures"]["red/003.png"]
    assert done.result["rows"] == world.undisturbed(job).result["rows"] - 1
    again = world.zygote.run(job.command, folder)
    assert (again.result["computed"], again.result["kept"]) == (1, done.result["rows"])
    world.check_finished(job, folder, again)


@pytest.mark.parametrize("name", ["score", *map(slow, ("update", "train-pu", "retrieve", "pack"))])
def test_a_cache_that_the_disk_cannot_read_is_one_line_that_names_it(world, name):
    job = world.jobs[name]
    folder = world.place(job)
    cache = next(path for path in folder.iterdir() if path.suffix == ".h5")
    done = run_traced(world, job, folder, f"{READS}:error=EIO:when=2+", only=[cache])
    error_line(done, cache.name, BAD)
    world.check_interrupted(job, folder)
    world.check_rerun(job, folder, done.acknowledged)


@pytest.mark.parametrize("call", ["fsync", slow(RENAMES)])
@pytest.mark.parametrize("name", ["embed", *map(slow, ("score", "pack", "train-pu"))])
def test_a_disk_that_fails_to_keep_a_file_is_an_error_and_never_a_success(world, name, call):
    job = world.jobs[name]
    folder = world.place(job)
    check_failed(world, job, folder, run_traced(world, job, folder, f"{call}:error=EIO"))


@pytest.mark.parametrize("name", ["embed", *map(slow, ("score", "pack", "score, Parquet", "train-pu", "retrieve"))])
def test_a_disk_that_fails_to_write_is_an_error_and_never_a_success(world, name):
    job = world.jobs[name]
    folder = world.place(job)
    check_failed(world, job, folder, run_unwritable(world, job, folder))


def check_failed(world, job, folder, done):
    error_line(done, BAD)
    world.check_interrupted(job, folder)
    assert not [path for path in state(folder) if path.endswith(".partial")]
    world.check_rerun(job, folder, done.acknowledged)


@pytest.mark.parametrize("when", [slow(2), 3])
def test_a_single_fsync_that_fails_is_an_error_too(world, when):
    job = world.jobs["embed"]
    folder = world.place(job)
    check_failed(world, job, folder, run_traced(world, job, folder, f"fsync:error=EIO:when={when}"))


@pytest.mark.parametrize("calls", [RENAMES, slow("fsync")])
@pytest.mark.parametrize("name", ["embed", slow("pack"), slow("train-pu")])
def test_a_kill_at_a_chosen_fsync_or_rename_loses_nothing(world, name, calls, tmp_path):
    job = world.jobs[name]
    last = count_calls(world, job, calls, tmp_path / "calls")
    for when in sorted({1, last}):
        folder = world.place(job)
        done = run_traced(world, job, folder, f"{calls}:signal=KILL:when={when}")
        assert done.code == -signal.SIGKILL
        world.check_interrupted(job, folder)
        world.check_rerun(job, folder, done.acknowledged)
