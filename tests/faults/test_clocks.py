import json
import os

import pytest
from helpers.slow import slow

from faults.places import state

pytestmark = pytest.mark.slow

YEAR = 365 * 24 * 3600
JUMPS = {
    "back": [0, -30 * YEAR],
    "forward": [0, 80 * YEAR],
    "to and fro": [0, 10 * YEAR, -10 * YEAR, 3600, -3600, 1e-3],
}
TIMES = {"1970": 0, "1901": -(2**31) + 1, "2106": 2**32 + 5}


@pytest.mark.parametrize(
    "jumps", [slow(jumps) if name != "forward" else jumps for name, jumps in JUMPS.items()], ids=JUMPS
)
@pytest.mark.parametrize("name", ["embed", slow("update"), slow("train-pu")])
def test_a_clock_that_jumps_changes_nothing(world, name, jumps):
    job = world.jobs[name]
    folder = world.place(job)
    world.check_rerun(job, folder, twists=[("clock", {"jumps": jumps, "every": 7})])


def test_between_runs_the_clock_may_jump_and_nothing_is_computed_twice_or_missed(world):
    job = world.jobs["embed"]
    folder = world.place(job)
    for number, jump in enumerate([50 * YEAR, -50 * YEAR, 0]):
        done = world.zygote.run(job.command, folder, twists=[("clock", {"jumps": [jump]})])
        assert (done.result["computed"], done.result["kept"]) == ((88, 0) if number == 0 else (0, 88))
        world.check_finished(job, folder, done)
        os.utime(folder / "cache.h5", (jump + 1e9 if jump > 0 else 1e9,) * 2)


def test_only_the_time_of_writing_differs_between_two_clocks(world):
    job = world.jobs["embed"]
    contents = []
    for jump in (0, 40 * YEAR):
        folder = world.place(job)
        command = [*job.command]
        environ = {"SOURCE_DATE_EPOCH": str(1700000000 + jump)}
        assert world.zygote.run(command, folder, **environ).code == 0
        told = json.loads(world.zygote.run(["info", "cache.h5", "--json"], folder).stdout)
        (file,) = told["files"]
        contents.append({name: file[name] for name in ("rows", "dtype", "source", "pucache_version")})
        contents[-1] |= {"years": file["created"][:4]}
    assert contents[0].pop("years") == "2023" and contents[1].pop("years") == "2063"
    assert contents[0] == contents[1]


@pytest.mark.parametrize("when", TIMES.values(), ids=TIMES)
def test_an_image_of_any_time_is_embedded_once_and_again_when_its_time_changes(world, when, tmp_path):
    images, job = tmp_path / "images", world.jobs["embed"]
    images.mkdir()
    for number in range(4):
        path = images / f"{number}.png"
        path.write_bytes((world.images / "red" / f"{number:03}.png").read_bytes())
        os.utime(path, ns=(int(when * 1e9) + number,) * 2)
    command = [str(images) if part == str(world.images) else part for part in job.command]
    told = [world.zygote.run(command, tmp_path).result for _ in range(2)]
    assert [(one["computed"], one["kept"]) for one in told] == [(4, 0), (0, 4)]
    first = images / "0.png"
    os.utime(first, ns=(first.stat().st_mtime_ns + 1,) * 2)
    third = world.zygote.run(command, tmp_path).result
    assert (third["computed"] + third["reused"], third["kept"]) == (1, 3)


@pytest.mark.parametrize("when", [-(2**31) + 1, 2**32 + 5], ids=["1901", "2106"])
def test_times_of_parts_and_caches_play_no_part(world, when):
    job = world.jobs["embed"]
    folder = world.place(job)
    killed = world.zygote.run(job.command, folder, twists=[("die_in_replace", {"call": 4})])
    parts = list(folder.glob("*.parts/part-*.h5"))
    assert len(parts) == 3
    for path in (*parts, folder / "cache.h5.parts"):
        os.utime(path, (when, when))
    world.check_rerun(job, folder, killed.acknowledged)
    os.utime(folder / "cache.h5", (when, when))
    again = world.zygote.run(job.command, folder)
    assert again.result["kept"] == 88 and not again.result["written"]


@pytest.mark.parametrize("epoch", ["yesterday", "nan", "inf", "-1e300", ""])
def test_a_source_date_epoch_that_is_no_time_is_one_line(world, epoch):
    job = world.jobs["embed"]
    folder = world.place(job)
    done = world.zygote.run(job.command, folder, SOURCE_DATE_EPOCH=epoch)
    if epoch == "":  # empty is as good as not set
        assert done.code == 0
        return
    assert done.code in (1, 2) and not done.stdout
    assert len(done.said) == 1 and "SOURCE_DATE_EPOCH" in done.said[0], done.stderr
    assert "cache.h5" not in state(folder)
