import random
import shutil
import time

import pytest
from helpers.slow import slow

from faults.places import differences, state
from pucache.cache.embedding_cache import EmbeddingCache
from pucache.errors import CacheError

pytestmark = pytest.mark.slow

BUSY = "is being written by another process"
REPLACED = "while it was open; open it again"


def together(world, job, folder, apart, **options):
    """Start one command twice, so many seconds apart."""
    first = world.zygote.start(job.command, folder, **options)
    time.sleep(apart)
    second = world.zygote.start(job.command, folder, **options)
    return first.wait(), second.wait()


@pytest.mark.parametrize("seed", [0, slow(1)])
@pytest.mark.parametrize("name", ["embed", "update", slow("import")])
def test_of_two_writers_of_a_cache_one_wins_or_both_end_well_in_turn(world, name, seed):
    job, draw = world.jobs[name], random.Random(seed)
    folder = world.place(job)
    both = together(world, job, folder, draw.uniform(0, 0.3))
    assert any(done.code == 0 for done in both), both
    for done in both:
        if done.code:
            assert done.code == 1 and len(done.said) == 1 and BUSY in done.said[0], done.stderr
    assert not differences(world.undisturbed(job).after, state(folder))
    world.check_rerun(job, folder)


@pytest.mark.parametrize("name", ["score", "train-pu", *map(slow, ("pack", "score, Parquet", "retrieve"))])
def test_two_writers_of_one_output_both_end_well_and_it_is_whole(world, name):
    job = world.jobs[name]
    folder = world.place(job)
    for done in together(world, job, folder, 0.01):
        assert done.code == 0, done.stderr
    assert not differences(world.undisturbed(job).after, state(folder))


def test_a_writer_does_not_remove_what_another_one_is_writing(world):
    job = world.jobs["score"]
    folder = world.place(job)
    slow = world.zygote.start(job.command, folder, twists=[("slow_replace", {"seconds": 0.6})])
    while slow.code(0.002) is None and not list(folder.glob(".scores.csv.*.partial")):
        pass
    time.sleep(0.2)  # past the probe of whether the folder can be written to
    for _ in range(2):
        assert world.zygote.run(job.command, folder).code == 0
    ended = slow.wait()
    world.check_finished(job, folder, ended)


@pytest.mark.parametrize("verb", [slow(["info"]), slow(["verify"]), ["score", "model.safetensors"]])
def test_readers_see_the_whole_old_or_the_whole_new_cache(world, tmp_path, verb):
    job = world.jobs["update"]
    folder = world.place(job)
    shutil.copy(world.folder / "model.safetensors", folder)
    expected = set(both_sides(world, job, tmp_path, lambda here: reads(world, verb, here, 0)))
    writer = world.zygote.start(job.command, folder)
    seen, number = set(), 0
    while writer.code(0) is None or number < 4:
        number += 1
        seen.add(reads(world, verb, folder, number))
    assert writer.wait().code == 0
    assert seen - {None} and seen - {None} <= expected


def reads(world, verb, folder, number):
    """What a reader makes of the cache; None where it says that the cache was replaced meanwhile."""
    out = folder / f"read-{number}.csv"
    arguments = ["--out", out.name] if verb[0] == "score" else []
    done = world.zygote.run([*verb, "cache.h5", *arguments], folder)
    if done.code:
        assert len(done.said) == 1 and REPLACED in done.said[0], done.stderr
        return None
    return out.read_text() if arguments else done.stdout


def both_sides(world, job, folder, read):
    """What is read of the old cache, and of the new one."""
    whole = world.undisturbed(job)
    shutil.copy(world.folder / "model.safetensors", folder)
    for side in (whole.before, whole.after):
        (folder / "cache.h5").write_bytes(side["cache.h5"])
        yield read(folder)


def test_an_open_cache_keeps_its_rows_or_says_that_it_was_replaced(world, tmp_path):
    job = world.jobs["update"]
    folder = world.place(job)
    old, new = both_sides(world, job, tmp_path, rows)
    mapped, late = EmbeddingCache(folder / "cache.h5"), EmbeddingCache(folder / "cache.h5")
    X = mapped.X
    late.files[0].release()
    writer = world.zygote.start(job.command, folder)
    seen = 0
    while writer.code(0) is None or not seen:
        try:
            assert rows(folder) in (old, new)
            seen += 1
        except CacheError as error:
            assert REPLACED in str(error)
    assert writer.wait().code == 0
    assert X.tobytes() == b"".join(old.values())
    with pytest.raises(CacheError, match=REPLACED):
        _ = late.X


def rows(folder):
    cache = EmbeddingCache(folder / "cache.h5")
    return {key: row.tobytes() for key, row in zip(cache.keys, cache.X, strict=True)}
