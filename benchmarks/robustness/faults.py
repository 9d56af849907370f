"""Fault injection: kills, full and failing disks, power loss, signals and concurrent writers.

    python -m benchmarks.robustness.faults FOLDER [--quick] [--out docs/results/faults.md]

Runs the real commands on a small set of images, injects a fault, and counts which checks passed. What is checked each
time is in `World` of tests/faults/places.py: outputs are byte for byte the old or the new ones, inputs are untouched,
finished parts verify, the same command run again succeeds, computes nothing that was safe a second time, ends in the
bytes of an undisturbed run and leaves nothing else in the folder. --quick takes two commands and few faults.
"""

import argparse
import errno
import shutil
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.common.cells import table
from benchmarks.common.command_line import page_parser, write_page
from benchmarks.common.environment import environment

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from faults.filling import can_mount, disk
from faults.places import POINTS, After, Job, World, strike_each
from faults.powerloss import Crash, check_crash, crashes

SEED, CALLS, WRITES_APART = 0, 500, 20  # more calls than any run makes of one kind; of writes every so many
MOMENTS, QUICK_MOMENTS = 6, 2  # of each command, for kills; fewer for other signals and rivals
QUICK_JOBS = ("pack", "score")
ROOMS = [{"pages": pages} for pages in (0, 1, 2, 5, 9, 14)] + [{"inodes": inodes} for inodes in range(3)]
Trial = tuple[str, Job, Callable[[], list[str]]]  # title; what runs it and says where each of its faults struck


# --- one trial, or several alike ---------------------------------------------------------------------


def struck_at_random(world: World, job: Job, number: int, draw: np.random.Generator) -> list[str]:
    """A signal at a random moment of the run."""
    ended = world.strike(job, After(draw.uniform(0, world.undisturbed(job).seconds), number))
    return [signal.Signals(number).name if ended.code else "after the end"]


def filled(world: World, job: Job, room: dict[str, int]) -> list[str]:
    """A disk with so many free pages or inodes, and the same command with room enough."""
    world.undisturbed(job)
    with disk(world.folder / "disk") as full:
        folder = world.place(job, full.folder)
        used = dict(zip(("pages", "inodes"), full.used, strict=True))
        full.resize(**{kind: max(1, used[kind] + more) for kind, more in room.items()})
        ended = world.run(job.command, folder)
        world.check_interrupted(job, folder)
        if ended.code:
            ended.error("No space left on device")
        full.resize()
        world.check_rerun(job, folder, ended.acknowledged)
    return [f"no {'inodes' if 'inodes' in room else 'space'}" if ended.code else "enough room"]


def failing(world: World, job: Job, point: str, fault: int) -> list[str]:
    """A kill, or an error, at each call of one kind."""
    calls = range(1, CALLS, WRITES_APART if point == "write" else 1)
    what = "kill" if fault > 0 else errno.errorcode[-fault]
    return [f"{what} at a {point}"] * len(strike_each(world, job, point, calls, number=fault))


def without_power(world: World, job: Job, crash: Crash) -> list[str]:
    """One disk that a loss of power can leave."""
    check_crash(world, job, crash)
    return [crash.when.partition(", ")[0]]


def at_once(world: World, job: Job, draw: np.random.Generator) -> list[str]:
    """The same command twice at nearly the same time."""
    refused = world.rivals(job, draw.uniform(0, world.undisturbed(job).seconds))
    return ["one was refused" if refused else "both ended well"]


def trials(world: World, names: list[str], moments: int) -> Iterator[Trial]:
    """Every trial of these commands."""
    draw = np.random.default_rng(SEED)
    for job in (world.jobs[name] for name in names):
        for _ in range(moments):
            yield "SIGKILL at random moments", job, partial(struck_at_random, world, job, signal.SIGKILL, draw)
        for number in [signal.SIGINT, signal.SIGTERM] * (moments // 8 + 1):
            yield "SIGINT and SIGTERM at random moments", job, partial(struck_at_random, world, job, number, draw)
        for room in ROOMS if can_mount(world.folder) else ():
            yield "Full disks", job, partial(filled, world, job, room)
        for point in POINTS:
            # an error at the removal of parts is passed over: the cache is complete
            for fault in (signal.SIGKILL, -errno.EIO)[: 1 if point in ("write", "removal") else 2]:
                yield "Kills and I/O errors at chosen calls", job, partial(failing, world, job, point, fault)
        for crash in crashes(world, job):
            yield "Losses of power, by a model of what was fsynced", job, partial(without_power, world, job, crash)
        for _ in range(moments // 8 + 1):
            yield "Two of the same command at once", job, partial(at_once, world, job, draw)


# --- the page ----------------------------------------------------------------------------------------


def main(arguments: argparse.Namespace) -> str:
    folder, began = arguments.folder.resolve() / "world", time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    world = World(folder)
    where: defaultdict[tuple[str, str], Counter] = defaultdict(Counter)
    bad: Counter[tuple[str, str, str]] = Counter()
    moments = QUICK_MOMENTS if arguments.quick else MOMENTS
    for title, job, run in trials(world, list(QUICK_JOBS if arguments.quick else world.jobs), moments):
        try:
            where[title, job.name].update(run())
        except AssertionError as error:
            problem = " / ".join(str(error).split("\n"))[:1500] or "an assertion without a word"
            print(f"{title}, {job.name}: {problem}", file=sys.stderr, flush=True)
            where[title, job.name]["bad"] += 1
            bad[title, job.name, problem] += 1
        shutil.rmtree(folder / "places", ignore_errors=True)
    rows = [
        [title, name, of.total(), of["bad"], ", ".join(f"{what} {n}" for what, n in of.most_common() if what != "bad")]
        for (title, name), of in sorted(where.items(), key=lambda item: item[0][0])
        if of
    ]
    parts = [
        "# Faults",
        f"`python -m benchmarks.robustness.faults FOLDER{' --quick' * arguments.quick}`: "
        + " ".join((__doc__ or "").split("\n\n")[2].split()),
        f"Seed {SEED}. A fault is bad where one of these checks failed. Signals at random moments may come after the "
        "end of the command; they are checked too.",
        table(["fault", "command", "n", "bad", "where it struck"], rows),
        f"**{sum(row[2] for row in rows):,} faults, {bad.total():,} bad**, in {(time.monotonic() - began) / 60:.0f} "
        "minutes.",
        *(f"- {title}, {name}, {count} times: {problem}" for (title, name, problem), count in bad.items()),
        environment(),
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    parser = page_parser(__doc__)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    write_page(main(options), options.out)
