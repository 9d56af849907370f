"""Stops commands at random moments, by a kill or a signal, and checks what they left and how they go on."""

from __future__ import annotations

import dataclasses
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from faults.commands import Outcome
from faults.places import Job, State, World, state

CHAIN = 4  # at most so many kills of one job before it may finish
GO_ON = {
    signal.SIGINT: (130, "run the same command again to go on"),
    signal.SIGTERM: (143, "run the same command again to go on"),
}


def kill_often(
    world: World, job: Job, kills: int, seed: int | str, *, plain_every: int = 0
) -> Iterator[tuple[Job, str]]:
    """Kill a job at random moments, some of them one after the other, and let it finish; yields where each struck.

    A kill that comes after the end is checked like the others, and not counted.

    Parameters
    ----------
    plain_every : int
        Let every so many-th command be one that a user starts (0: none), which takes seconds.
    """
    draw = random.Random(seed)
    whole = world.undisturbed(job)
    done = 0
    while done < kills:
        folder, safe = world.place(job), 0
        for _ in range(min(kills - done, draw.choice([1, 1, 1, 2, CHAIN]))):
            if plain_every and (done + 1) % plain_every == 0:
                command = world.zygote.plain(job.command, folder)
                command.begun()
                time.sleep(draw.uniform(0, 2 * whole.seconds))
            else:
                command = world.zygote.start(job.command, folder)
                time.sleep(draw.uniform(0, whole.seconds))
            ended = command.kill()
            assert ended.code in (-signal.SIGKILL, 0), ended.stderr
            done += ended.code != 0
            yield job, where(job, whole.after, folder, ended)
            world.check_interrupted(job, folder)
            safe += ended.acknowledged
            if ended.code == 0:
                world.check_finished(job, folder, ended)
        world.check_rerun(job, folder, safe)


def where(job: Job, after: State, folder: Path, ended: Outcome) -> str:
    """In which phase a kill struck, as far as what lies on disk and was shown tells."""
    if ended.code == 0:
        return "after the end"
    now = state(folder)
    partials = [name for name in now if name.endswith(".partial")]
    if any(".parts/" in name for name in partials):
        return "writing a part"
    if partials:
        return "writing an output"
    if job.embeds and now.get(job.outputs[0]) == after[job.outputs[0]]:
        return "clearing up"
    if "embedding" in ended.stderr:
        return "in a block"
    return "listing and loading" if any(folder.rglob(".*.lock")) else "at work, or starting"


def interrupt_often(
    world: World, job: Job, times: int, seed: int | str, first: int = signal.SIGINT
) -> Iterator[tuple[Job, str]]:
    """Send SIGINT and SIGTERM in turn to a job that has begun, at random moments; yields how it ended."""
    both = sorted((signal.SIGINT, signal.SIGTERM), key=lambda sent: sent != first)
    draw = random.Random(seed)
    whole = world.undisturbed(job)
    for number in range(times):
        folder = world.place(job)
        sent = both[number % 2]
        command = world.zygote.start(job.command, folder)
        command.begun()
        time.sleep(draw.uniform(0, whole.seconds))
        command.signal(sent)
        ended = command.wait()
        world.check_interrupted(job, folder)
        over = ended.code in (0, -sent)  # it had done its work, and was ending
        if over:
            world.check_finished(job, folder, dataclasses.replace(ended, code=0))
        else:
            check_told(ended, sent)
        left = [name for name in state(folder) if name.endswith(".partial")]
        assert not left, f"{job.name} had time to remove {left}"
        world.check_rerun(job, folder, ended.acknowledged)
        yield job, "after the end" if over else sent.name


def check_told(ended: Outcome, sent: int) -> None:
    """The exit code says which signal, and one line how to go on."""
    code, words = GO_ON[signal.Signals(sent)]
    assert ended.code == code, (ended.code, ended.stderr)
    assert len(ended.said) == 1 and words in ended.said[0], ended.stderr


def count(struck: Iterator[tuple[Job, str]]) -> Counter[str]:
    """Go through all strikes and count their places."""
    return Counter(place for _, place in struck)
